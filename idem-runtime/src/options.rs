//! What all stores of this crate have in common: their options, the start-up check that runs once, and what happens
//! to a claim before a database is asked.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;

use crate::flight::{Boarded, Flights, Seat};
use crate::nesting::{StoreId, enclosing};
use crate::outbox::Staging;
use crate::recorded::Recorded;
use crate::tx::{Backend, Open};
use crate::{Claim, Error, Identity, Judgement, Override, Record};

/// Shared by the clones of one store, but for the options: a clone that changes them gets a `Core` of its own.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) id: StoreId,
    pub(crate) flights: Arc<Flights>,
    pub(crate) recorded: Arc<Recorded>,
    /// Wakes the workers of this process when effects were committed.
    pub(crate) staged: Arc<Notify>,
    /// Set once the start-up check has passed.
    pub(crate) checked: Arc<OnceCell<()>>,
    pub(crate) claim_wait: Duration,
    pub(crate) max_outcome_bytes: usize,
    pub(crate) max_effect_bytes: usize,
    pub(crate) strict_fingerprints: bool,
    pub(crate) overriding: Option<Override>,
}

impl Core {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            id: StoreId::unique(),
            flights: Arc::default(),
            recorded: Arc::new(Recorded::none()),
            staged: Arc::default(),
            checked: Arc::default(),
            claim_wait: Duration::from_secs(10),
            max_outcome_bytes: 1 << 20,
            max_effect_bytes: 256 << 10,
            strict_fingerprints: false,
            overriding: None,
        })
    }

    /// When a claim that begins now gives up.
    pub(crate) fn deadline(&self) -> Instant {
        let now = Instant::now();
        // A wait that no clock can express is one without end.
        now.checked_add(self.claim_wait).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 86_400))
    }

    /// The claim with what the store itself has to say.
    pub(crate) fn prepare(&self, mut claim: Claim) -> Claim {
        claim.strict_fingerprints |= self.strict_fingerprints;
        if let Some(decision) = &self.overriding {
            claim.pass_horizon = decision.pass_horizon;
            claim.run_again = decision.run_again;
            claim.label = Some(decision.label().into());
            tracing::info!(
                operation = claim.identity.operation(),
                scope = claim.identity.scope(),
                key = claim.identity.key(),
                label = decision.label(),
                by = decision.by(),
                beyond_horizon = decision.pass_horizon,
                run_again = decision.run_again,
                "claimed under an override"
            );
        }
        claim
    }

    /// Waits for the claims of this process at the same identity, before a connection is taken.
    pub(crate) async fn board(&self, claim: &Claim, deadline: Instant) -> Result<Boarding, Error> {
        if claim.run_again {
            // Not a duplicate of anything.
            return Ok(Boarding::Go(None));
        }
        let started = Instant::now();
        match self.flights.board(&claim.identity, claim.concurrent, deadline).await {
            Boarded::Lead(seat) => Ok(Boarding::Go(Some(seat))),
            Boarded::InProgress => {
                Err(Error::InProgress { identity: claim.identity.clone(), waited: started.elapsed() })
            }
            Boarded::Busy => Err(Error::Busy { identity: claim.identity.clone(), waited: started.elapsed() }),
            Boarded::Landed(seen) => Ok(match claim.judge(&seen.record, seen.now())? {
                Judgement::Replay => Boarding::Done(seen.record),
                Judgement::TakeOver => Boarding::Go(None),
            }),
        }
    }

    /// Refuses a call from inside a body that `holds` what the call would wait for.
    pub(crate) fn refuse_nested(
        &self,
        identity: &Identity,
        holds: impl Fn(&Identity) -> bool,
    ) -> Result<(), Error> {
        match enclosing(self.id, holds) {
            None => Ok(()),
            Some(running) => Err(Error::Nested { identity: identity.clone(), running }),
        }
    }

    /// What a run that has just begun may stage.
    pub(crate) fn staging(&self, claim: &Claim, claimed_at: SystemTime) -> Staging {
        Staging::new(claim.generation(claimed_at), self.max_effect_bytes)
    }

    /// Whether a run may be completed with this outcome, as far as can be known without asking the database.
    pub(crate) fn may_complete<DB: Backend>(&self, open: &Open<DB>, outcome: &str) -> Result<(), Error> {
        self.check_outcome(&open.identity, outcome)?;
        open.check_intact()?;
        open.staging.check(&open.identity)
    }

    /// Tells who waits for it that a run has been committed.
    pub(crate) fn completed(&self, identity: &Identity, staging: &Staging) {
        self.recorded.note(identity);
        if staging.has_staged() {
            self.staged.notify_waiters();
        }
    }

    /// Refuses an outcome that is larger than the store's limit, or is no JSON.
    fn check_outcome(&self, identity: &Identity, outcome: &str) -> Result<(), Error> {
        let limit = self.max_outcome_bytes;
        let reason = if outcome.len() > limit {
            let bytes = outcome.len();
            format!(
                "it has {bytes} bytes as JSON, and {limit} is the store's limit (`with_max_outcome_bytes`)"
            )
        } else if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(outcome) {
            format!("it is not JSON: {error}")
        } else {
            return Ok(());
        };
        Err(Error::OutcomeRejected { identity: identity.clone(), reason })
    }
}

