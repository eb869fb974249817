//! What a block consists of: one variant's calls by so many workers at once, timed until all have their answers, and
//! checked. A block that answered wrongly is an error, not a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem_runtime::Outcome;
use tokio::task::JoinSet;

use crate::request::{Payment, Receipt};
use crate::variants::Variants;

/// How many calls with the same fresh key come at once.
pub const DUPLICATES: usize = 32;
/// How many keys each worker replays in turn.
const REPLAYED: usize = 16;

/// One variant at one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Fresh keys: the body in a bare transaction.
    Bare,
    /// Fresh keys: by hand, without bounds and checks.
    Minimal,
    /// Fresh keys: by hand.
    ByHand,
    /// Fresh keys: the macro with `()`.
    MacroUnit,
    /// Fresh keys: the macro with a struct as outcome.
    Macro,
    /// Keys that are recorded: by hand.
    ReplayByHand,
    /// Keys that are recorded: the macro.
    Replay,
    /// [`DUPLICATES`] at once of a fresh key: by hand.
    DuplicatesByHand,
    /// [`DUPLICATES`] at once of a fresh key: the macro.
    Duplicates,
}

impl Work {
    /// As the tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare transaction",
            Self::Minimal => "by hand, minimal",
            Self::ByHand => "by hand",
            Self::MacroUnit => "macro, () as outcome",
            Self::Macro => "macro, a struct as outcome",
            Self::ReplayByHand => "replay by hand",
            Self::Replay => "replay by the macro",
            Self::DuplicatesByHand => "32 duplicates by hand",
            Self::Duplicates => "32 duplicates, macro",
        }
    }

    /// The same by hand.
    pub fn by_hand(self) -> Option<Self> {
        match self {
            Self::Minimal | Self::MacroUnit | Self::Macro => Some(Self::ByHand),
            Self::Replay => Some(Self::ReplayByHand),
            Self::Duplicates => Some(Self::DuplicatesByHand),
            Self::Bare | Self::ByHand | Self::ReplayByHand | Self::DuplicatesByHand => None,
        }
    }

    /// Whether a call of it may be compared with a bare transaction: a burst of duplicates is many calls.
    pub fn is_one_call(self) -> bool {
        !matches!(self, Self::Duplicates | Self::DuplicatesByHand)
    }
}

/// The workers of one database and one number of connections.
#[derive(Debug)]
pub struct Crew<V> {
    variants: V,
    workers: usize,
    booked: Arc<AtomicU64>,
}

impl<V: Variants> Crew<V> {
    /// Runs what will be replayed for the first time.
    ///
    /// # Errors
    /// Of a variant.
    pub async fn new(variants: V, workers: usize) -> Result<Self> {
        let crew = Self { variants, workers, booked: Arc::default() };
        for payment in (0..workers).flat_map(|worker| (0..REPLAYED).map(move |n| recorded(worker, n))) {
            let by_hand = crew.variants.by_hand(payment.clone()).await?;
            let annotated = crew.variants.annotated(payment).await?;
            ensure!(!by_hand.is_replay() && !annotated.is_replay(), "these keys are fresh");
            crew.booked.fetch_add(2, Ordering::Relaxed);
        }
        Ok(crew)
    }

    /// How many calls of each worker (of bursts: how many bursts) this is in all.
    pub fn calls(&self, work: Work, times: usize) -> usize {
        if work.is_one_call() { times * self.workers } else { times }
    }

    /// One block: the time until all answers are there.
    ///
    /// # Errors
    /// Of a variant, or if one answered wrongly.
    pub async fn block(&self, work: Work, times: usize) -> Result<Duration> {
        let started = Instant::now();
        if work.is_one_call() {
            let mut workers = JoinSet::new();
            for worker in 0..self.workers {
                let (variants, booked) = (self.variants.clone(), Arc::clone(&self.booked));
                workers.spawn(async move {
                    let mut fresh = 0;
                    for n in 0..times {
                        fresh += u64::from(call(&variants, work, worker, n).await?);
                    }
                    booked.fetch_add(fresh, Ordering::Relaxed);
                    anyhow::Ok(())
                });
            }
            while let Some(worker) = workers.join_next().await {
                worker??;
            }
        } else {
            for n in 0..times {
                self.burst(work, n).await?;
            }
        }
        let elapsed = started.elapsed();
        self.variants.settled().await;
        Ok(elapsed)
    }

    /// One fresh key for all.
    async fn burst(&self, work: Work, n: usize) -> Result<()> {
        let payment = Payment::fresh(n);
        let mut calls = JoinSet::new();
        for _ in 0..DUPLICATES {
            let (variants, payment) = (self.variants.clone(), payment.clone());
            calls.spawn(async move {
                let receipt = Receipt::of(&payment);
                let outcome = match work {
                    Work::DuplicatesByHand => variants.by_hand(payment).await?,
                    _ => variants.annotated(payment).await?,
                };
                ensure!(*outcome.as_ref().into_inner() == receipt, "the answer of another request");
                Ok(outcome.is_replay())
            });
        }
        let mut applied = 0;
        while let Some(call) = calls.join_next().await {
            applied += u64::from(!call??);
        }
        ensure!(applied == 1, "{applied} of {DUPLICATES} duplicates ran");
        self.booked.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Checks that every effect happened exactly once.
    ///
    /// # Errors
    /// If one did not.
    pub async fn audit(&self) -> Result<()> {
        let (expected, booked) = (self.booked.load(Ordering::Relaxed), self.variants.booked().await?);
        ensure!(i64::try_from(expected)? == booked, "{booked} payments are booked, not {expected}");
        Ok(())
    }
}

/// The `n`-th of the payments that this worker replays.
fn recorded(worker: usize, n: usize) -> Payment {
    Payment::of(format!("recorded-{worker}-{}", n % REPLAYED), account(worker, n % REPLAYED))
}

/// No two workers share an account.
fn account(worker: usize, n: usize) -> usize {
    worker * 32 + n % 32
}

/// One call; whether it booked something.
async fn call<V: Variants>(variants: &V, work: Work, worker: usize, n: usize) -> Result<bool> {
    let fresh = || Payment::fresh(account(worker, n));
    Ok(match work {
        Work::Bare => variants.bare(fresh()).await.map(|_| true)?,
        Work::Minimal => variants.minimal(fresh()).await.map(|_| true)?,
        Work::ByHand => applied(&variants.by_hand(fresh()).await?)?,
        Work::MacroUnit => applied(&variants.annotated_unit(fresh()).await?)?,
        Work::Macro => applied(&variants.annotated(fresh()).await?)?,
        Work::ReplayByHand => replayed(&variants.by_hand(recorded(worker, n)).await?)?,
        Work::Replay => replayed(&variants.annotated(recorded(worker, n)).await?)?,
        Work::DuplicatesByHand | Work::Duplicates => unreachable!("these come in bursts"),
    })
}

fn applied<T>(outcome: &Outcome<T>) -> Result<bool> {
    ensure!(!outcome.is_replay(), "a fresh key was answered by a replay");
    Ok(true)
}

fn replayed<T>(outcome: &Outcome<T>) -> Result<bool> {
    ensure!(outcome.is_replay(), "a recorded key ran again");
    Ok(false)
}
