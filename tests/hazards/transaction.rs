//! Bodies that end or abort their transaction: no false success, and the next delivery runs.

use futures_util::FutureExt as _;
use idem_runtime::{Error, Outcome, Store as _};

use super::db::{Db, Store, Tx};
use super::race::effect;
use crate::handler::{Fail, claim, identity, run};

async fn raw(tx: &mut Tx, sql: &'static str) -> Result<(), Fail> {
    sqlx::raw_sql(sql).execute(&mut **tx).await?;
    Ok(())
}

/// The run answered with an error and left nothing; the next delivery, and one of another key, run.
async fn assert_nothing_happened(db: &Db, store: &Store, ended: Result<Outcome<()>, Fail>) {
    let error = ended.expect_err("no false success");
    assert!(matches!(error, Fail::Idem(Error::TransactionEnded { .. }) | Fail::Sql(_)), "{error:?}");
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 0);
    for key in ["other", "k"] {
        let next = run(store, claim(key), async |tx| effect(tx, key).await).await.expect("runs");
        assert!(!next.is_replay());
    }
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 2);
    db.assert_no_open_transaction().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_rollback_is_no_success() {
    // C11c
    let db = Db::fresh().await;
    let store = db.store().await;
    let ended = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        raw(tx, "ROLLBACK").await
    });
    let ended = ended.await;
    assert_nothing_happened(&db, &store, ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_body_does_in_a_transaction_of_its_own_is_rolled_back() {
    // C11c
    let db = Db::fresh().await;
    let store = db.store().await;
    let ended = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        raw(tx, "ROLLBACK; BEGIN").await?;
        effect(tx, "k").await
    });
    let ended = ended.await;
    assert_nothing_happened(&db, &store, ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_constraint_that_refuses_the_commit_is_decided() {
    // C10
    let db = Db::fresh().await;
    let store = db.store().await;
    let ended = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        raw(tx, "INSERT INTO child (parent) VALUES (4711)").await
    });
    let error = ended.await.expect_err("refused").idem();
    assert!(matches!(error, Error::Store { retryable: false, .. }), "{error:?}");
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 0);
    let next = run(&store, claim("k"), async |tx| effect(tx, "k").await).await.expect("runs");
    assert!(!next.is_replay());
    db.assert_no_open_transaction().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_fails_is_rolled_back_alone() {
    let db = Db::fresh().await;
    let store = db.store().await;
    db.execute("INSERT INTO named (name) VALUES ('taken')").await;
    let outcome = run(&store, claim("k"), async |tx: &mut Tx| {
        let mut part = tx.begin().await?;
        let mut inner = part.begin().await?;
        let refused = raw(&mut inner, "INSERT INTO named (name) VALUES ('taken')").await;
        assert!(refused.is_err());
        drop(inner);
        effect(&mut part, "k").await?;
        part.commit().await?;
        Ok(())
    });
    assert!(!outcome.await.expect("applied").is_replay());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_helper_with_a_transaction_of_its_own_works_inside_the_run() {
    // Code that takes a connection and begins its own transaction gets a savepoint.
    let db = Db::fresh().await;
    let store = db.store().await;
    let outcome = run(&store, claim("k"), async |tx: &mut Tx| {
        let mut own = sqlx::Connection::begin(&mut **tx).await?;
        sqlx::query("INSERT INTO effect (key) VALUES ('k')").execute(&mut *own).await?;
        own.commit().await?;
        let mut dropped = sqlx::Connection::begin(&mut **tx).await?;
        sqlx::query("INSERT INTO effect (key) VALUES ('gone')").execute(&mut *dropped).await?;
        drop(dropped);
        Err::<(), _>(Fail::Told)
    });
    assert!(matches!(outcome.await, Err(Fail::Told)));
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 0, "its commit was no commit");
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_cannot_be_taken_back_alone_takes_the_run_with_it() {
    // sqlx's own transaction inside it is still open, so an end would meet that one, and not the part.
    let db = Db::fresh().await;
    let store = db.store().await;
    for end in [End::Drop, End::RollBack] {
        let ended = run(&store, claim("k"), async |tx: &mut Tx| {
            let mut part = tx.begin().await?;
            effect(&mut part, "k").await?;
            std::mem::forget(sqlx::Connection::begin(&mut **part).await?);
            match end {
                End::Drop => drop(part),
                End::RollBack => {
                    let error = part.rollback().await.expect_err("it cannot");
                    assert!(matches!(error, Error::TransactionEnded { .. }), "{error:?}");
                }
            }
            Ok(())
        });
        let error = ended.await.expect_err("no false success").idem();
        assert!(matches!(error, Error::TransactionEnded { .. }), "{error:?}");
        assert_eq!(db.count("SELECT count(*) FROM effect").await, 0, "{end:?}");
    }
    assert!(!run(&store, claim("k"), async |tx| effect(tx, "k").await).await.expect("runs").is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_the_body_left_open_is_part_of_the_run() {
    let db = Db::fresh().await;
    let store = db.store().await;
    for key in ["k", "after it"] {
        let outcome = run(&store, claim(key), async |tx: &mut Tx| {
            std::mem::forget(sqlx::Connection::begin(&mut **tx).await?);
            effect(tx, key).await
        });
        assert!(!outcome.await.expect("applied").is_replay());
        assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 1);
    }
    db.assert_no_open_transaction().await;
}

#[derive(Clone, Copy, Debug)]
enum End {
    Drop,
    RollBack,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_goes_on_after_its_end_panics_or_fails_and_leaves_nothing() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let body = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        raw(tx, "COMMIT").await.ok();
        raw(tx, "ROLLBACK").await.ok();
        Ok(())
    });
    let ended = std::panic::AssertUnwindSafe(body).catch_unwind().await;
    assert!(!matches!(ended, Ok(Ok(_))), "no false success");
}
