//! What others do to the table, the session and the pool: triggers, policies, locks, settings, a pooler.

use std::time::Duration;

use idem_runtime::{Claim, Error, Older, PgStore, Retain, Store as _};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::db::{Db, Tx, pool};
use super::race::{apply, effect};
use crate::handler::{Fail, claim, run};

fn takeable(key: &str) -> Claim {
    claim(key).with_retain(Retain::For(Duration::from_secs(3600))).with_older(Older::Run)
}

fn with(db: &Db, options: &str) -> String {
    format!("{}?options={}", db.url(), options.replace(' ', "%20").replace('=', "%3D"))
}

/// `infinity` is what a person writes who wants a record to be kept for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_kept_until_infinity_is_not_run_again() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let body = async |tx: &mut Tx| effect(tx, "k").await;
    run(&store, takeable("k"), body).await.expect("runs");
    db.execute("UPDATE idem.inbox SET expires_at = 'infinity'").await;
    let again = tokio::spawn({
        let store = store.clone();
        async move {
            run(&store, takeable("k"), async |tx: &mut Tx| effect(tx, "k").await).await.map(|o| o.is_replay())
        }
    });
    let again = again.await;
    let effects = db.count("SELECT count(*) FROM effect").await;
    assert!(matches!(again, Ok(Ok(true))) && effects == 1, "{effects} effects, {again:?}");
}

/// The limit of the session ends the insert before the turn of a second is over, so nobody looks at the table.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_is_no_run_in_progress_under_a_short_statement_timeout() {
    let db = Db::fresh().await;
    let store = PgStore::new(pool(&with(&db, "-c statement_timeout=300ms"), 2))
        .with_claim_wait(Duration::from_secs(1));
    store.check().await.expect("ready");
    let mut other = db.pool.begin().await.expect("begun");
    sqlx::query("LOCK TABLE idem.inbox IN ACCESS EXCLUSIVE MODE").execute(&mut *other).await.expect("locked");
    let error = run(&store, claim("k"), async |_| Ok(())).await.expect_err("locked").idem();
    assert!(matches!(error, Error::Store { retryable: true, .. }), "nobody runs: {error:?}");
}

/// The first of two duplicates waits for a connection; no body runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_of_one_that_waits_for_a_connection_is_busy_and_not_in_progress() {
    let db = Db::fresh().await;
    let store = db.store_of(1);
    let held = store.claim(claim("other")).await.expect("claimed");
    let first = tokio::spawn({
        let store = store.clone().with_claim_wait(Duration::from_secs(3));
        async move { run(&store, claim("k"), async |_| Ok(())).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let hurried = store.with_claim_wait(Duration::from_millis(300));
    let error = run(&hurried, claim("k"), async |_| Ok(())).await.expect_err("no connection").idem();
    let first = first.await.expect("no panic").expect_err("no connection").idem();
    assert!(matches!(first, Error::Busy { .. }), "{first:?}");
    assert!(matches!(error, Error::Busy { .. }), "nobody runs `k`: {error:?}");
    drop(held);
}

/// An audit trigger, say, that touches the row which it was called for.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_touches_the_record_does_not_end_the_run() {
    let db = Db::fresh().await;
    db.execute(
        "ALTER TABLE idem.inbox ADD COLUMN note text;
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN UPDATE idem.inbox SET note = ''seen'' WHERE operation = NEW.operation AND scope = NEW.scope
                 AND key = NEW.key; RETURN NULL; END';
         CREATE TRIGGER note AFTER INSERT ON idem.inbox FOR EACH ROW EXECUTE FUNCTION note()",
    )
    .await;
    let outcome = apply(&db.store().await, "k").await;
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// A body that sets how long its own record is kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_updates_its_own_record_is_not_told_that_it_ended_its_transaction() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let outcome = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        sqlx::query("UPDATE idem.inbox SET expires_at = now() + interval '90 days' WHERE key = 'k'")
            .execute(&mut **tx)
            .await?;
        Ok(())
    });
    let outcome = outcome.await;
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// Who does not know the record waits through it.
#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_lock_timeout_does_not_shorten_the_wait_for_a_known_record() {
    let db = Db::fresh().await;
    let mut results = Vec::new();
    for known in [false, true] {
        apply(&db.store().await, "k").await.expect("applied");
        let store = PgStore::new(pool(&with(&db, "-c lock_timeout=50ms"), 1));
        store.check().await.expect("ready");
        if known {
            apply(&store, "k").await.expect("replayed");
        }
        let mut other = db.pool.begin().await.expect("begun");
        sqlx::query("LOCK TABLE idem.inbox IN ACCESS EXCLUSIVE MODE")
            .execute(&mut *other)
            .await
            .expect("locked");
        let late = tokio::spawn(async move { apply(&store, "k").await.map(|o| o.is_replay()) });
        tokio::time::sleep(Duration::from_millis(400)).await;
        other.rollback().await.expect("unlocked");
        results.push(late.await.expect("no panic"));
    }
    assert!(results.iter().all(|r| matches!(r, Ok(true))), "unknown, known: {results:?}");
}

