//! On SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::{Error, Outcome, SqliteStore, SqliteTx, Store as _};
use idem_testkit::process::{self, Victim};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::task::JoinSet;

use crate::handler::{Fail, claim, run};
use crate::lite::Db;

async fn effect(tx: &mut SqliteTx, key: &str) -> Result<(), Fail> {
    sqlx::query("INSERT INTO effect (key) VALUES ($1)").bind(key.to_owned()).execute(&mut **tx).await?;
    Ok(())
}

async fn apply(store: &SqliteStore, key: &str) -> Result<Outcome<()>, Fail> {
    run(store, claim(key), async |tx| effect(tx, key).await).await
}

/// The claim wait is one deadline over all, also over the readers.
#[tokio::test(flavor = "multi_thread")]
async fn the_claim_wait_holds_where_the_readers_are_in_use() {
    let db = Db::fresh().await;
    let store = db.store().await.with_claim_wait(Duration::from_millis(300));
    store.check().await.expect("ok");
    apply(&store, "first").await.expect("ok");
    let held = store.claim(claim("held")).await.expect("claimed");
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(store.readers().acquire().await.expect("a reader"));
    }
    let started = Instant::now();
    let r = tokio::time::timeout(Duration::from_secs(5), store.claim(claim("k"))).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{r:?} after {:?}", started.elapsed());
    drop(held);
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

