//! A server that crashes under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use idem_runtime::PgStore;
use idem_testkit::postgres::Postgres;
use tokio::task::JoinSet;

use super::db::{Tx, pool};
use super::race::effect;
use crate::handler::{Fail, claim, run};

#[tokio::test(flavor = "multi_thread")]
async fn every_delivery_that_was_answered_has_its_effect_once_after_a_crash_of_the_server() {
    // C11: an immediate stop loses what was not flushed; the sessions have `synchronous_commit = off`.
    let server = Arc::new(Postgres::start().expect("a server of its own"));
    let url = server.url("postgres");
    let store = PgStore::new(pool(&format!("{url}?options=-c%20synchronous_commit%3Doff"), 8))
        .with_settle_timeout(Duration::from_secs(30));
    store.migrate().await.expect("migrated");
    let admin = pool(&url, 1);
    sqlx::raw_sql("CREATE TABLE effect (key text NOT NULL)").execute(&admin).await.expect("created");

    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (store, stop, done) = (store.clone(), Arc::clone(&stop), Arc::clone(&done));
        tasks.spawn(async move {
            let mut answered = Vec::new();
            for n in 0.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let key = format!("{task}-{n}");
                let told = run(&store, claim(&key), async |tx: &mut Tx| effect(tx, &key).await).await;
                match told {
                    Ok(_) => {
                        answered.push(key);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(Fail::Idem(error)) => assert!(error.is_retryable(), "{error:?}"),
                    Err(error) => assert!(matches!(error, Fail::Sql(_)), "{error:?}"),
                }
            }
            answered
        });
    }
    for _ in 0..3 {
        let so_far = done.load(Ordering::SeqCst);
        idem_testkit::wait::eventually("the load goes on", Duration::from_secs(60), async || {
            done.load(Ordering::SeqCst) > so_far + 300
        })
        .await;
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || server.restart_immediate())
            .await
            .expect("no panic")
            .expect("up again");
    }
    stop.store(true, Ordering::SeqCst);
    let answered: Vec<String> = tasks.join_all().await.into_iter().flatten().collect();
    assert!(answered.len() > 900);
    // The old one's connection did not survive.
    let admin = pool(&url, 1);
    let lost: Vec<String> =
        sqlx::query_scalar("SELECT k FROM unnest($1::text[]) k EXCEPT SELECT key FROM effect")
            .bind(&answered)
            .fetch_all(&admin)
            .await
            .expect("asked");
    assert_eq!(lost, Vec::<String>::new(), "answered, and lost");
    let doubled: i64 = sqlx::query_scalar("SELECT count(*) - count(DISTINCT key) FROM effect")
        .fetch_one(&admin)
        .await
        .expect("asked");
    assert_eq!(doubled, 0);
}
