//! The orders: some are delivered more than once, in any order, also at the same moment.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use idem_runtime::{SqliteStore, Verified};
use tokio::task::JoinSet;

use crate::handler::{Order, PayoutError, order_payout};
use crate::live::Live;

/// How many handlers run at once.
const AT_ONCE: usize = 4;

/// Between two deliveries to one of them, so that handlers and worker are at work together.
const PAUSE: Duration = Duration::from_millis(30);

/// How long a delivery is tried again while the database is busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// The same number for the same seed and thing.
pub(crate) fn drawn(seed: u64, thing: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, thing).hash(&mut hasher);
    hasher.finish()
}

/// All deliveries. About every fifth order comes twice, and some of these three times.
pub(crate) fn deliveries(seed: u64, orders: u16) -> Vec<Order> {
    let copies = |number| match drawn(seed, ("copies", number)) % 20 {
        0 => 3,
        1..4 => 2,
        _ => 1,
    };
    let mut all = Vec::from_iter((1..=orders).flat_map(|number| {
        (1..=copies(number)).map(move |delivery| Order {
            id: format!("order-{number:04}"),
            account: format!("account-{:02}", drawn(seed, ("account", number)) % 40),
            amount_minor: 100 + i64::from(number),
            delivery,
        })
    }));
    all.sort_by_key(|order| drawn(seed, (&order.id, order.delivery)));
    all
}

/// Calls the handler for each. Returns when all are answered.
pub(crate) async fn deliver(
    store: &SqliteStore,
    deliveries: Vec<Order>,
    live: &Arc<Live>,
) -> anyhow::Result<()> {
    let mut lanes = vec![Vec::new(); AT_ONCE];
    for (place, order) in deliveries.into_iter().enumerate() {
        lanes[place % AT_ONCE].push(order);
    }
    let mut tasks = JoinSet::new();
    for lane in lanes {
        let (store, live) = (store.clone(), live.clone());
        tasks.spawn(async move {
            // The only sender here is this program itself.
            let shop = Verified::vouch("demo-shop".to_owned());
            for order in lane {
                let replayed = handle(&store, &shop, &order).await.with_context(|| order.id.clone())?;
                live.staged(replayed);
                tokio::time::sleep(PAUSE).await;
            }
            anyhow::Ok(())
        });
    }
    while let Some(lane) = tasks.join_next().await {
        lane??;
    }
    Ok(())
}

/// Calls the handler until the answer is one that stays; true if it is that of an earlier delivery.
async fn handle(store: &SqliteStore, shop: &Verified<String>, order: &Order) -> Result<bool, PayoutError> {
    let started = Instant::now();
    loop {
        match order_payout(store, shop, order).await {
            Ok(outcome) => return Ok(outcome.is_replay()),
            // The same key again is always safe.
            Err(PayoutError::Idem(error)) if error.is_retryable() && started.elapsed() < PATIENCE => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_deliveries_and_another_has_others() {
        let ids = |seed| Vec::from_iter(deliveries(seed, 100).into_iter().map(|order| order.id));
        assert_eq!(ids(7), ids(7));
        assert_ne!(ids(7), ids(8));
        assert!(ids(7).len() > 100, "some come again");
    }
}
