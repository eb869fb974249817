//! The session as the body finds it, the pool, and what only Postgres can do to a run.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::{Claim, Claimed, Error, Identity, Older, PgStore, Retain, Store as _, Verified};
use idem_testkit::cancel::{drop_at_poll, drop_at_wake};
use sqlx::AssertSqlSafe;

use super::db::{Db, INBOX, Tx, pool};
use super::race::{apply, effect};
use crate::handler::{Fail, claim, identity, run};

async fn setting(tx: &mut Tx, name: &str) -> Result<String, Fail> {
    let sql = AssertSqlSafe(format!("SELECT current_setting('{name}')"));
    Ok(sqlx::query_scalar(sql).fetch_one(&mut **tx).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_has_the_sessions_own_timeouts() {
    // By the insert and by a takeover.
    let db = Db::fresh().await;
    let own = format!("{}?options=-c%20lock_timeout%3D1234ms%20-c%20statement_timeout%3D45s", db.url());
    for (url, expected) in [(db.url().to_owned(), ["0", "0"]), (own, ["1234ms", "45s"])] {
        let store = PgStore::new(pool(&url, 1));
        for _ in 0..2 {
            let claim = claim("k").with_retain(Retain::For(Duration::from_secs(60))).with_older(Older::Run);
            let seen = run(&store, claim, async |tx: &mut Tx| {
                Ok([setting(tx, "lock_timeout").await?, setting(tx, "statement_timeout").await?])
            });
            let outcome = seen.await.expect("runs");
            assert!(!outcome.is_replay());
            assert_eq!(outcome.into_inner(), expected);
            db.execute(&format!("UPDATE {INBOX} SET expires_at = now() - interval '1 second'")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_idle_timeout_stays_and_a_shorter_one_of_the_session_wins() {
    let db = Db::fresh().await;
    let own = |ms: u32| format!("{}?options=-c%20idle_in_transaction_session_timeout%3D{ms}", db.url());
    for (n, (url, expected)) in
        [(own(0), "7s"), (own(90_000), "7s"), (own(1_500), "1500ms")].into_iter().enumerate()
    {
        let store = PgStore::new(pool(&url, 1)).with_idle_timeout(Duration::from_secs(7));
        let seen = run(&store, claim(&format!("k{n}")), async |tx: &mut Tx| {
            setting(tx, "idle_in_transaction_session_timeout").await
        });
        assert_eq!(seen.await.expect("runs").into_inner(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn synchronous_commit_off_is_on_for_the_run_unless_that_is_not_wanted() {
    let db = Db::fresh().await;
    let own = |value: &str| format!("{}?options=-c%20synchronous_commit%3D{value}", db.url());
    for (n, (session, keep, expected)) in
        [("off", false, "on"), ("off", true, "off"), ("local", false, "local")].into_iter().enumerate()
    {
        let store = PgStore::new(pool(&own(session), 1)).with_session_commit(keep);
        let seen =
            run(&store, claim(&format!("k{n}")), async |tx: &mut Tx| setting(tx, "synchronous_commit").await);
        assert_eq!(seen.await.expect("runs").into_inner(), expected);
        // The session itself is as it was.
        let after: String = sqlx::query_scalar("SELECT current_setting('synchronous_commit')")
            .fetch_one(store.pool())
            .await
            .expect("asked");
        assert_eq!(after, session);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanished_frees_the_key_after_the_idle_timeout() {
    // C10b
    let db = Db::fresh().await;
    let vanishing = db.store_of(1).with_idle_timeout(Duration::from_millis(300));
    let claimed = vanishing.claim(claim("k")).await.expect("claimed");
    let outcome = run(&db.store().await, claim("k"), async |_| Ok(())).await.expect("freed");
    assert!(!outcome.is_replay());
    drop(claimed);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_handler_inside_another_is_a_transaction_of_its_own() {
    // C21
    let db = Db::fresh().await;
    let store = db.store().await;
    let outer = run(&store, claim("k"), async |_: &mut Tx| {
        let identity = Identity::new("effect.other", &Verified::vouch("acme"), "k").expect("valid");
        run(&store, Claim::new(identity), async |tx: &mut Tx| effect(tx, "inner").await).await?;
        Err::<(), _>(Fail::Told)
    });
    assert!(matches!(outer.await, Err(Fail::Told)));
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1, "the inner one has committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_swallows_an_sql_error_is_no_success() {
    // C11b
    let db = Db::fresh().await;
    let store = db.store().await;
    let body = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        sqlx::query("SELECT 1 / 0").execute(&mut **tx).await.expect_err("division by zero");
        Ok(())
    });
    let error = body.await.expect_err("no false success").idem();
    assert!(matches!(error, Error::TransactionEnded { .. }), "{error:?}");
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 0);
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
    assert!(!run(&store, claim("k"), async |_| Ok(())).await.expect("runs").is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_commit_is_neither_replayed_nor_run_again() {
    // C11c
    let db = Db::fresh().await;
    let store = db.store().await;
    for (then, taken_over) in
        [("COMMIT", false), ("COMMIT; BEGIN", false), ("COMMIT", true), ("COMMIT; BEGIN", true)]
    {
        let key = format!("{then} {taken_over}");
        let claim = |key| claim(key).with_retain(Retain::For(Duration::from_secs(60))).with_older(Older::Run);
        if taken_over {
            // Nothing of the run before may answer for this one.
            run(&store, claim(&key), async |_| Ok(())).await.expect("runs");
            db.execute(&format!(
                "UPDATE {INBOX} SET expires_at = now() - interval '1 second' WHERE key = '{key}'"
            ))
            .await;
        }
        let body = run(&store, claim(&key), async |tx: &mut Tx| {
            effect(tx, &key).await?;
            sqlx::raw_sql(then).execute(&mut **tx).await?;
            Ok(())
        });
        let error = body.await.expect_err("no false success").idem();
        assert!(matches!(error, Error::TransactionEnded { .. }), "{error:?}");
        let later = run::<_, (), _>(&store, claim(&key), async |_| panic!("must not run")).await;
        let error = later.expect_err("no outcome").idem();
        assert!(matches!(error, Error::OutcomeUnreadable { .. }), "{error:?}");
        let record = store.find(&identity(&key)).await.expect("asked").expect("there");
        assert_eq!((record.processed_at, record.outcome), (None, None), "{key}");
        assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 1);
    }
    db.assert_no_open_transaction().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_terminated_in_the_body_leaves_nothing() {
    // C8
    let db = Db::fresh().await;
    let store = db.store().await;
    let body = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **tx).await?;
        db.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
        effect(tx, "k").await
    });
    assert!(matches!(body.await, Err(Fail::Sql(_))), "the user's error wins");
    let next = tokio::time::timeout(
        Duration::from_secs(8),
        run(&store, claim("k"), async |tx| effect(tx, "k").await),
    );
    assert!(!next.await.expect("at once").expect("runs").is_replay());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_panics_with_a_query_on_its_way_frees_the_key() {
    let db = Db::fresh().await;
    let store = Arc::new(db.store().await);
    let body = run::<_, (), _>(&*store, claim("k"), async |tx: &mut Tx| {
        let asked = sqlx::query("SELECT pg_sleep(0.2)").execute(&mut **tx);
        drop(idem_testkit::cancel::drop_at_poll(1, asked).await);
        panic!("told to");
    });
    std::panic::AssertUnwindSafe(body).catch_unwind().await.expect_err("goes on");
    run(&*store, claim("k"), async |_| Ok(())).await.expect("runs");
    db.assert_no_open_transaction().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_claim_and_a_cancelled_end_do_not_cost_their_connection() {
    // C9: what a store does on a connection goes on when nobody waits for it. Closing the connection would be safe
    // too, but then every timeout of a client would cost the service one.
    let db = Db::fresh().await;
    let store = db.store_of(1);
    run(&store, claim("warm"), async |_| Ok(())).await.expect("the start-up check is done");
    let pid = async || -> i32 {
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(store.pool()).await.expect("asked")
    };
    let (mut closed, mut last) = (0, pid().await);
    for n in 0..12 {
        let claim = store.claim(claim(&format!("claim-{n}")));
        // In `BEGIN`, in the insert, or where it waits for the pool and has nothing to lose yet.
        let at = 1 + n / 2 % 3;
        match n % 2 {
            0 => drop(drop_at_poll(at, claim).await),
            _ => drop(drop_at_wake(at, claim).await),
        }
        let now = pid().await;
        closed += i32::from(now != last);
        last = now;
    }
    // One that was slower than the grace of a cancelled claim is closed.
    assert!(closed < 3, "{closed} of 12");
    for n in 0..4 {
        let before = pid().await;
        let claimed = store.claim(claim(&format!("end-{n}"))).await.expect("claimed");
        let Claimed::Fresh(tx) = claimed else { panic!("it is fresh") };
        match n {
            0 => drop(drop_at_poll(1, store.complete(tx, "null".to_owned())).await),
            1 => drop(drop_at_wake(1, store.complete(tx, "null".to_owned())).await),
            2 => drop(drop_at_poll(1, store.release(tx)).await),
            _ => drop(drop_at_wake(1, store.release(tx)).await),
        }
        assert_eq!(pid().await, before, "the end of a run has no grace");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_whose_commit_is_refused_is_rolled_back_alone() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let outcome = run(&store, claim("k"), async |tx: &mut Tx| {
        let mut part = tx.begin().await?;
        effect(&mut part, "part").await?;
        sqlx::query("SELECT 1 / 0").execute(&mut **part).await.expect_err("division by zero");
        part.commit().await.expect_err("the server has aborted it");
        effect(tx, "k").await
    });
    assert!(!outcome.await.expect("applied").is_replay());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
    assert_eq!(db.count("SELECT count(*) FROM effect WHERE key = 'k'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_nested_in_every_body_around_it() {
    // C21
    let db = Db::fresh().await;
    let store = db.store().await;
    let outer = run(&store, claim("k"), async |_: &mut Tx| {
        let inner = run(&store, claim("other"), async |_: &mut Tx| {
            let nested = run(&store, claim("k"), async |_| Ok(())).await;
            Ok(matches!(nested, Err(Fail::Idem(Error::Nested { running, .. })) if running == identity("k")))
        });
        Ok(inner.await?.into_inner())
    });
    assert!(outer.await.expect("applied").into_inner());
}

/// A body that is idle for longer than the idle timeout has done nothing, and may be tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_ended_because_it_was_idle_can_be_retried() {
    let db = Db::fresh().await;
    let store = db.store().await.with_idle_timeout(Duration::from_millis(300));
    let body = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **tx).await?;
        idem_testkit::wait::eventually(
            "the server ends the idle session",
            Duration::from_secs(20),
            async || db.count(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}")).await == 0,
        )
        .await;
        Ok(())
    });
    let error = body.await.expect_err("ended").idem();
    assert!(error.is_retryable(), "{error:?}");
}

/// A body that throws the session's prepared statements away spoils one call, not the connection for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_lost_its_statements_is_replaced() {
    let db = Db::fresh().await;
    let store = db.store_of(1);
    apply(&store, "before").await.expect("applied");
    let body = run(&store, claim("k"), async |tx: &mut Tx| {
        sqlx::raw_sql("DEALLOCATE ALL").execute(&mut **tx).await?;
        Ok(())
    });
    assert!(body.await.expect_err("the outcome's statement has gone too").idem().is_retryable());
    if let Err(error) = apply(&store, "first").await {
        assert!(error.idem().is_retryable());
    }
    apply(&store, "second").await.expect("on another connection");
    apply(&store, "k").await.expect("it was rolled back");
}
