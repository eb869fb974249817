//! Everything at once, at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::PgTx;
use idem_testkit::wait::eventually;
use tokio::task::JoinSet;

use super::db::Db;
use super::race::{apply, effect};
use crate::handler::{Fail, claim, run};

/// Everything at once: random time-outs, duplicates, two stores, terminated backends.
#[tokio::test(flavor = "multi_thread")]
async fn timeouts_duplicates_and_ended_sessions_at_random_leave_each_key_applied_once() {
    let db = Db::fresh().await;
    let stores = [db.store_of(3), db.store_of(1)];
    let until = Instant::now() + Duration::from_secs(15);
    let killer = tokio::spawn({
        let pool = db.pool.clone();
        async move {
            let mut n = 0u64;
            while Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(60)).await;
                n += 1;
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'keep' ORDER BY random() LIMIT 1";
                let _ = sqlx::raw_sql(sql).execute(&pool).await;
            }
            n
        }
    });
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
                let how = x % 11;
                let store = &stores[(x >> 20) as usize % 2];
                calls += 1;
                let call = run(store, claim(&key), async |tx: &mut PgTx| {
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
                            drop(tokio::time::timeout(Duration::from_micros(300), tx.begin()).await);
                        }
                        4 => {
                            drop(
                                tokio::time::timeout(
                                    Duration::from_micros(300),
                                    sqlx::query("SELECT pg_sleep(0.002)").execute(&mut **tx),
                                )
                                .await,
                            );
                        }
                        5 => {
                            tokio::task::block_in_place(|| std::thread::sleep(Duration::from_micros(300)));
                        }
                        _ => {}
                    }
                    Ok(())
                });
                match if how == 7 { Ok(call.await) } else { tokio::time::timeout(wait, call).await } {
                    Ok(Ok(_)) => {
                        ok.lock().expect("no panic").insert(key);
                    }
                    Ok(Err(Fail::Idem(e))) if !e.is_retryable() => panic!("{key} {how}: {e:?}"),
                    _ => {}
                }
            }
            calls
        });
    }
    let calls: u64 = tasks.join_all().await.into_iter().sum();
    let kills = killer.await.expect("ok");
    let db2 = sqlx::PgPool::connect(db.url()).await.expect("again");
    let count =
        async |sql: &'static str| sqlx::query_scalar::<_, i64>(sql).fetch_one(&db2).await.expect("counted");
    eventually("what was cancelled has come to its end", Duration::from_secs(30), async || {
        count(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                AND pid <> pg_backend_pid() AND state <> 'idle'",
        )
        .await
            == 0
    })
    .await;
    let answered = ok.lock().expect("ok").clone();
    let keys: Vec<String> = sqlx::query_scalar("SELECT key FROM effect").fetch_all(&db2).await.expect("read");
    let distinct: std::collections::HashSet<_> = keys.iter().cloned().collect();
    let records = count("SELECT count(*) FROM idem.inbox").await;
    let open = count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'").await;
    eprintln!(
        "{calls} calls, {kills} kills, answered {}, effects {}, distinct {}, records {records}, open {open}, {:?}",
        answered.len(),
        keys.len(),
        distinct.len(),
        stores[0].pool()
    );
    assert!(
        keys.len() == distinct.len()
            && records as usize == distinct.len()
            && answered.is_subset(&distinct)
            && open == 0
    );
    for store in &stores {
        // A connection in the pool may have been terminated.
        let mut tries = 0;
        while let Err(error) = apply(store, "last").await {
            tries += 1;
            assert!(error.idem().is_retryable() && tries < 5);
        }
    }
}

/// REINDEX CONCURRENTLY of the primary key under duplicates of two processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_reindex_leaks_no_unique_violation() {
    let db = Db::fresh().await;
    let stores = [db.store().await, db.store().await];
    let stop = Arc::new(AtomicBool::new(false));
    let reindex = tokio::spawn({
        let (pool, stop) = (db.pool.clone(), stop.clone());
        async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                sqlx::raw_sql("REINDEX INDEX CONCURRENTLY idem.inbox_pkey")
                    .execute(&pool)
                    .await
                    .expect("reindexed");
                n += 1;
            }
            n
        }
    });
    let mut wrong = Vec::new();
    let until = Instant::now() + Duration::from_secs(15);
    let mut rounds = 0;
    while Instant::now() < until {
        rounds += 1;
        let calls = (0..12).map(|n| {
            let (store, key) = (stores[n % 2].clone(), format!("r{rounds}-{}", n / 4));
            tokio::spawn(async move { apply(&store, &key).await })
        });
        for r in futures_util::future::join_all(calls).await {
            if let Err(e) = r.expect("no panic") {
                wrong.push(e.to_string());
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let reindexed = reindex.await.expect("ok");
    let double =
        db.count("SELECT count(*) FROM (SELECT key FROM effect GROUP BY key HAVING count(*) > 1) x").await;
    assert!(
        wrong.is_empty() && double == 0,
        "{rounds} rounds, {reindexed} reindexed: {double} double; {} errors, {:?}",
        wrong.len(),
        wrong.first()
    );
}
