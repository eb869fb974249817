//! Everything at once, at random: callers that give up, duplicates, two stores, and bodies and sessions that do what
//! they should not.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_runtime::Error;
use tokio::task::JoinSet;

use super::db::{Db, INBOX, Tx};
use super::misbehave::{end_sessions, misbehave};
use super::race::{apply, effect};
use crate::handler::{Fail, claim, run};

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_duplicates_and_wrong_bodies_at_random_leave_each_key_applied_once() {
    let db = Arc::new(Db::fresh().await);
    let stores = [db.store().await, db.store().await];
    let until = Instant::now() + Duration::from_secs(15);
    let killer = tokio::spawn(end_sessions(db.clone(), until));
    let mut tasks = JoinSet::new();
    for worker in 0..24u64 {
        let stores = stores.clone();
        tasks.spawn(async move {
            let mut answered = HashSet::new();
            let mut x = worker.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            while Instant::now() < until {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let (key, how) = (format!("s{}", x % 997), x % 13);
                let patience = if how == 7 { 60_000_000 } else { x % 6_000 };
                let call = run(&stores[(x >> 20) as usize % 2], claim(&key), async |tx: &mut Tx| {
                    effect(tx, &key).await?;
                    match how {
                        0 => Err(Fail::Told),
                        1..=9 => misbehave(tx, how).await,
                        _ => Ok(()),
                    }
                });
                let call = tokio::time::timeout(Duration::from_micros(patience), call);
                match call.await {
                    Ok(Ok(_)) => {
                        answered.insert(key);
                    }
                    Ok(Err(Fail::Idem(error)))
                        if !error.is_retryable() && !matches!(error, Error::TransactionEnded { .. }) =>
                    {
                        panic!("{key} {how}: {error:?}")
                    }
                    _ => {}
                }
            }
            answered
        });
    }
    let answered: HashSet<String> = tasks.join_all().await.into_iter().flatten().collect();
    killer.await.expect("no panic");
    // Whoever had begun to commit goes on after its caller.
    db.assert_no_open_transaction().await;

    let distinct = "SELECT count(DISTINCT key) FROM effect";
    let (effects, applied) = (db.count("SELECT count(*) FROM effect").await, db.count(distinct).await);
    let records = db.count(&format!("SELECT count(*) FROM {INBOX}")).await;
    assert_eq!((effects, records), (applied, applied), "one effect and one record for each of them");
    for key in answered {
        let told = format!("SELECT count(*) FROM effect WHERE key = '{key}'");
        assert_eq!(db.count(&told).await, 1, "{key} was answered");
    }
    for store in &stores {
        // A connection in the pool may have been terminated.
        let mut tries = 0;
        while let Err(error) = apply(store, "last").await {
            tries += 1;
            assert!(error.idem().is_retryable() && tries < 5);
        }
    }
}