/// `CREATE INDEX` and `REINDEX` lock against writers only: what is known is replayed, until somebody else times out.
#[tokio::test(flavor = "multi_thread")]
async fn a_known_record_is_replayed_while_writers_are_locked_out() {
    let db = Db::fresh().await;
    let store = db.store_of(4).with_claim_wait(Duration::from_millis(500));
    apply(&store, "k").await.expect("applied");
    let mut other = db.pool.begin().await.expect("begun");
    sqlx::query("LOCK TABLE idem.inbox IN SHARE MODE").execute(&mut *other).await.expect("locked");
    assert!(apply(&store, "k").await.expect("a read").is_replay());
    let fresh = apply(&store, "fresh").await.expect_err("locked").idem();
    assert!(fresh.is_retryable(), "{fresh:?}");
    let again = apply(&store, "k").await;
    assert!(again.is_ok(), "it was replayed a moment ago: {again:?}");
}

/// Somebody's raw `BEGIN` with an error after it, on a connection of the shared pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooled_connection_with_an_aborted_transaction_can_be_retried() {
    let db = Db::fresh().await;
    let store = db.store_of(1);
    apply(&store, "warm").await.expect("applied");
    let mut conn = store.pool().acquire().await.expect("acquired");
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await.expect("begun");
    sqlx::raw_sql("SELECT 1/0").execute(&mut *conn).await.expect_err("division by zero");
    drop(conn);
    match apply(&store, "k").await {
        Ok(_) => {}
        Err(error) => {
            let error = error.idem();
            let next = apply(&store, "k").await.map(|o| o.is_replay());
            assert!(error.is_retryable(), "not retryable, but the retry answers {next:?}: {error:?}");
        }
    }
}

/// Row level security that hides a record: nobody runs, and nobody ever will.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_a_policy_hides_is_no_run_in_progress() {
    let db = Db::fresh().await;
    apply(&db.store().await, "k").await.expect("applied");
    let role = format!("r{}", uuid::Uuid::new_v4().simple());
    db.execute(&format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA idem TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idem TO {role};
         GRANT INSERT ON effect TO {role};
         ALTER TABLE idem.inbox ENABLE ROW LEVEL SECURITY;
         CREATE POLICY p ON idem.inbox USING (scope = current_setting('app.scope', true)) WITH CHECK (true)"
    ))
    .await;
    let store =
        PgStore::new(pool(&with(&db, &format!("-c role={role}")), 1)).with_claim_wait(Duration::from_secs(1));
    let error = apply(&store, "k").await.expect_err("hidden").idem();
    db.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    assert!(!matches!(error, Error::InProgress { .. }), "nobody runs: {error:?}");
}

/// Behind a pooler that does not know prepared statements nothing may have a name.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_statement_cache_no_statement_stays_in_the_session() {
    let db = Db::fresh().await;
    let held = db.store().await.claim(claim("k")).await.expect("claimed");
    let options: PgConnectOptions = with(&db, "-c statement_timeout=200ms").parse().expect("valid");
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options.statement_cache_capacity(0));
    let store = PgStore::new(pool).with_claim_wait(Duration::from_millis(500));
    let error = run(&store, claim("k"), async |_| Ok(())).await.expect_err("running").idem();
    assert!(matches!(error, Error::InProgress { .. }), "{error:?}");
    let named: Vec<String> =
        sqlx::query_scalar("SELECT statement FROM pg_prepared_statements WHERE name <> ''")
            .persistent(false)
            .fetch_all(store.pool())
            .await
            .expect("asked");
    drop(held);
    assert!(named.is_empty(), "{named:?}");
}

/// As the README says for a pooler that does not know prepared statements: no cache.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_statement_cache_a_claim_works() {
    let db = Db::fresh().await;
    let options: PgConnectOptions = db.url().parse().expect("valid");
    let store = PgStore::new(
        PgPoolOptions::new().max_connections(1).connect_lazy_with(options.statement_cache_capacity(0)),
    );
    let mut results = Vec::new();
    for n in 0..4 {
        let outcome = run(&store, claim(&format!("k{n}")), async |tx: &mut Tx| {
            sqlx::query("INSERT INTO effect (key) VALUES ('k')").persistent(false).execute(&mut **tx).await?;
            Ok(())
        });
        results.push(outcome.await.map(|o| o.is_replay()));
    }
    assert!(results.iter().all(|r| matches!(r, Ok(false))), "{results:?}");
}

/// A trigger that refuses a row in silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_a_trigger_swallows_is_no_run_in_progress() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER swallow BEFORE INSERT ON idem.inbox FOR EACH ROW EXECUTE FUNCTION swallow()",
    )
    .await;
    let store = db.store().await.with_claim_wait(Duration::from_millis(500));
    let error = apply(&store, "k").await.expect_err("swallowed").idem();
    assert!(!matches!(error, Error::InProgress { .. }), "nobody runs, and nobody ever will: {error:?}");
}

