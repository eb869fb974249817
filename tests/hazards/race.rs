//! Many deliveries at once: one runs, all get its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::{Concurrent, Error, Outcome, Store as _};
use tokio::sync::{Barrier, Semaphore, oneshot};
use tokio::task::JoinSet;

use super::db::{Db, Store, Tx};
use crate::handler::{Fail, claim, fingerprint, identity, run};

/// Writes an effect and answers how many this process has written.
pub async fn effect(tx: &mut Tx, key: &str) -> Result<(), Fail> {
    sqlx::query("INSERT INTO effect (key) VALUES ($1)").bind(key.to_owned()).execute(&mut **tx).await?;
    Ok(())
}

pub async fn apply(store: &Store, key: &str) -> Result<Outcome<String>, Fail> {
    run(store, claim(key), async |tx| {
        effect(tx, key).await?;
        Ok(format!("applied {key}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_once_run_the_body_once_and_get_one_outcome() {
    // C1: in one process and over two stores, as two processes have them.
    let db = Db::fresh().await;
    for stores in [vec![db.store().await], vec![db.store().await, db.store().await]] {
        let key = format!("k{}", stores.len());
        let barrier = Arc::new(Barrier::new(50));
        let mut tasks = JoinSet::new();
        for n in 0..50 {
            let (store, barrier, key) = (stores[n % stores.len()].clone(), Arc::clone(&barrier), key.clone());
            tasks.spawn(async move {
                barrier.wait().await;
                apply(&store, &key).await
            });
        }
        let outcomes: Vec<_> =
            tasks.join_all().await.into_iter().map(|r| r.expect("no error leaks out")).collect();
        assert_eq!(outcomes.iter().filter(|o| o.is_replay()).count(), 49);
        assert!(outcomes.into_iter().all(|o| o.into_inner() == format!("applied {key}")));
        assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 1);
    }
    db.assert_no_open_transaction().await;
}

/// A body that says when it runs, and waits until it may go on.
async fn held(
    store: Store,
    key: &'static str,
    started: oneshot::Sender<()>,
    go_on: oneshot::Receiver<Result<(), Fail>>,
) -> Result<Outcome<u32>, Fail> {
    run(&store, claim(key), async |tx: &mut Tx| {
        effect(tx, key).await?;
        started.send(()).expect("the test waits");
        go_on.await.expect("the test decides")?;
        Ok(7)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loser_replays_when_the_winner_commits_while_it_waits() {
    // C2, C25: the same store, and another one whose insert waits in the database.
    for other_process in [false, true] {
        let db = Db::fresh().await;
        let store = db.store().await;
        let losing = if other_process { db.store().await } else { store.clone() };
        let ((started, is_running), (go, go_on)) = (oneshot::channel(), oneshot::channel());
        let winner = tokio::spawn(held(store, "k", started, go_on));
        is_running.await.expect("runs");
        let mut same = tokio::spawn({
            let store = losing.clone();
            async move { run(&store, claim("k"), async |_| Ok(8)).await }
        });
        let other = tokio::spawn(async move {
            run(&losing, claim("k").with_fingerprint(fingerprint(2)), async |_| Ok(9)).await
        });
        let early = tokio::time::timeout(Duration::from_millis(100), &mut same).await;
        assert!(early.is_err(), "it waits for the winner");
        go.send(Ok(())).expect("the winner waits");
        assert!(!winner.await.expect("no panic").expect("applied").is_replay());
        let same = same.await.expect("no panic").expect("replayed");
        assert!(same.is_replay() && same.into_inner() == 7);
        let other = other.await.expect("no panic").expect_err("another request");
        assert!(matches!(other.idem(), Error::Mismatch { .. }));
        assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loser_runs_when_the_winner_fails() {
    // C3
    for other_process in [false, true] {
        let db = Db::fresh().await;
        let stores = match other_process {
            false => vec![db.store().await],
            true => vec![db.store().await, db.store().await, db.store().await],
        };
        let failures = Arc::new(AtomicU32::new(0));
        let barrier = Arc::new(Barrier::new(10));
        let mut tasks = JoinSet::new();
        for n in 0..10 {
            let (store, failures, barrier) =
                (stores[n % stores.len()].clone(), Arc::clone(&failures), Arc::clone(&barrier));
            tasks.spawn(async move {
                barrier.wait().await;
                run(&store, claim("k"), async |tx: &mut Tx| {
                    effect(tx, "k").await?;
                    if failures.fetch_add(1, Ordering::SeqCst) < 3 { Err(Fail::Told) } else { Ok(n) }
                })
                .await
            });
        }
        let results = tasks.join_all().await;
        assert_eq!(results.iter().filter(|r| matches!(r, Err(Fail::Told))).count(), 3);
        assert_eq!(results.iter().flatten().filter(|o| !o.is_replay()).count(), 1);
        assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_winner_that_outlasts_the_claim_wait_is_in_progress_and_untouched() {
    // C4
    let db = Db::fresh().await;
    let store = db.store().await;
    let ((started, is_running), (go, go_on)) = (oneshot::channel(), oneshot::channel());
    let winner = tokio::spawn(held(store.clone(), "k", started, go_on));
    is_running.await.expect("runs");
    let wait = Duration::from_millis(300);
    let patient = store.clone().with_claim_wait(wait);
    let error = run(&patient, claim("k"), async |_| Ok(1)).await.expect_err("still running").idem();
    assert!(matches!(&error, Error::InProgress { waited, .. } if *waited >= wait), "{error:?}");
    assert!(error.is_retryable());
    let started_at = std::time::Instant::now();
    let reject = claim("k").with_concurrent(Concurrent::Reject);
    let error = run(&store, reject, async |_| Ok(1)).await.expect_err("still running").idem();
    assert!(matches!(error, Error::InProgress { .. }), "{error:?}");
    assert!(started_at.elapsed() < Duration::from_secs(5), "not after the claim wait of 10 s");
    go.send(Ok(())).expect("the winner waits");
    assert!(!winner.await.expect("no panic").expect("applied").is_replay());
    // What is recorded is no longer in progress.
    let reject = claim("k").with_concurrent(Concurrent::Reject);
    assert!(run(&store, reject, async |_| Ok(1)).await.expect("replayed").is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_users_unique_violation_is_the_users() {
    // C6
    let db = Db::fresh().await;
    let store = db.store().await;
    db.execute("INSERT INTO named (name) VALUES ('taken')").await;
    for _ in 0..2 {
        let error = run(&store, claim("k"), async |tx: &mut Tx| {
            sqlx::query("INSERT INTO named (name) VALUES ('taken')").execute(&mut **tx).await?;
            Ok(())
        })
        .await
        .expect_err("refused by the user's table");
        let Fail::Sql(error) = error else { panic!("{error:?}") };
        assert!(error.as_database_error().is_some_and(|e| e.is_unique_violation()));
    }
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_losers_deadline_covers_all_winners_that_fail() {
    // One deadline over all rounds: five winners of 300 ms each, one after the other, do not make one claim wait of
    // 600 ms last for 1.5 s.
    let db = Db::fresh().await;
    let winners: Vec<Store> = vec![db.store().await, db.store().await, db.store().await];
    let loser = db.store().await.with_claim_wait(Duration::from_millis(600));
    let turn = Arc::new(Semaphore::new(0));
    let mut tasks = JoinSet::new();
    for store in winners {
        for _ in 0..2 {
            let (store, turn) = (store.clone(), Arc::clone(&turn));
            tasks.spawn(async move {
                run::<_, (), _>(&store, claim("k"), async |_: &mut Tx| {
                    turn.add_permits(1);
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Err(Fail::Told)
                })
                .await
            });
        }
    }
    turn.acquire().await.expect("open").forget();
    let started = std::time::Instant::now();
    let result = run(&loser, claim("k"), async |_| Ok(())).await;
    let waited = started.elapsed();
    assert!(waited < Duration::from_millis(1_400), "{waited:?}");
    match result {
        // Its turn may have come in time.
        Ok(outcome) => assert!(!outcome.is_replay()),
        Err(error) => assert!(error.idem().is_retryable()),
    }
    tasks.join_all().await;
}
