//! What must come out even at the end: what was staged, where it is now, and what the provider has really done.

use std::collections::HashMap;
use std::fmt;

use idem_runtime::SqliteStore;
use idem_runtime::outbox::{EffectStatus, Filter, Review, State, status};
use idem_testkit::provider::CountingProvider;

/// How the outbox stands: there is one effect.
pub(crate) async fn standing(store: &SqliteStore) -> anyhow::Result<Option<EffectStatus>> {
    Ok(status(store).await?.into_iter().next())
}

/// The figures.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Balance {
    /// How many orders there were, however often they were delivered.
    pub(crate) orders: u64,
    /// How many rows the handler has written.
    pub(crate) staged: u64,
    pub(crate) delivered: u64,
    pub(crate) rejected: u64,
    pub(crate) review: u64,
    /// With what was accepted.
    pub(crate) pending: u64,
    pub(crate) abandoned: u64,
    /// By the provider's own records.
    pub(crate) done: u64,
    /// Payouts that it did more than once.
    pub(crate) done_twice: u64,
    /// Payouts that count as refused, and that it did.
    pub(crate) rejected_and_done: u64,
}

impl Balance {
    /// Counts what is there, once the worker has ended.
    pub(crate) async fn read(
        orders: u16,
        store: &SqliteStore,
        bank: &CountingProvider,
    ) -> anyhow::Result<Self> {
        let staged: i64 =
            sqlx::query_scalar("SELECT count(*) FROM payout").fetch_one(store.readers()).await?;
        let filter = Filter { state: State::Rejected, limit: u32::MAX, ..Filter::default() };
        let rejected = Review::new(store).list(&filter).await?;
        let now = standing(store).await?;
        let count = |of: fn(&EffectStatus) -> u64| now.as_ref().map_or(0, of);
        Ok(Self {
            orders: orders.into(),
            staged: staged.try_into()?,
            delivered: count(|now| now.delivered),
            rejected: count(|now| now.rejected),
            review: count(|now| now.review),
            pending: count(|now| now.pending + now.accepted),
            abandoned: count(|now| now.abandoned),
            done: bank.done_total() as u64,
            done_twice: done_twice(bank) as u64,
            rejected_and_done: rejected.iter().filter(|item| bank.done(item.effect_key.as_str()) > 0).count()
                as u64,
        })
    }

    /// What must hold, in words and numbers, and whether it does.
    fn equations(&self) -> [(String, bool); 5] {
        let Self { orders, staged, delivered, rejected, review, pending, abandoned, done, .. } = *self;
        [
            (format!("orders = staged: {orders} = {staged}"), orders == staged),
            (
                format!(
                    "staged = delivered + rejected + review + pending + abandoned: \
                     {staged} = {delivered} + {rejected} + {review} + {pending} + {abandoned}"
                ),
                staged == delivered + rejected + review + pending + abandoned,
            ),
            (
                format!(
                    "delivered <= done <= delivered + review + pending: \
                     {delivered} <= {done} <= {delivered} + {review} + {pending}"
                ),
                delivered <= done && done <= delivered + review + pending,
            ),
            (format!("done twice = 0: {}", self.done_twice), self.done_twice == 0),
            (format!("rejected and done = 0: {}", self.rejected_and_done), self.rejected_and_done == 0),
        ]
    }

    pub(crate) fn holds(&self) -> bool {
        self.equations().iter().all(|(_, holds)| *holds)
    }
}

/// By key, or by the bytes: one payout under two keys would be done twice, too.
fn done_twice(bank: &CountingProvider) -> usize {
    let mut bodies = HashMap::<Vec<u8>, usize>::new();
    for act in bank.acts() {
        *bodies.entry(act.body).or_default() += 1;
    }
    bodies.values().filter(|count| **count > 1).count().max(bank.done_twice().len())
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in [
            ("orders", self.orders),
            ("staged", self.staged),
            ("  delivered", self.delivered),
            ("  rejected", self.rejected),
            ("  review", self.review),
            ("  pending", self.pending),
            ("  abandoned", self.abandoned),
            ("done", self.done),
            ("  done twice", self.done_twice),
            ("  rejected and done", self.rejected_and_done),
        ] {
            writeln!(f, "{name:<20}{count:>6}")?;
        }
        for (equation, holds) in self.equations() {
            writeln!(f, "{} {equation}", if holds { "holds:" } else { "FAILS:" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even() -> Balance {
        let (staged, delivered, rejected, review) = (10, 7, 1, 2);
        Balance { orders: 10, staged, delivered, rejected, review, done: 8, ..Balance::default() }
    }

    #[test]
    fn it_holds_only_if_nothing_is_lost_or_done_twice() {
        assert!(even().holds());
        for wrong in [
            Balance { orders: 11, ..even() },
            Balance { review: 1, ..even() },
            Balance { done: 6, ..even() },
            Balance { done: 10, ..even() },
            Balance { done_twice: 1, ..even() },
            Balance { rejected_and_done: 1, ..even() },
        ] {
            assert!(!wrong.holds(), "{wrong}");
            assert!(wrong.to_string().contains("FAILS:"));
        }
    }
}
