//! The unique index is built anew while runs depend on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::db::Db;
use super::race::apply;

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