/// In Postgres 0 means no timeout; here it is 1 ms.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_timeout_of_zero_does_not_end_every_run() {
    let db = Db::fresh().await;
    let store = db.store().await.with_idle_timeout(Duration::ZERO);
    let outcome = run(&store, claim("k"), async |_: &mut Tx| {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    })
    .await;
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// `outcome_until` likewise.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_is_kept_until_infinity_is_given() {
    let db = Db::fresh().await;
    let store = db.store().await;
    apply(&store, "k").await.expect("applied");
    db.execute("UPDATE idem.inbox SET outcome_until = 'infinity'").await;
    let again = tokio::spawn(async move { apply(&store, "k").await.map(|o| o.is_replay()) }).await;
    assert!(matches!(again, Ok(Ok(true))), "{again:?}");
}

/// A takeover that is dropped at each poll: whole, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_that_is_dropped_at_each_poll_and_wake_is_whole_or_not_at_all() {
    use idem_testkit::cancel::{drop_at_poll, drop_at_wake};
    let db = Db::fresh().await;
    for known in [true, false] {
        for n in 1..24 {
            for wake in [false, true] {
                let key = format!("{known}{n}{wake}");
                let store = db.store_of(1);
                store.check().await.expect("ready");
                let first = if known { store.clone() } else { db.store_of(1) };
                let body = async |tx: &mut Tx| effect(tx, &key).await;
                run(&first, takeable(&key), body).await.expect("runs");
                db.execute(&format!(
                    "UPDATE idem.inbox SET expires_at = now() - interval '1 s' WHERE key = '{key}'"
                ))
                .await;
                let call = run(&store, takeable(&key), body);
                match wake {
                    false => drop(drop_at_poll(n, call).await),
                    true => drop(drop_at_wake(n, call).await),
                }
                run(&store, takeable(&key), body).await.expect("runs or replays");
                let effects = db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await;
                assert_eq!(effects, 2, "{key}");
                let own: String = sqlx::query_scalar("SELECT current_setting('lock_timeout')")
                    .fetch_one(store.pool())
                    .await
                    .expect("asked");
                assert_eq!(own, "0");
                store.pool().close().await;
                first.pool().close().await;
            }
        }
    }
}

/// An inbox in partitions: `ctid` is not unique over them.
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_in_partitions_works_though_a_place_in_it_is_not_unique() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE TABLE idem.parts (LIKE idem.inbox INCLUDING DEFAULTS, PRIMARY KEY (operation, scope, key)) PARTITION BY HASH (key);
         DROP TABLE idem.inbox; ALTER TABLE idem.parts RENAME TO inbox;
         CREATE TABLE idem.p0 PARTITION OF idem.inbox FOR VALUES WITH (MODULUS 2, REMAINDER 0);
         CREATE TABLE idem.p1 PARTITION OF idem.inbox FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    )
    .await;
    let store = db.store().await;
    for replay in [false, true] {
        for n in 0..10 {
            let outcome =
                run(&store, takeable(&format!("k{n}")), async |tx: &mut Tx| effect(tx, "k").await).await;
            assert_eq!(outcome.expect("runs").is_replay(), replay);
        }
    }
    db.execute("UPDATE idem.inbox SET expires_at = now() - interval '1 s'").await;
    for n in 0..10 {
        let outcome =
            run(&store, takeable(&format!("k{n}")), async |tx: &mut Tx| effect(tx, "k").await).await;
        assert!(!outcome.expect("runs").is_replay());
    }
}

/// The settings of a pool's session after each kind of end, cancelled or not.
#[tokio::test(flavor = "multi_thread")]
async fn no_setting_of_the_session_is_left_changed() {
    let db = Db::fresh().await;
    let url = with(
        &db,
        "-c lock_timeout=1234ms -c synchronous_commit=off -c idle_in_transaction_session_timeout=90s",
    );
    let store = PgStore::new(pool(&url, 1)).with_claim_wait(Duration::from_millis(1500));
    let names =
        ["lock_timeout", "statement_timeout", "synchronous_commit", "idle_in_transaction_session_timeout"];
    let held = db.store().await.claim(claim("held")).await.expect("claimed");
    for n in 0..6 {
        match n {
            0 => drop(apply(&store, "k").await.expect("runs")),
            1 => drop(apply(&store, "k").await.expect("replays")),
            2 => drop(run::<_, (), _>(&store, claim("f"), async |_| Err(Fail::Told)).await),
            3 => drop(apply(&store, "held").await.expect_err("in progress")),
            4 => drop(tokio::time::timeout(Duration::from_millis(200), apply(&store, "held")).await),
            _ => drop(store.claim(claim("dropped")).await.expect("claimed")),
        }
        let mut seen = Vec::<String>::new();
        for name in names {
            let sql = sqlx::AssertSqlSafe(format!("SELECT current_setting('{name}')"));
            seen.push(sqlx::query_scalar(sql).fetch_one(store.pool()).await.expect("asked"));
        }
        assert_eq!(seen, ["1234ms", "0", "off", "90s"], "{n}");
    }
    drop(held);
}