/// Another process holds the file for longer than callers wait.
#[test]
fn cancelled_waiters_do_not_pile_up_in_the_process() {
    // In a process of its own: it counts the threads of the whole process.
    if process::role().is_none() {
        let mut alone =
            process::this_test("sqlite::cancelled_waiters_do_not_pile_up_in_the_process", "alone")
                .expect("own path");
        let mut alone = Victim::spawn(&mut alone).expect("started");
        assert!(alone.ended_within(Duration::from_secs(90)).expect("it ends").success());
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    runtime.block_on(wait_and_be_cancelled());
}

async fn wait_and_be_cancelled() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let mut other = SqliteConnectOptions::new().filename(db.url()).connect().await.expect("opened");
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.expect("begun");
    let threads = || std::fs::read_dir("/proc/self/task").expect("linux").count();
    let fds = || std::fs::read_dir("/proc/self/fd").expect("linux").count();
    let (t0, f0) = (threads(), fds());
    let (mut most, mut most_f) = (0, 0);
    let until = Instant::now() + Duration::from_secs(8);
    let mut n = 0;
    while Instant::now() < until {
        n += 1;
        let _ = tokio::time::timeout(Duration::from_millis(50), store.claim(claim(&format!("k{n}")))).await;
        most = most.max(threads().saturating_sub(t0));
        most_f = most_f.max(fds().saturating_sub(f0));
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.expect("ended");
    let started = Instant::now();
    apply(&store, "free").await.expect("runs");
    eprintln!("{n} calls: threads +{most}, files +{most_f}; then free in {:?}", started.elapsed());
    assert!(most <= 6, "threads +{most}, files +{most_f}");
}

/// Random time-outs, duplicates, two stores on one file.
#[tokio::test(flavor = "multi_thread")]
async fn storm() {
    let db = Db::fresh().await;
    let stores = [db.store().await, db.store().await];
    let until = Instant::now() + Duration::from_secs(12);
    let ok = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
    let mut tasks = JoinSet::new();
    for worker in 0..24u64 {
        let (stores, ok) = (stores.clone(), ok.clone());
        tasks.spawn(async move {
            let mut x = worker.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut calls = 0u64;
            while Instant::now() < until {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let key = format!("s{}", x % 997);
                let wait = Duration::from_micros(x % 6000);
                let how = x % 13;
                let store = &stores[(x >> 20) as usize % 2];
                calls += 1;
                let call = run(store, claim(&key), async |tx: &mut SqliteTx| {
                    effect(tx, &key).await?;
                    match how {
                        0 => return Err(Fail::Told),
                        1 => {
                            let sp = tx.begin().await?;
                            drop(sp);
                        }
                        2 => {
                            let mut sp = tx.begin().await?;
                            effect(&mut sp, "sp").await?;
                            sp.rollback().await?;
                        }
                        3 => {
                            drop(tokio::time::timeout(Duration::from_micros(50), tx.begin()).await);
                        }
                        4 => {
                            drop(
                                tokio::time::timeout(
                                    Duration::from_micros(50),
                                    sqlx::query("INSERT INTO effect (key) SELECT 'late' WHERE 0")
                                        .execute(&mut **tx),
                                )
                                .await,
                            );
                        }
                        5 => {
                            let _ = sqlx::query("INSERT OR ROLLBACK INTO named VALUES ('n'), ('n')")
                                .execute(&mut **tx)
                                .await;
                            let conn = &mut **tx;
                            let _ =
                                sqlx::query("INSERT INTO effect (key) VALUES ('stray')").execute(conn).await;
                        }
                        6 => {
                            let _ = sqlx::raw_sql("COMMIT; INSERT INTO effect (key) VALUES ('stray')")
                                .execute(&mut **tx)
                                .await;
                        }
                        8 => {
                            let conn = &mut **tx;
                            drop(idem_testkit::cancel::drop_at_poll(1, conn.begin()).await);
                            let _ =
                                sqlx::query("INSERT INTO effect (key) VALUES ('stray')").execute(conn).await;
                            return Err(Fail::Told);
                        }
                        _ => {}
                    }
                    Ok(())
                });
                match if how == 7 { Ok(call.await) } else { tokio::time::timeout(wait, call).await } {
                    Ok(Ok(_)) => {
                        ok.lock().expect("no panic").insert(key);
                    }
                    Ok(Err(Fail::Idem(e)))
                        if !e.is_retryable() && !matches!(e, Error::TransactionEnded { .. }) =>
                    {
                        panic!("{key} {how}: {e:?}")
                    }
                    _ => {}
                }
            }
            calls
        });
    }
    let calls: u64 = tasks.join_all().await.into_iter().sum();
    // Whoever had begun to commit has the file until it is done.
    db.assert_no_open_transaction().await;
    let answered = ok.lock().expect("ok").clone();
    let keys: Vec<String> =
        sqlx::query_scalar("SELECT key FROM effect").fetch_all(&db.pool).await.expect("read");
    let distinct: std::collections::HashSet<_> = keys.iter().cloned().collect();
    let records = db.count("SELECT count(*) FROM idem_inbox").await;
    eprintln!(
        "{calls} calls, answered {}, effects {}, distinct {}, records {records}",
        answered.len(),
        keys.len(),
        distinct.len()
    );
    assert!(
        keys.len() == distinct.len() && records as usize == distinct.len() && answered.is_subset(&distinct)
    );
    apply(&stores[0], "last").await.expect("still works");
    apply(&stores[1], "last1").await.expect("still works");
    db.assert_no_open_transaction().await;
}

/// Callers that time out: what gets through.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_time_out_under_overload_do_not_starve_the_rest() {
    let db = Db::fresh().await;
    let store = db.store().await;
    store.check().await.expect("ok");
    let until = Instant::now() + Duration::from_secs(4);
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    static N: AtomicU64 = AtomicU64::new(0);
    for _ in 0..200 {
        let (store, done) = (store.clone(), done.clone());
        tasks.spawn(async move {
            while Instant::now() < until {
                let key = format!("o{}", N.fetch_add(1, Ordering::Relaxed));
                let ok = tokio::time::timeout(Duration::from_millis(30), apply(&store, &key))
                    .await
                    .is_ok_and(|r| r.is_ok());
                done.fetch_add(u64::from(ok), Ordering::Relaxed);
            }
        });
    }
    tasks.join_all().await;
    let done = done.load(Ordering::Relaxed);
    assert!(done > 100, "{done} calls got through in 4 s");
}
