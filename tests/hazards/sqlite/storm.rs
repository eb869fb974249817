//! Everything at once, at random.

use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_runtime::{Error, SqliteTx};
use sqlx::Connection as _;
use tokio::task::JoinSet;

use super::db::Db;
use super::race::{apply, effect};
use crate::handler::{Fail, claim, run};

/// Random time-outs, duplicates, two stores on one file.
#[tokio::test(flavor = "multi_thread")]
async fn timeouts_duplicates_and_ended_transactions_at_random_leave_each_key_applied_once() {
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