/// When an identity was taken, by the database's clock.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) now: SystemTime,
    /// When its transaction began, which is what the record says.
    pub(crate) claimed_at: SystemTime,
}

/// What to do after [`Core::board`].
pub(crate) enum Boarding {
    /// Answer with the record that another claim has just read.
    Done(Record),
    /// Ask the database.
    Go(Option<Seat>),
}

/// The options that every store has, as methods of the store.
macro_rules! common_options {
    () => {
        /// How long a claim waits for the first run, or for a connection, before it answers
        /// [`Error::InProgress`](crate::Error::InProgress) or [`Error::Busy`](crate::Error::Busy). Default: 10 s.
        /// It is one deadline over everything that the claim waits for.
        #[must_use]
        pub fn with_claim_wait(mut self, wait: std::time::Duration) -> Self {
            std::sync::Arc::make_mut(&mut self.core).claim_wait = wait;
            self
        }

        /// The largest outcome, in bytes of its JSON text. Default: 1 MiB. A larger one is
        /// [`Error::OutcomeRejected`](crate::Error::OutcomeRejected), and the run is rolled back.
        #[must_use]
        pub fn with_max_outcome_bytes(mut self, bytes: usize) -> Self {
            std::sync::Arc::make_mut(&mut self.core).max_outcome_bytes = bytes;
            self
        }

        /// The largest effect that may be staged, in bytes. Default: 256 KiB. A larger one is
        /// [`Error::EffectRejected`](crate::Error::EffectRejected), and the run is rolled back.
        #[must_use]
        pub fn with_max_effect_bytes(mut self, bytes: usize) -> Self {
            std::sync::Arc::make_mut(&mut self.core).max_effect_bytes = bytes;
            self
        }

        /// Whether a record that was written under another list of material fields (a deploy has changed the
        /// handler) is [`Error::FingerprintChanged`](crate::Error::FingerprintChanged). Default: no, it is replayed
        /// with a warning, since the requests cannot be compared.
        #[must_use]
        pub fn with_strict_fingerprints(mut self, strict: bool) -> Self {
            std::sync::Arc::make_mut(&mut self.core).strict_fingerprints = strict;
            self
        }

        /// A clone that carries out a person's decision for the calls made through it: run what is beyond the
        /// horizon, or run again. Each such claim is logged with the label and the person.
        #[must_use]
        pub fn overriding(&self, decision: crate::Override) -> Self {
            let mut store = self.clone();
            std::sync::Arc::make_mut(&mut store.core).overriding = Some(decision);
            store
        }
    };
}
pub(crate) use common_options;
