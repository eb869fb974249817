//! The single writer, and the commits that SQLite would do by itself.

use std::time::{Duration, Instant};

use idem_runtime::{Error, Older, Retain, SqliteStore, Store as _};
use sqlx::sqlite::SqliteConnectOptions;

use super::db::{Db, Tx};
use super::race::{apply, effect};
use crate::handler::{Fail, claim, identity, run};

#[tokio::test(flavor = "multi_thread")]
async fn a_call_inside_a_body_is_nested_at_once_whatever_its_key() {
    // C21
    let db = Db::fresh().await;
    let store = db.store().await;
    let body = run(&store, claim("outer"), async |_: &mut Tx| {
        let inner = run(&store, claim("inner"), async |_| Ok(())).await;
        Ok(matches!(inner, Err(Fail::Idem(Error::Nested { .. }))))
    });
    assert!(body.await.expect("applied").into_inner());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_is_busy_with_another_key_is_busy_and_a_replay_does_not_wait_for_it() {
    // C21
    let db = Db::fresh().await;
    let store = db.store().await;
    run(&store, claim("done"), async |_| Ok(1)).await.expect("runs");
    let takeable = claim("expired").with_retain(Retain::For(Duration::from_secs(60))).with_older(Older::Run);
    run(&store, takeable.clone(), async |_| Ok(1)).await.expect("runs");
    db.execute("UPDATE idem_inbox SET expires_at = 1 WHERE key = 'expired'").await;
    let claimed = store.claim(claim("holds")).await.expect("claimed");
    let hurried = store.clone().with_claim_wait(Duration::from_millis(200));
    let error = run(&hurried, claim("k"), async |_| Ok(())).await.expect_err("busy").idem();
    assert!(matches!(error, Error::Busy { .. }) && error.is_retryable(), "{error:?}");
    assert!(run(&hurried, claim("done"), async |_| Ok(2)).await.expect("replays").is_replay());
    let error = run(&hurried, takeable, async |_| Ok(2)).await.expect_err("no replay: it has expired").idem();
    assert!(matches!(error, Error::Busy { .. }), "{error:?}");
    // Another process, whatever its key (C4).
    let other = db.store().await.with_claim_wait(Duration::from_millis(200));
    for key in ["k", "holds"] {
        let started = Instant::now();
        let error = run(&other, claim(key), async |_| Ok(())).await.expect_err("busy").idem();
        assert!(matches!(error, Error::Busy { .. }), "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(5), "after the claim wait");
    }
    drop(claimed);
    run(&store, claim("k"), async |_| Ok(())).await.expect("runs");
    run(&other, claim("holds"), async |_| Ok(())).await.expect("runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_by_sqlite_itself_leaves_no_effect() {
    // C11b: what comes after it would commit alone.
    let db = Db::fresh().await;
    let store = db.store().await;
    db.execute("INSERT INTO named (name) VALUES ('taken')").await;
    let body = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        let refused =
            sqlx::query("INSERT OR ROLLBACK INTO named (name) VALUES ('taken')").execute(&mut **tx).await;
        assert!(refused.is_err());
        effect(tx, "k").await.expect_err("its commit is refused");
        sqlx::query("UPDATE named SET name = 'changed'").execute(&mut **tx).await.expect_err("likewise");
        Ok(())
    });
    let error = body.await.expect_err("no false success").idem();
    assert!(matches!(error, Error::TransactionEnded { .. }), "{error:?}");
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 0);
    assert_eq!(db.count("SELECT count(*) FROM named WHERE name = 'changed'").await, 0);
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
    for key in ["other", "k"] {
        run(&store, claim(key), async |tx| effect(tx, key).await).await.expect("the writer was replaced");
    }
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_commit_is_refused() {
    // C11c
    let db = Db::fresh().await;
    let store = db.store().await;
    run(&store, claim("before"), async |_| Ok(())).await.expect("the store's own commit passes");
    for swallow in [false, true] {
        let body = run(&store, claim("k"), async |tx: &mut Tx| {
            effect(tx, "k").await?;
            let refused = sqlx::raw_sql("COMMIT").execute(&mut **tx).await;
            assert!(refused.is_err());
            if !swallow {
                refused?;
            }
            Ok(())
        });
        let error = body.await.expect_err("no false success");
        assert!(matches!(error, Fail::Idem(Error::TransactionEnded { .. }) | Fail::Sql(_)), "{error:?}");
        assert_eq!(db.count("SELECT count(*) FROM effect").await, 0);
        assert!(store.find(&identity("k")).await.expect("asked").is_none());
    }
    assert!(!run(&store, claim("k"), async |tx| effect(tx, "k").await).await.expect("runs").is_replay());
}

#[tokio::test]
async fn a_database_in_memory_is_refused_with_the_way_out() {
    for options in [
        SqliteConnectOptions::new().in_memory(true),
        "sqlite::memory:".parse().expect("valid"),
        SqliteConnectOptions::new().filename(":memory:"),
    ] {
        let error = SqliteStore::connect(options).await.expect_err("refused");
        assert!(error.to_string().contains("WAL"), "{error}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_a_typed_error() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let error = SqliteStore::open(dir.path().join("no/such/folder/x.sqlite3")).await.expect_err("no folder");
    assert!(
        matches!(error, Error::Store { .. }) && error.to_string().contains("no/such/folder"),
        "{error:?}"
    );
    let not_a_database = dir.path().join("text");
    std::fs::write(&not_a_database, "this is no database, but a text that is long enough to be read as one")
        .expect("written");
    let error = SqliteStore::open(&not_a_database).await.expect_err("no database");
    assert!(matches!(error, Error::Store { retryable: false, .. }), "{error:?}");
}

#[tokio::test]
async fn an_inbox_without_its_unique_key_is_refused() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE TABLE copy AS SELECT * FROM idem_inbox; DROP TABLE idem_inbox;
         ALTER TABLE copy RENAME TO idem_inbox",
    )
    .await;
    let error = db.store().await.check().await.expect_err("no key");
    assert!(error.to_string().contains("CREATE UNIQUE INDEX"), "{error}");
}

#[tokio::test]
async fn an_index_that_does_not_decide_who_runs_is_no_unique_key() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE TABLE copy AS SELECT * FROM idem_inbox; DROP TABLE idem_inbox;
         ALTER TABLE copy RENAME TO idem_inbox",
    )
    .await;
    for index in [
        "CREATE INDEX plain ON idem_inbox (operation, scope, key)",
        "CREATE UNIQUE INDEX fewer ON idem_inbox (operation, scope)",
        "CREATE UNIQUE INDEX part ON idem_inbox (operation, scope, key) WHERE expires_at IS NULL",
    ] {
        db.execute(index).await;
        let error = db.store().await.check().await.expect_err(index);
        assert!(error.to_string().contains("CREATE UNIQUE INDEX"), "{index}: {error}");
    }
    db.execute("CREATE UNIQUE INDEX other ON idem_inbox (key, operation, scope)").await;
    db.store().await.check().await.expect("any order of the columns will do");
}

