//! More callers than the writer has room for: nobody is starved, and nothing piles up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::Store as _;
use idem_testkit::process::{self, Victim};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::task::JoinSet;

use super::db::Db;
use super::race::apply;
use crate::handler::claim;

/// Another process holds the file for longer than callers wait.
#[test]
fn cancelled_waiters_do_not_pile_up_in_the_process() {
    // In a process of its own: it counts the threads of the whole process.
    if process::role().is_none() {
        let mut alone =
            process::this_test("sqlite::overload::cancelled_waiters_do_not_pile_up_in_the_process", "alone")
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
