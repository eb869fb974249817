//! The session as the body finds it, the pool, and what only Postgres can do to a run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use idem_runtime::{
    Claim, Claimed, Concurrent, Error, Identity, Older, PgStore, Retain, Store as _, Verified,
};
use idem_testkit::cancel::{drop_at_poll, drop_at_wake};
use idem_testkit::postgres::Postgres;
use sqlx::AssertSqlSafe;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::db::{Db, INBOX, Tx, pool};
use super::race::effect;
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
async fn rights_and_the_unique_key_are_checked() {
    let db = Db::fresh().await;
    let role = format!("limited_{}", uuid::Uuid::new_v4().simple());
    db.execute(&format!("CREATE ROLE {role} LOGIN; GRANT CONNECT ON DATABASE {} TO {role}", database(&db)))
        .await;
    let url = {
        let rest = db.url().split_once('@').expect("a user in the url").1;
        format!("postgres://{role}@{rest}")
    };
    let store = PgStore::new(pool(&url, 1));
    let grants =
        ["USAGE ON SCHEMA idem", "SELECT ON idem.migration", "SELECT, INSERT, UPDATE, DELETE ON idem.inbox"];
    for grant in grants {
        let error = store.check().await.expect_err("no rights").to_string();
        assert!(error.contains(grant), "{error}");
        db.execute(&format!("GRANT {grant} TO {role}")).await;
    }
    store.check().await.expect("enough rights");
    for right in ["SELECT", "INSERT", "UPDATE"] {
        db.execute(&format!("REVOKE {right} ON idem.inbox FROM {role}")).await;
        let error = store.check().await.expect_err(right).to_string();
        assert!(error.contains("ON idem.inbox"), "{error}");
        db.execute(&format!("GRANT {right} ON idem.inbox TO {role}")).await;
    }
    run(&store, claim("k"), async |_| Ok(())).await.expect("runs");
    let error = store.migrate().await;
    error.expect("nothing to do, with the rights that a handler has");
    db.execute("ALTER TABLE idem.inbox DROP CONSTRAINT inbox_pkey").await;
    let error = db.store().await.check().await.expect_err("no key").to_string();
    assert!(error.contains("ADD PRIMARY KEY (operation, scope, key)"), "{error}");
    db.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

fn database(db: &Db) -> String {
    db.url().rsplit('/').next().expect("a name").split('?').next().expect("a name").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_a_typed_error_that_can_be_retried() {
    let refused = PgStore::connect("postgres://nobody@127.0.0.1:1/none").await.expect_err("refused");
    assert!(matches!(refused, Error::Store { retryable: true, .. }), "{refused:?}");
    let invalid = PgStore::connect("mysql://nobody@127.0.0.1/none").await.expect_err("no such url");
    assert!(!invalid.is_retryable(), "{invalid:?}");
    // A store on a pool that is not connected yet.
    let lazy = PgStore::new(pool("postgres://nobody@127.0.0.1:1/none", 1))
        .with_claim_wait(Duration::from_millis(300));
    let error = run(&lazy, claim("k"), async |_| Ok(())).await.expect_err("refused").idem();
    assert!(error.is_retryable() && error.to_string().contains("refused"), "{error:?}");
    // One whose connections are all in use is busy.
    let db = Db::fresh().await;
    let store = db.store_of(1).with_claim_wait(Duration::from_millis(300));
    store.check().await.expect("ready");
    let _in_use = store.pool().acquire().await.expect("the only one");
    let error = run(&store, claim("k"), async |_| Ok(())).await.expect_err("in use").idem();
    assert!(matches!(error, Error::Busy { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_a_typed_error_within_the_connect_timeout() {
    // It accepts the connection, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = silent.local_addr().expect("bound").port();
    let started = Instant::now();
    let error =
        PgStore::connect(&format!("postgres://nobody@127.0.0.1:{port}/none")).await.expect_err("no answer");
    assert!(error.is_retryable() && error.to_string().contains("127.0.0.1"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_a_typed_error_that_can_be_retried() {
    let server = Postgres::builder().fsync(false).start().expect("a server of its own");
    let error =
        PgStore::connect(&server.password_url("wrong", "postgres")).await.expect_err("wrong password");
    assert!(error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("password"), "{error}");
    PgStore::connect(&server.password_url("correct", "postgres")).await.expect("the right one");
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
        let (store, claim) = (store.clone(), claim());
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

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_does_not_decide_who_runs_is_no_unique_key() {
    let db = Db::fresh().await;
    db.execute("ALTER TABLE idem.inbox DROP CONSTRAINT inbox_pkey").await;
    for index in [
        "CREATE INDEX other ON idem.inbox (operation, scope, key)",
        "CREATE UNIQUE INDEX other ON idem.inbox (operation, scope)",
        "CREATE UNIQUE INDEX other ON idem.inbox (operation, scope, key, claim_token)",
        "CREATE UNIQUE INDEX other ON idem.inbox (operation, scope, key) WHERE expires_at IS NULL",
        "ALTER TABLE idem.inbox ADD CONSTRAINT other UNIQUE (operation, scope, key) DEFERRABLE",
        "CREATE UNIQUE INDEX other ON idem.inbox (operation, scope, key);
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idem.other'::regclass",
    ] {
        db.execute(index).await;
        let error = db.store().await.check().await.expect_err(index).to_string();
        assert!(error.contains("ADD PRIMARY KEY (operation, scope, key)"), "{index}: {error}");
        db.execute("ALTER TABLE idem.inbox DROP CONSTRAINT IF EXISTS other; DROP INDEX IF EXISTS idem.other")
            .await;
    }
    db.execute("CREATE UNIQUE INDEX other ON idem.inbox (key, operation, scope)").await;
    db.store().await.check().await.expect("any order of the columns will do");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_leaves_no_warning_in_the_servers_log() {
    let server = Postgres::builder().fsync(false).start().expect("a server of its own");
    let store = PgStore::new(pool(&server.url("postgres"), 1));
    store.migrate().await.expect("migrated");
    for replay in [false, true] {
        assert_eq!(run(&store, claim("k"), async |_| Ok(())).await.expect("runs").is_replay(), replay);
    }
    store.pool().close().await;
    let log = server.log();
    assert!(!log.contains("WARNING"), "{log}");
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
                    AND query LIKE '%UPDATE idem.inbox%' AND datname = current_database()";
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
async fn what_may_succeed_later_is_retryable_and_nothing_else_is() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE TABLE raised (code text);
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN RAISE EXCEPTION USING ERRCODE = (SELECT code FROM raised); END';
         CREATE TRIGGER fail BEFORE INSERT ON idem.inbox FOR EACH ROW EXECUTE FUNCTION fail()",
    )
    .await;
    let store = db.store().await;
    for (code, expected) in [
        ("08006", true),
        ("28000", true),
        ("53100", true),
        ("57P03", true),
        ("58030", true),
        ("55P03", true),
        ("25006", true),
        ("23514", false),
        ("42501", false),
        ("XX001", false),
    ] {
        db.execute(&format!("DELETE FROM raised; INSERT INTO raised VALUES ('{code}')")).await;
        let error = run(&store, claim(code), async |_| Ok(())).await.expect_err(code).idem();
        assert!(matches!(error, Error::Store { retryable, .. } if retryable == expected), "{error:?}");
    }
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