#[tokio::test]
async fn a_run_is_durable_with_foreign_keys_on_and_the_readers_do_not_write() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let run = run(&store, claim("k"), async |tx: &mut Tx| {
        let durable: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut **tx).await?;
        let foreign_keys: i64 = sqlx::query_scalar("PRAGMA foreign_keys").fetch_one(&mut **tx).await?;
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut **tx).await?;
        Ok((durable, foreign_keys, journal))
    });
    let (full, on) = (2, 1);
    assert_eq!(run.await.expect("runs").into_inner(), (full, on, "wal".to_owned()));
    let written = sqlx::query("INSERT INTO effect (key) VALUES ('k')").execute(store.readers()).await;
    assert!(written.is_err(), "past the writer, in no run");
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_does_not_tell_case_is_refused() {
    let db = Db::fresh().await;
    db.execute("CREATE TABLE x (operation TEXT NOT NULL, scope TEXT NOT NULL, key TEXT COLLATE NOCASE NOT NULL, fingerprint BLOB, outcome TEXT, claim_token BLOB NOT NULL,
        claimed_at INTEGER NOT NULL, processed_at INTEGER, outcome_until INTEGER, expires_at INTEGER, PRIMARY KEY (operation, scope, key)) STRICT;
        DROP TABLE idem_inbox; ALTER TABLE x RENAME TO idem_inbox").await;
    let store = db.store().await;
    let r = store.check().await;
    let a = apply(&store, "abc").await;
    let b = apply(&store, "ABC").await;
    assert!(r.is_err(), "abc: {a:?}, ABC: {b:?}");
}
