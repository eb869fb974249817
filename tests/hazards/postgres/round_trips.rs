//! What a call costs on the wire: an exact number, so a test can hold it.

use std::time::Duration;

use idem_runtime::PgStore;
use idem_testkit::proxy::Proxy;
use idem_testkit::wait::eventually;

use super::db::{Db, pool};
use super::race::apply;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_adds_two_round_trips_and_a_replay_takes_two_or_three() {
    let db = Db::fresh().await;
    let proxy = Proxy::in_front_of(db.url()).expect("a proxy");
    let store = || PgStore::new(pool(&proxy.url(db.url()).expect("a url"), 1));
    let (first, second) = (store(), store());
    // Statements are prepared and the schema is looked at once in a connection's life.
    for (store, key) in [(&first, "a"), (&second, "b")] {
        for _ in 0..2 {
            apply(store, key).await.expect("applied or replayed");
        }
    }
    let settled = async || {
        eventually("the connections are back in their pools", Duration::from_secs(20), async || {
            first.pool().num_idle() + second.pool().num_idle() == 2
        })
        .await;
        proxy.round_trips()
    };
    let cost = async |store: &PgStore, key: &str| {
        let before = settled().await;
        let outcome = apply(store, key).await.expect("applied or replayed");
        (outcome.is_replay(), settled().await - before)
    };
    // One of each is the pool's own, which nobody waits for: the ping of a connection that comes back.
    let ping = 1;
    // BEGIN, the claim, the body's statement, the outcome, COMMIT: two more than the transaction with its body.
    assert_eq!(cost(&first, "k").await, (false, 5 + ping));
    assert_eq!(cost(&first, "k").await, (true, 2 + ping), "known to this process: BEGIN and the record");
    assert_eq!(cost(&second, "k").await, (true, 3 + ping), "not known: BEGIN, the claim, the record");
    assert_eq!(cost(&second, "k").await, (true, 2 + ping));
}
