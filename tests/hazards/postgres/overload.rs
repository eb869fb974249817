//! More callers than the pool or the server has room for: nobody is starved, and nothing piles up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::{Concurrent, Error, PgStore, Store as _};
use idem_testkit::postgres::Postgres;
use tokio::task::JoinSet;

use super::db::{Db, pool};
use super::race::apply;
use crate::handler::{claim, run};

/// `concurrent = reject`: nobody else runs the key, but the pool was busy for longer than the short wait, and the
/// insert takes a few milliseconds.
#[tokio::test(flavor = "multi_thread")]
async fn reject_is_not_in_progress_because_the_pool_was_busy() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.004); RETURN NEW; END';
         CREATE TRIGGER slow BEFORE INSERT ON idem.inbox FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    .await;
    let store = db.store_of(1);
    apply(&store, "first").await.expect("ready");
    let in_use = store.pool().acquire().await.expect("the only one");
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { run(&store, claim("k").with_concurrent(Concurrent::Reject), async |_| Ok(())).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(in_use);
    waiting.await.expect("no panic").expect("nobody else runs it");
}

/// Callers that time out on a pool that is in use do not open connections beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pool_opens_no_connections_beside_it() {
    let db = Db::fresh().await;
    let server = Postgres::builder().fsync(false).setting("log_connections", "on").start().expect("server");
    let store = PgStore::new(pool(&server.url("postgres"), 2)).with_claim_wait(Duration::from_millis(300));
    store.migrate().await.expect("migrated");
    store.check().await.expect("ok");
    let before = server.log().matches("connection authorized").count();
    let _a = store.claim(claim("a")).await.expect("claimed");
    let _b = store.claim(claim("b")).await.expect("claimed");
    let mut tasks = JoinSet::new();
    for n in 0..400 {
        let store = store.clone();
        tasks.spawn(async move { store.claim(claim(&format!("k{n}"))).await.map(drop) });
    }
    let errors: Vec<_> = tasks.join_all().await.into_iter().filter_map(Result::err).collect();
    let busy = errors.iter().filter(|e| matches!(e, Error::Busy { .. })).count();
    let log = server.log();
    let opened = log.matches("connection authorized").count() - before;
    let refused = log.matches("too many clients").count() + log.matches("remaining connection slots").count();
    let other = errors.iter().find(|e| !matches!(e, Error::Busy { .. })).map(|e| e.to_string());
    drop(db);
    assert!(
        opened <= 8 && refused == 0,
        "opened {opened} beside the pool of 2, refused {refused}, busy {busy}, {other:?}"
    );
}

/// Cancelled claims that wait for another process leave the server alone soon.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiters_do_not_pile_up_on_the_server() {
    let db = Db::fresh().await;
    let holder = db.store().await;
    let mut held = Vec::new();
    for n in 0..4 {
        held.push(holder.claim(claim(&format!("k{n}"))).await.expect("claimed"));
    }
    let store = db.store_of(4);
    store.check().await.expect("ok");
    let mut most = 0;
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        let calls = (0..4).map(|n| {
            let store = store.clone();
            async move {
                tokio::time::timeout(Duration::from_millis(50), store.claim(claim(&format!("k{n}"))))
                    .await
                    .is_ok()
            }
        });
        futures_util::future::join_all(calls).await;
        most = most.max(db.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").await);
    }
    assert!(most <= 8, "{most} sessions of a pool of 4 wait on the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_were_cancelled_while_the_table_is_locked_do_not_pile_up_in_the_server() {
    let db = Db::fresh().await;
    let store = db.store_of(1);
    store.check().await.expect("ready");
    let mut other = db.pool.begin().await.expect("begun");
    sqlx::query("LOCK TABLE idem.inbox IN ACCESS EXCLUSIVE MODE").execute(&mut *other).await.expect("locked");
    for n in 0..5 {
        let key = format!("k{n}");
        let cancelled = tokio::time::timeout(Duration::from_millis(100), store.claim(claim(&key))).await;
        assert!(cancelled.is_err(), "the table is locked");
        idem_testkit::wait::eventually("the claim is given up", Duration::from_secs(20), async || {
            store.pool().num_idle() == store.pool().size() as usize
        })
        .await;
    }
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'idem.inbox'::regclass AND NOT granted";
    assert!(db.count(waiting).await <= 1, "only the first one waits for the table, the others know");
    other.rollback().await.expect("rolled back");
    run(&store, claim("k"), async |_| Ok(())).await.expect("runs");
    run(&store, claim("l"), async |_| Ok(())).await.expect("runs");
}

/// Timeouts of callers under overload: what still gets through.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_time_out_under_overload_do_not_starve_the_rest() {
    let db = Db::fresh().await;
    let goodput = |shielded: bool| {
        let url = db.url().to_owned();
        async move {
            let pool = pool(&url, 2);
            let store = PgStore::new(pool.clone());
            store.check().await.expect("ok");
            let until = Instant::now() + Duration::from_secs(4);
            let done = Arc::new(AtomicU64::new(0));
            let mut tasks = JoinSet::new();
            static N: AtomicU64 = AtomicU64::new(0);
            for _ in 0..200 {
                let (store, done, pool) = (store.clone(), done.clone(), pool.clone());
                tasks.spawn(async move {
                    while Instant::now() < until {
                        let key = format!("o{}", N.fetch_add(1, Ordering::Relaxed));
                        let ok = if shielded {
                            tokio::time::timeout(Duration::from_millis(30), apply(&store, &key))
                                .await
                                .is_ok_and(|r| r.is_ok())
                        } else {
                            let bare = async {
                                let mut tx = pool.begin().await?;
                                sqlx::query("INSERT INTO named VALUES ($1)")
                                    .bind(&key)
                                    .execute(&mut *tx)
                                    .await?;
                                sqlx::query("INSERT INTO effect (key) VALUES ($1)")
                                    .bind(&key)
                                    .execute(&mut *tx)
                                    .await?;
                                tx.commit().await
                            };
                            tokio::time::timeout(Duration::from_millis(30), bare)
                                .await
                                .is_ok_and(|r: Result<(), sqlx::Error>| r.is_ok())
                        };
                        done.fetch_add(u64::from(ok), Ordering::Relaxed);
                    }
                });
            }
            tasks.join_all().await;
            done.load(Ordering::Relaxed)
        }
    };
    let bare = goodput(false).await;
    let ours = goodput(true).await;
    assert!(ours * 10 > bare, "{ours} calls got through, in a bare transaction {bare}");
}
