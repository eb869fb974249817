//! What the worker and the people who review ask of a database. Every call is one short transaction, so that nothing is
//! open while a provider is called. Whatever a worker writes is fenced by the token of its lease.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;
use uuid::Uuid;

use super::EffectKey;
use super::decide::{Row, State};
use super::review::{Filter, Item, Logged, Tried};
use super::status::EffectStatus;
use crate::Error;

/// A store with an outbox.
#[async_trait]
pub(crate) trait Queue: Debug + Send + Sync + 'static {
    /// The start-up check.
    async fn ready(&self) -> Result<(), Error>;

    /// Told when this process has committed effects.
    fn staged(&self) -> Arc<Notify>;

    /// Leases up to `limit` effects that are due. One that waits for another of its order key is put off instead.
    async fn lease(&self, lease: &Lease<'_>) -> Result<Batch, Error>;

    /// Writes attempts, and renews their leases. Answers those that may be made: by now a lease may have run out, or the
    /// window have closed.
    async fn attempt(&self, terms: &AttemptTerms, attempts: &[Attempt]) -> Result<Vec<Started>, Error>;

    /// Writes what became of leased effects, and frees them. Answers the ids of those whose lease it still was.
    async fn settle(&self, settled: &[Settled]) -> Result<Vec<i64>, Error>;

    /// Reads an effect under its lock, and writes what `decide` says; false if there is no such effect.
    async fn change(&self, id: i64, decide: Decide<'_>) -> Result<bool, Error>;

    /// Says that a worker serves an effect; `paused`: for how long not, and why.
    async fn seen(&self, effect: &str, worker: Uuid, paused: Option<(Duration, &str)>) -> Result<(), Error>;

    /// Says that it does so no longer.
    async fn gone(&self, worker: Uuid) -> Result<(), Error>;

    /// Effects by name and state.
    async fn status(&self) -> Result<Vec<EffectStatus>, Error>;

    /// For a person, in the order of staging.
    async fn list(&self, filter: &Filter) -> Result<Vec<Item>, Error>;

    /// One of them, with what was tried and decided.
    async fn show(&self, id: i64) -> Result<Option<(Item, Vec<Tried>, Vec<Logged>)>, Error>;
}

pub(crate) type Decide<'a> = Box<dyn FnOnce(&Current) -> Change + Send + 'a>;

pub(crate) struct Lease<'a> {
    pub(crate) effect: &'a str,
    pub(crate) token: Uuid,
    pub(crate) lasts: Duration,
    pub(crate) limit: usize,
}

/// What was leased, at this time by the database's clock.
pub(crate) struct Batch {
    pub(crate) now: SystemTime,
    pub(crate) rows: Vec<Leased>,
    /// Whether there may be more: so many were looked at as were asked for.
    pub(crate) full: bool,
}

/// An effect under a lease.
#[derive(Clone, Debug)]
pub(crate) struct Leased {
    pub(crate) id: i64,
    pub(crate) token: Uuid,
    pub(crate) row: Row,
    pub(crate) effect_key: EffectKey,
    pub(crate) payload: Bytes,
    pub(crate) content_type: String,
    pub(crate) created_at: SystemTime,
    pub(crate) ordered: bool,
    /// An attempt under an earlier lease has no result.
    pub(crate) crashed: bool,
}

pub(crate) struct AttemptTerms {
    pub(crate) call_timeout: Duration,
    pub(crate) lease: Duration,
}

pub(crate) struct Attempt {
    pub(crate) id: i64,
    pub(crate) token: Uuid,
    /// Not made at this time or later.
    pub(crate) before: Option<SystemTime>,
}

/// An attempt that was written.
pub(crate) struct Started {
    pub(crate) id: i64,
    pub(crate) attempts: u32,
    pub(crate) first_attempt_at: SystemTime,
    pub(crate) last_deadline: SystemTime,
}

/// What became of a leased effect.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) id: i64,
    pub(crate) token: Uuid,
    pub(crate) row: Row,
    pub(crate) ordered: bool,
    pub(crate) evidence: Evidence,
}

/// What is written down about a try.
#[derive(Clone, Debug)]
pub(crate) enum Evidence {
    /// Nothing was tried.
    None,
    /// How the attempt of this lease ended.
    Attempt { result: &'static str, detail: Option<String> },
    /// What the provider said when it was asked at this time.
    Asked { at: SystemTime, result: &'static str, detail: Option<String> },
    /// Earlier attempts without a result have ended with their workers.
    Crashed,
}

/// An effect under its lock.
pub(crate) struct Current {
    pub(crate) now: SystemTime,
    pub(crate) row: Row,
    pub(crate) version: i64,
    pub(crate) effect_key: EffectKey,
    pub(crate) ordered: bool,
    /// Whether a worker has an unexpired lease.
    pub(crate) leased: bool,
}

/// What is to be written about it.
pub(crate) struct Change {
    pub(crate) row: Option<Row>,
    pub(crate) effect_key: Option<EffectKey>,
    pub(crate) note: Note,
}

pub(crate) enum Note {
    /// The attempt under this lease, which is no longer one, has ended. Where that was written before, nothing is.
    Late { token: Uuid, result: &'static str, detail: Option<String> },
    /// A person's decision about the version that they saw.
    Decision { version: i64, decision: &'static str, by: String, note: String, won: bool },
}

/// How long a row that waits for another of its order key is put off, unless that one's end calls it.
pub(crate) const BLOCKED: Duration = Duration::from_secs(30);

impl State {
    /// As it was stored.
    pub(crate) fn stored(text: &str) -> Self {
        // The tables refuse all others.
        Self::ALL.into_iter().find(|state| state.as_str() == text).unwrap_or(Self::Review)
    }
}
