//! Round trips per call, counted on the wire by the testkit's proxy: exact numbers, on a warm connection.
//!
//! What happens until the caller has its answer is counted apart from what follows. sqlx's pool pings a connection
//! that is given back; a rollback that nobody waits for travels with that ping.

use std::time::Duration;

use anyhow::{Result, ensure};
use idem_testkit::proxy::Proxy;

use crate::request::Payment;
use crate::variants::{Variants, postgres::Postgres};

/// The round trips of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trips {
    /// Until the answer was there.
    pub answer: usize,
    /// After it, the pool's own ping included.
    pub after: usize,
}

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// A connection taken and given back, with nothing done: the pool's own ping alone.
    pub pool: Trips,
    /// The bare transaction.
    pub bare: Trips,
    /// By hand, a fresh key.
    pub by_hand: Trips,
    /// By hand, a recorded key.
    pub replay_by_hand: Trips,
    /// The macro with `()`, a fresh key.
    pub annotated_unit: Trips,
    /// The macro with a struct, a fresh key.
    pub annotated: Trips,
    /// The macro, a recorded key.
    pub replay: Trips,
    /// The connections that were opened beside the one that was there.
    pub more_connections: usize,
}

impl Counts {
    /// What the dearer of the macro's two forms adds to the bare transaction.
    pub fn added(&self) -> usize {
        self.annotated.answer.max(self.annotated_unit.answer).saturating_sub(self.bare.answer)
    }

    /// Each with its name, in the order of the table.
    pub fn named(&self) -> [(&'static str, Trips); 7] {
        [
            ("a connection taken and given back", self.pool),
            ("bare transaction", self.bare),
            ("by hand", self.by_hand),
            ("macro, () as outcome", self.annotated_unit),
            ("macro, a struct as outcome", self.annotated),
            ("replay by hand", self.replay_by_hand),
            ("replay by the macro", self.replay),
        ]
    }
}

/// Counts in this database, on one connection.
///
/// Exact on a current-thread runtime: what a call leaves to other tasks then happens after its answer was looked at.
///
/// # Errors
/// Of the database or a variant, or if one kind of call does not always take as many.
pub async fn count(database_url: &str) -> Result<Counts> {
    let proxy = Proxy::in_front_of(database_url)?;
    let database = Postgres::open(&proxy.url(database_url)?, 1).await?;
    let wire = Wire { proxy: &proxy, database: &database };
    let recorded = || Payment::of("recorded".to_owned(), 1);
    database.by_hand(recorded()).await?;
    database.annotated(recorded()).await?;
    proxy.reset();
    Ok(Counts {
        pool: wire.trips(async || database.pool().acquire().await.map(drop).map_err(Into::into)).await?,
        bare: wire.trips(async || database.bare(Payment::fresh(1)).await.map(drop)).await?,
        by_hand: wire.trips(async || database.by_hand(Payment::fresh(1)).await.map(drop)).await?,
        replay_by_hand: wire.trips(async || database.by_hand(recorded()).await.map(drop)).await?,
        annotated_unit: wire
            .trips(async || database.annotated_unit(Payment::fresh(1)).await.map(drop))
            .await?,
        annotated: wire.trips(async || database.annotated(Payment::fresh(1)).await.map(drop)).await?,
        replay: wire.trips(async || database.annotated(recorded()).await.map(drop)).await?,
        more_connections: proxy.connections(),
    })
}

struct Wire<'a> {
    proxy: &'a Proxy,
    database: &'a Postgres,
}

impl Wire<'_> {
    /// Of one call, after two that prepare its statements.
    async fn trips(&self, call: impl AsyncFn() -> Result<()>) -> Result<Trips> {
        let mut seen = Vec::new();
        for _ in 0..5 {
            self.database.settled().await;
            let before = self.proxy.round_trips();
            call().await?;
            let answered = self.proxy.round_trips();
            // The connection is taken from the pool while the call runs, so this waits for its return.
            tokio::time::timeout(Duration::from_secs(10), self.database.settled()).await?;
            seen.push(Trips { answer: answered - before, after: self.proxy.round_trips() - answered });
        }
        let warm = seen[2];
        ensure!(seen[2..].iter().all(|trips| *trips == warm), "not always as many: {seen:?}");
        Ok(warm)
    }
}
