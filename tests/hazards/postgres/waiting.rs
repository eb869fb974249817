//! What a claim waits for in Postgres, and for how long.

use std::time::{Duration, Instant};

use idem_runtime::{
    Claim, Claimed, Concurrent, Error, Identity, Older, PgStore, Retain, Store as _, Verified,
};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::db::{Db, INBOX, Tx, pool};
use super::race::effect;
use crate::handler::{claim, run};

#[tokio::test(flavor = "multi_thread")]
async fn two_connections_serve_sixteen_duplicates_and_one_serves_a_handler() {
    // C5
    let db = Db::fresh().await;
    for connections in [2, 1] {
        let store = db.store_of(connections);
        let key = format!("k{connections}");
        let mut tasks = JoinSet::new();
        for _ in 0..16 {
            let (store, key) = (store.clone(), key.clone());
            tasks.spawn(
                async move { run(&store, claim(&key), async |tx: &mut Tx| effect(tx, &key).await).await },
            );
        }
        for outcome in tasks.join_all().await {
            outcome.expect("none times out on the pool");
        }
        assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_key_does_not_hold_up_other_keys() {
    // C5b: a pool of 4, one key with 1,000 duplicates while its winner runs.
    let db = Db::fresh().await;
    let store = db.store_of(4);
    let ((started, is_running), (go, go_on)) = (oneshot::channel(), oneshot::channel::<()>());
    let mut hot = JoinSet::new();
    hot.spawn({
        let store = store.clone();
        async move {
            run(&store, claim("hot"), async |_: &mut Tx| {
                started.send(()).expect("the test waits");
                go_on.await.expect("the test decides");
                Ok(0)
            })
            .await
        }
    });
    is_running.await.expect("runs");
    for n in 1..=1_000 {
        let store = store.clone();
        hot.spawn(async move { run(&store, claim("hot"), async |_| Ok(n)).await });
    }
    // All the others are there, and wait, when the calls with other keys come.
    for n in 0..20 {
        let others = run(&store, claim(&format!("cold-{n}")), async |tx: &mut Tx| effect(tx, "cold").await);
        let outcome = tokio::time::timeout(Duration::from_secs(5), others).await;
        outcome.expect("not held up by the hot key").expect("runs");
    }
    go.send(()).expect("the winner waits");
    for outcome in hot.join_all().await {
        assert_eq!(outcome.expect("replayed").into_inner(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_run_of_one_tenant_does_not_delay_another() {
    // C17b
    let db = Db::fresh().await;
    let store = db.store().await;
    let held = store.claim(claim("k")).await.expect("claimed");
    let identity = Identity::new("effect.apply", &Verified::vouch("other"), "k").expect("valid");
    let other =
        tokio::time::timeout(Duration::from_secs(5), run(&store, Claim::new(identity), async |_| Ok(())));
    assert!(!other.await.expect("at once").expect("runs").is_replay());
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_the_keys_is_no_run_in_progress() {
    let db = Db::fresh().await;
    let store = db.store().await.with_claim_wait(Duration::from_millis(300));
    store.check().await.expect("ready");
    let mut other = db.pool.begin().await.expect("begun");
    sqlx::query("LOCK TABLE idem.inbox IN ACCESS EXCLUSIVE MODE").execute(&mut *other).await.expect("locked");
    let error = run(&store, claim("k"), async |_| Ok(())).await.expect_err("locked").idem();
    assert!(matches!(error, Error::Store { retryable: true, .. }), "{error:?}");
    other.rollback().await.expect("rolled back");
    run(&store, claim("k"), async |_| Ok(())).await.expect("runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn stricter_isolation_levels_work_too() {
    let db = Db::fresh().await;
    for level in ["repeatable read", "serializable"] {
        let level = level.replace(' ', "%5C%20");
        let url = format!("{}?options=-c%20default_transaction_isolation%3D{level}", db.url());
        let stores = [PgStore::new(pool(&url, 4)), PgStore::new(pool(&url, 4))];
        let key = format!("k{}", level.len());
        let mut tasks = JoinSet::new();
        for n in 0..16 {
            let (store, key) = (stores[n % 2].clone(), key.clone());
            tasks.spawn(
                async move { run(&store, claim(&key), async |tx: &mut Tx| effect(tx, &key).await).await },
            );
        }
        let outcomes = tasks.join_all().await;
        assert_eq!(outcomes.into_iter().filter(|o| !o.as_ref().expect("applied").is_replay()).count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_cancelled_while_it_waited_gives_its_connection_back_soon() {
    let db = Db::fresh().await;
    let held = db.store().await.claim(claim("k")).await.expect("claimed");
    let waiting = db.store_of(1);
    waiting.check().await.expect("ready");
    let cancelled = tokio::time::timeout(Duration::from_millis(200), waiting.claim(claim("k"))).await;
    assert!(cancelled.is_err());
    let started = Instant::now();
    run(&waiting, claim("other"), async |_| Ok(())).await.expect("the only connection is free again");
    assert!(started.elapsed() < Duration::from_secs(5), "before the claim wait is over");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_between_begin_and_claim_does_not_let_an_old_message_run() {
    // C29b: by the time of BEGIN the message would be young enough.
    let db = Db::fresh().await;
    let store = db.store().await;
    let second = Duration::from_secs(1);
    let occurred_at = std::time::SystemTime::now() - second / 4;
    let claim = || claim("k").with_retain(Retain::For(second)).with_occurred_at(occurred_at);
    run(&store, claim(), async |tx| effect(tx, "k").await).await.expect("runs");
    // The duplicate has begun, and waits before it inserts; meanwhile the record expires and is swept.
    db.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
         CREATE TRIGGER wait BEFORE INSERT ON idem.inbox FOR EACH STATEMENT EXECUTE FUNCTION wait()",
    )
    .await;
    let mut sweeper = db.pool.begin().await.expect("begun");
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *sweeper).await.expect("locked");
    let late = tokio::spawn({
        // Of another process: who knows that there is a record reads it first.
        let (store, claim) = (db.store().await, claim());
        async move { run(&store, claim, async |tx| effect(tx, "k").await).await }
    });
    idem_testkit::wait::eventually("the duplicate has begun", Duration::from_secs(20), async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                        AND datname = current_database()";
        db.count(waiting).await == 1
    })
    .await;
    idem_testkit::wait::eventually("the record has expired", Duration::from_secs(20), async || {
        db.count("SELECT count(*) FROM idem.inbox WHERE expires_at < clock_timestamp()").await == 1
    })
    .await;
    sqlx::query("DELETE FROM idem.inbox WHERE expires_at < clock_timestamp()")
        .execute(&mut *sweeper)
        .await
        .expect("swept");
    sweeper.commit().await.expect("committed");
    let error = late.await.expect("no panic").expect_err("older than the records prove").idem();
    assert!(matches!(error, Error::BeyondHorizon { .. }), "{error:?}");
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reject_is_at_once_also_about_the_run_of_another_process() {
    // C4
    let db = Db::fresh().await;
    let held = db.store().await.claim(claim("k")).await.expect("claimed");
    let store = db.store().await;
    store.check().await.expect("ready");
    let started = Instant::now();
    let reject = || claim("k").with_concurrent(Concurrent::Reject);
    let error = run(&store, reject(), async |_| Ok(())).await.expect_err("still running").idem();
    assert!(matches!(error, Error::InProgress { .. }), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "not after the claim wait of 10 s");
    store_released(&db, held).await;
    assert!(!run(&store, reject(), async |_| Ok(())).await.expect("runs").is_replay());
}

/// Drops a claim, and waits until the database knows.
async fn store_released(db: &Db, held: Claimed<Tx>) {
    drop(held);
    db.assert_no_open_transaction().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_database_is_no_run_in_progress_for_reject() {
    // C4: only a wait for the first run counts.
    let db = Db::fresh().await;
    db.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END';
         CREATE TRIGGER slow BEFORE INSERT ON idem.inbox FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    .await;
    let store = db.store().await;
    for replay in [false, true] {
        let reject = claim("k").with_concurrent(Concurrent::Reject);
        let outcome = run(&store, reject, async |_| Ok(())).await.expect("nobody else is there");
        assert_eq!(outcome.is_replay(), replay);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_a_person_cancels_is_no_run_in_progress() {
    let db = Db::fresh().await;
    let held = db.store().await.claim(claim("k")).await.expect("claimed");
    let waiting = tokio::spawn({
        let store = db.store().await;
        async move { run(&store, claim("k"), async |_| Ok(())).await }
    });
    let cancel = "SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND datname = current_database()";
    idem_testkit::wait::eventually("the duplicate waits", Duration::from_secs(20), async || {
        db.count(cancel).await == 1
    })
    .await;
    let error = waiting.await.expect("no panic").expect_err("cancelled").idem();
    assert!(matches!(error, Error::Store { retryable: true, .. }), "{error:?}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_pool_is_busy_after_the_claim_wait() {
    let db = Db::fresh().await;
    let store = db.store_of(1);
    let held = store.claim(claim("k")).await.expect("claimed");
    let hurried = store.with_claim_wait(Duration::from_millis(300));
    let started = Instant::now();
    let error = run(&hurried, claim("other"), async |_| Ok(())).await.expect_err("no connection").idem();
    assert!(matches!(error, Error::Busy { .. }) && error.is_retryable(), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serialization_failure_of_the_claim_is_tried_again_until_the_claim_wait_is_over() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE SEQUENCE tries; CREATE SEQUENCE failures;
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN IF nextval(''tries'') <= (SELECT last_value FROM failures) THEN
                  RAISE EXCEPTION USING ERRCODE = ''40001''; END IF; RETURN NEW; END';
         CREATE TRIGGER fail BEFORE INSERT ON idem.inbox FOR EACH ROW EXECUTE FUNCTION fail();
         SELECT setval('failures', 3)",
    )
    .await;
    let store = db.store().await;
    assert!(!run(&store, claim("k"), async |_| Ok(())).await.expect("runs").is_replay());
    assert_eq!(db.count("SELECT last_value FROM tries").await, 4);
    db.execute("SELECT setval('failures', 1000000000)").await;
    let hurried = store.with_claim_wait(Duration::from_millis(300));
    let endless =
        tokio::time::timeout(Duration::from_secs(8), run(&hurried, claim("endless"), async |_| Ok(())));
    let error = endless.await.expect("in time").expect_err("never").idem();
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_that_waited_for_another_one_takes_over_only_if_that_one_failed() {
    // C3, C28: both have read the expired record.
    let db = Db::fresh().await;
    let takeable = || claim("k").with_retain(Retain::For(Duration::from_secs(60))).with_older(Older::Run);
    run(&db.store().await, takeable(), async |_| Ok(0)).await.expect("runs");
    for (first_commits, answer) in [(true, 1), (false, 2)] {
        db.execute(&format!("UPDATE {INBOX} SET expires_at = now() - interval '1 second'")).await;
        let first = db.store().await;
        let Claimed::Fresh(tx) = first.claim(takeable()).await.expect("claimed") else {
            panic!("it has expired")
        };
        let second = tokio::spawn({
            let store = db.store().await;
            async move { run(&store, takeable(), async |_| Ok(2)).await }
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                        AND datname = current_database()";
        idem_testkit::wait::eventually("the second one waits", Duration::from_secs(20), async || {
            db.count(waiting).await == 1
        })
        .await;
        match first_commits {
            true => first.complete(tx, "1".to_owned()).await.expect("committed"),
            false => first.release(tx).await.expect("rolled back"),
        }
        let second = second.await.expect("no panic").expect("answered");
        assert_eq!((second.is_replay(), second.into_inner()), (first_commits, answer));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_takeovers_that_have_judged_the_same_record_one_runs() {
    // C1, C28: a lock of a row stops the update of each, but not the insert and the read before it.
    let db = Db::fresh().await;
    let takeable = || claim("k").with_retain(Retain::For(Duration::from_secs(60))).with_older(Older::Run);
    run(&db.store().await, takeable(), async |_| Ok(())).await.expect("runs");
    db.execute(&format!("UPDATE {INBOX} SET expires_at = now() - interval '1 second'")).await;
    let mut other = db.pool.begin().await.expect("begun");
    sqlx::query("SELECT FROM idem.inbox FOR SHARE").execute(&mut *other).await.expect("locked");
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let store = db.store().await;
        tasks.spawn(async move { run(&store, takeable(), async |tx: &mut Tx| effect(tx, "k").await).await });
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                    AND query LIKE '%INTO idem.inbox%DO UPDATE%' AND datname = current_database()";
    idem_testkit::wait::eventually("both are at the update", Duration::from_secs(8), async || {
        db.count(waiting).await == 2
    })
    .await;
    other.rollback().await.expect("unlocked");
    let outcomes: Vec<_> = tasks.join_all().await.into_iter().map(|o| o.expect("answered")).collect();
    assert_eq!(outcomes.iter().filter(|o| o.is_replay()).count(), 1);
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_own_timeouts_do_not_shorten_the_claim_wait() {
    // C2
    let db = Db::fresh().await;
    let held = db.store().await;
    let Claimed::Fresh(tx) = held.claim(claim("k")).await.expect("claimed") else { panic!("it is fresh") };
    let own = format!("{}?options=-c%20lock_timeout%3D50ms%20-c%20statement_timeout%3D2s", db.url());
    let waiting = tokio::spawn({
        let store = PgStore::new(pool(&own, 1));
        async move { run(&store, claim("k"), async |_| Ok(2)).await }
    });
    let started = Instant::now();
    idem_testkit::wait::eventually("the duplicate waits for longer", Duration::from_secs(20), async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                        AND datname = current_database()";
        db.count(waiting).await == 1 && started.elapsed() > Duration::from_millis(2_500)
    })
    .await;
    held.complete(tx, "1".to_owned()).await.expect("committed");
    let outcome = waiting.await.expect("no panic").expect("replayed");
    assert_eq!((outcome.is_replay(), outcome.into_inner()), (true, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loser_that_waits_in_the_database_runs_when_the_winner_of_another_process_fails() {
    // C3
    let db = Db::fresh().await;
    let winner = db.store().await;
    let Claimed::Fresh(tx) = winner.claim(claim("k")).await.expect("claimed") else { panic!("it is fresh") };
    let loser = tokio::spawn({
        let store = db.store().await;
        async move { run(&store, claim("k"), async |tx: &mut Tx| effect(tx, "k").await).await }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                    AND query LIKE '%INSERT INTO idem.inbox%' AND datname = current_database()";
    idem_testkit::wait::eventually("the loser waits", Duration::from_secs(8), async || {
        db.count(waiting).await == 1
    })
    .await;
    winner.release(tx).await.expect("rolled back");
    assert!(!loser.await.expect("no panic").expect("runs").is_replay());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_this_process_knew_and_that_was_swept_runs_again() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let ran = async |tx: &mut Tx| effect(tx, "k").await;
    assert!(!run(&store, claim("k"), ran).await.expect("runs").is_replay());
    assert!(run(&store, claim("k"), ran).await.expect("known").is_replay());
    db.execute("DELETE FROM idem.inbox").await;
    assert!(!run(&store, claim("k"), ran).await.expect("runs").is_replay());
    // Another process, which knows of nothing.
    let other = db.store().await;
    assert!(run(&other, claim("k"), ran).await.expect("recorded").is_replay());
}
