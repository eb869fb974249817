//! What a handler asks a store for, and the one decision about a record that is already there. [`Claim::judge`] is
//! pure, and every store calls it, so that all paths and all databases answer alike.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::fingerprint::{Comparison, Fingerprint};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::outbox::Generation;
use crate::{Error, Identity, Record};

/// How far ahead of the database's clock an event may claim to have occurred.
pub(crate) const MAX_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration that no database can add to a timestamp counts as for ever.
const LONGEST: Duration = Duration::from_secs(1_000 * 366 * 24 * 60 * 60);

/// How long something is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retain {
    /// Without end.
    #[default]
    Forever,
    /// For this long, by the database's clock. More than 1,000 years count as [`Retain::Forever`].
    For(Duration),
}

impl Retain {
    /// The duration; `None` for ever.
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::For(duration) if duration < LONGEST => Some(duration),
            Self::For(_) | Self::Forever => None,
        }
    }
}

/// What happens to a message that is older than the records can prove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Older {
    /// [`Error::BeyondHorizon`]: nothing runs, a person decides.
    #[default]
    Refuse,
    /// It runs, and an expired record is taken over.
    Run,
}

/// What a duplicate does while the first run is still going on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrent {
    /// It waits, at most for the store's claim wait, and then gets the outcome.
    #[default]
    Wait,
    /// [`Error::InProgress`] at once.
    Reject,
}

/// Everything that a store needs to know to take an identity, or to answer for it.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use idem_runtime::{Claim, Fingerprint, Identity, Retain, Verified};
///
/// let identity = Identity::new("invoice.approve", &Verified::vouch("acme"), "key-1")?;
/// let claim = Claim::new(identity)
///     .with_fingerprint(Fingerprint::builder("invoice.approve").field("amount", &100)?.build())
///     .with_retain(Retain::For(Duration::from_secs(30 * 86_400)))
///     .with_occurred_at(SystemTime::now());
/// assert_eq!(claim.remember, claim.retain);
/// # Ok::<(), idem_runtime::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// What is taken.
    pub identity: Identity,
    /// The material fields of the request; `None` for `fingerprint(none)`.
    pub fingerprint: Option<Fingerprint>,
    /// How long the outcome is kept.
    pub retain: Retain,
    /// How long the identity is kept: never shorter than `retain`.
    pub remember: Retain,
    /// The event's own time, equal on every redelivery.
    pub occurred_at: Option<SystemTime>,
    /// What happens to a message older than the records can prove.
    pub older: Older,
    /// What a duplicate does while the first run is going on.
    pub concurrent: Concurrent,
    pub(crate) strict_fingerprints: bool,
    pub(crate) pass_horizon: bool,
    pub(crate) run_again: bool,
    /// Under which a person has it run.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) label: Option<Arc<str>>,
}

impl Claim {
    /// A claim that keeps everything for ever and compares no fingerprint.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            fingerprint: None,
            retain: Retain::Forever,
            remember: Retain::Forever,
            occurred_at: None,
            older: Older::Refuse,
            concurrent: Concurrent::Wait,
            strict_fingerprints: false,
            pass_horizon: false,
            run_again: false,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            label: None,
        }
    }

    /// The material fields of the request.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: impl Into<Option<Fingerprint>>) -> Self {
        self.fingerprint = fingerprint.into();
        self
    }

    /// How long outcome and identity are kept. Call [`with_remember`](Self::with_remember) after it to keep the
    /// identity longer.
    #[must_use]
    pub fn with_retain(mut self, retain: Retain) -> Self {
        self.retain = retain;
        self.remember = retain;
        self
    }

    /// How long the identity is kept.
    #[must_use]
    pub fn with_remember(mut self, remember: Retain) -> Self {
        self.remember = remember;
        self
    }

    /// The event's own time, equal on every redelivery (never the time of the attempt).
    #[must_use]
    pub fn with_occurred_at(mut self, occurred_at: impl Into<Option<SystemTime>>) -> Self {
        self.occurred_at = occurred_at.into();
        self
    }

    /// What happens to a message older than the records can prove.
    #[must_use]
    pub fn with_older(mut self, older: Older) -> Self {
        self.older = older;
        self
    }

    /// What a duplicate does while the first run is going on.
    #[must_use]
    pub fn with_concurrent(mut self, concurrent: Concurrent) -> Self {
        self.concurrent = concurrent;
        self
    }

    /// Whether a record that was written under another list of material fields is
    /// [`Error::FingerprintChanged`] (`true`) or is replayed with a warning (`false`, the default).
    #[must_use]
    pub fn with_strict_fingerprints(mut self, strict: bool) -> Self {
        self.strict_fingerprints = strict;
        self
    }

    /// How long the outcome is kept, as a store writes it down; `None`: as long as the record.
    pub fn outcome_kept_for(&self) -> Option<Duration> {
        self.retain.duration().filter(|kept| Some(*kept) != self.identity_kept_for())
    }

    /// How long the identity is kept, as a store writes it down; `None`: for ever, also where nothing else could prove
    /// the age of a redelivery.
    pub fn identity_kept_for(&self) -> Option<Duration> {
        match (self.older, self.occurred_at) {
            (Older::Refuse, None) => None,
            _ => self.remember.duration(),
        }
    }

    /// Which of the runs that its identity may have it is, if it began at this time by the database's clock.
    ///
    /// A record that is forgotten may make room for another run, which is not this one repeated: its effects are others.
    /// It begins more than `remember` later, so it falls into another period of that length.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn generation(&self, claimed_at: SystemTime) -> Generation {
        match (&self.label, self.identity_kept_for()) {
            (Some(label), _) => Generation::Label(label.clone()),
            (None, None) => Generation::Only,
            (None, Some(remember)) => {
                let since_1970 = claimed_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                Generation::Period(since_1970.as_micros() / remember.as_micros().max(1))
            }
        }
    }

    /// Decides about a claim that found no record and would be fresh, at `now` by the database's clock, read
    /// **after** the identity was taken (a sweep may have deleted the record in between).
    ///
    /// # Errors
    /// [`Error::InvalidOccurredAt`], [`Error::BeyondHorizon`]. The store rolls back.
    pub fn judge_absent(&self, now: SystemTime) -> Result<(), Error> {
        let Some(occurred_at) = self.occurred_at else {
            return Ok(());
        };
        self.check_occurred_at(now)?;
        // Whoever wants it run again has decided about its age too.
        let passes = self.pass_horizon || self.run_again;
        let (Older::Refuse, false, Some(remember)) = (self.older, passes, self.identity_kept_for()) else {
            return Ok(());
        };
        match now.duration_since(occurred_at) {
            Ok(age) if age > remember => Err(self.beyond_horizon()),
            _ => Ok(()),
        }
    }

    /// Decides about a record that is there, at `now` by the database's clock.
    ///
    /// # Errors
    /// [`Error::InvalidOccurredAt`]; for a record that has expired [`Error::BeyondHorizon`]; else
    /// [`Error::Mismatch`], [`Error::FingerprintChanged`], [`Error::OutcomeUnreadable`] (the body committed by
    /// itself and left no outcome) and [`Error::Expired`], in this order.
    pub fn judge(&self, record: &Record, now: SystemTime) -> Result<Judgement, Error> {
        self.check_occurred_at(now)?;
        if record.expires_at.is_some_and(|at| at < now) {
            return if self.older == Older::Run || self.pass_horizon || self.run_again {
                Ok(Judgement::TakeOver)
            } else {
                Err(self.beyond_horizon())
            };
        }
        self.judge_fingerprint(record)?;
        if self.run_again {
            return Ok(Judgement::TakeOver);
        }
        let identity = || self.identity.clone();
        if record.processed_at.is_none() {
            return Err(Error::OutcomeUnreadable { identity: identity(), source: None });
        }
        if record.outcome.is_none() || record.outcome_until.is_some_and(|at| at < now) {
            return Err(Error::Expired { identity: identity() });
        }
        Ok(Judgement::Replay)
    }

    fn judge_fingerprint(&self, record: &Record) -> Result<(), Error> {
        let comparison = match (&self.fingerprint, &record.fingerprint) {
            (None, None) => Comparison::Equal,
            (Some(ours), Some(stored)) => ours.compare(stored),
            _ => Comparison::Incomparable,
        };
        match comparison {
            Comparison::Equal => Ok(()),
            Comparison::Different => Err(Error::Mismatch { identity: self.identity.clone() }),
            Comparison::Incomparable if self.strict_fingerprints => {
                Err(Error::FingerprintChanged { identity: self.identity.clone() })
            }
            Comparison::Incomparable => {
                tracing::warn!(
                    operation = self.identity.operation(),
                    scope = self.identity.scope(),
                    key = self.identity.key(),
                    "recorded under another list of material fields: replayed without comparing the requests"
                );
                metrics::counter!(
                    "idem_fingerprint_incomparable_total",
                    "operation" => self.identity.operation().to_owned()
                )
                .increment(1);
                Ok(())
            }
        }
    }

    fn check_occurred_at(&self, now: SystemTime) -> Result<(), Error> {
        match self.occurred_at {
            Some(at) if at.duration_since(now).is_ok_and(|ahead| ahead > MAX_AHEAD) => {
                Err(Error::InvalidOccurredAt { identity: self.identity.clone(), occurred_at: at })
            }
            _ => Ok(()),
        }
    }

    fn beyond_horizon(&self) -> Error {
        Error::BeyondHorizon { identity: self.identity.clone() }
    }
}

impl Judgement {
    /// What a judged record that stays means for its claim; `None` for one that is taken over.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn unless_taken_over(judged: Result<Self, Error>) -> Option<Result<(), Error>> {
        match judged {
            Ok(Self::TakeOver) => None,
            Ok(Self::Replay) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }
}

/// What a store does with a record that [`Claim::judge`] let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Answer with the record.
    Replay,
    /// The record no longer counts: reset every column of it and run.
    TakeOver,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verified;

    const HOUR: Duration = Duration::from_secs(3_600);
    const TICK: Duration = Duration::from_micros(1);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_764_530_000)
    }

    fn fingerprint(amount: u8) -> Fingerprint {
        Fingerprint::builder("op").field("amount", &amount).expect("canonical").build()
    }

    fn claim() -> Claim {
        Claim::new(Identity::new("op", &Verified::vouch("s"), "k").expect("valid"))
            .with_fingerprint(fingerprint(1))
            .with_retain(Retain::For(HOUR))
    }

    /// Completed an hour ago; kept without end.
    fn record() -> Record {
        let mut record = Record::new(claim().identity, now() - HOUR);
        record.fingerprint = Some(fingerprint(1).to_bytes());
        record.processed_at = Some(now() - HOUR);
        record.outcome = Some("null".to_owned());
        record
    }

    #[test]
    fn a_record_expires_after_its_last_moment_and_not_in_it() {
        // C28, C29
        let mut kept = record();
        kept.outcome_until = Some(now());
        kept.expires_at = Some(now());
        for older in [Older::Refuse, Older::Run] {
            let claim = claim().with_older(older);
            assert_eq!(claim.judge(&kept, now()).expect("in its last moment"), Judgement::Replay);
        }
        let later = claim().judge(&kept, now() + TICK);
        assert!(matches!(later, Err(Error::BeyondHorizon { .. })), "{later:?}");
        let later = claim().with_older(Older::Run).judge(&kept, now() + TICK);
        assert_eq!(later.expect("taken over"), Judgement::TakeOver);
        kept.expires_at = Some(now() + HOUR);
        let later = claim().judge(&kept, now() + TICK);
        assert!(matches!(later, Err(Error::Expired { .. })), "{later:?}");
    }

    #[test]
    fn a_message_is_too_old_after_remember_and_too_early_after_a_day_and_not_in_that_moment() {
        // C29, C29c: a record that was written for it would be there for exactly as long.
        let at = |occurred_at: SystemTime| claim().with_occurred_at(occurred_at);
        at(now() - HOUR).judge_absent(now()).expect("its record would still be there");
        let old = at(now() - HOUR - TICK).judge_absent(now());
        assert!(matches!(old, Err(Error::BeyondHorizon { .. })), "{old:?}");
        at(now() - HOUR - TICK).with_older(Older::Run).judge_absent(now()).expect("wanted");

        at(now() + MAX_AHEAD).judge_absent(now()).expect("just in time");
        at(now() + MAX_AHEAD).judge(&record(), now()).expect("just in time");
        let early = [
            at(now() + MAX_AHEAD + TICK).judge_absent(now()).err(),
            at(now() + MAX_AHEAD + TICK).with_older(Older::Run).judge_absent(now()).err(),
            at(now() + MAX_AHEAD + TICK).judge(&record(), now()).err(),
        ];
        assert!(early.iter().all(|e| matches!(e, Some(Error::InvalidOccurredAt { .. }))), "{early:?}");
    }

    #[test]
    fn of_several_reasons_the_first_in_the_documented_order_is_given() {
        // C29, C25
        let mut record = record();
        record.outcome_until = Some(now() - TICK);
        record.processed_at = None;
        record.outcome = None;
        record.expires_at = Some(now() - TICK);
        let claim = claim().with_fingerprint(fingerprint(2)).with_occurred_at(now() + MAX_AHEAD + TICK);
        let verdict = claim.judge(&record, now());
        assert!(matches!(verdict, Err(Error::InvalidOccurredAt { .. })), "{verdict:?}");
        let claim = claim.with_occurred_at(now());
        let verdict = claim.judge(&record, now());
        assert!(matches!(verdict, Err(Error::BeyondHorizon { .. })), "{verdict:?}");
        record.expires_at = Some(now());
        let verdict = claim.judge(&record, now());
        assert!(matches!(verdict, Err(Error::Mismatch { .. })), "{verdict:?}");
        let claim = claim.with_fingerprint(None).with_strict_fingerprints(true);
        let verdict = claim.judge(&record, now());
        assert!(matches!(verdict, Err(Error::FingerprintChanged { .. })), "{verdict:?}");
        let claim = claim.with_strict_fingerprints(false);
        let verdict = claim.judge(&record, now());
        assert!(matches!(verdict, Err(Error::OutcomeUnreadable { .. })), "{verdict:?}");
        record.processed_at = Some(now() - HOUR);
        let verdict = claim.clone().with_fingerprint(fingerprint(2)).judge(&record, now());
        assert!(matches!(verdict, Err(Error::Mismatch { .. })), "{verdict:?}");
        let verdict = claim.judge(&record, now());
        assert!(matches!(verdict, Err(Error::Expired { .. })), "{verdict:?}");
        record.outcome_until = None;
        let verdict = claim.judge(&record, now());
        assert!(matches!(verdict, Err(Error::Expired { .. })), "the sweep has dropped it: {verdict:?}");
        record.outcome = Some("null".to_owned());
        record.outcome_until = Some(now());
        assert_eq!(claim.judge(&record, now()).expect("nothing is left"), Judgement::Replay);
    }

    #[test]
    fn a_run_repeated_is_of_one_generation_and_a_run_after_expiry_is_of_another() {
        // C43b: a second run begins after `now + remember` of the first, strictly.
        let start = SystemTime::UNIX_EPOCH + 1_000 * HOUR;
        let claim = claim().with_older(Older::Run);
        assert_eq!(claim.generation(start), claim.generation(start + HOUR - TICK));
        for offset in [Duration::ZERO, TICK, HOUR / 2, HOUR - TICK] {
            let first = start + offset;
            assert_ne!(claim.generation(first), claim.generation(first + HOUR + TICK));
        }
        let for_ever = Claim::new(claim.identity.clone());
        assert_eq!(for_ever.generation(start), Generation::Only);
        // `refuse`: the same message never runs twice, but another one may come under the key once the record is swept.
        let refusing = self::claim().with_occurred_at(start);
        assert_ne!(refusing.generation(start), refusing.generation(start + HOUR + TICK));
        let forced = Claim { label: Some("restore".into()), ..for_ever };
        assert_eq!(forced.generation(start), Generation::Label("restore".into()));
    }

    #[test]
    fn a_decision_of_a_person_passes_the_horizon_and_never_a_mismatch() {
        let mut expired = record();
        expired.expires_at = Some(now() - TICK);
        let passing = Claim { pass_horizon: true, ..claim() };
        let again = Claim { run_again: true, ..claim() };
        for decided in [&passing, &again] {
            assert_eq!(decided.judge(&expired, now()).expect("decided"), Judgement::TakeOver);
        }
        assert_eq!(passing.judge(&record(), now()).expect("known"), Judgement::Replay);
        assert_eq!(again.judge(&record(), now()).expect("decided"), Judgement::TakeOver);
        let other = Claim { run_again: true, ..claim().with_fingerprint(fingerprint(2)) };
        assert!(matches!(other.judge(&record(), now()), Err(Error::Mismatch { .. })));
        let old = claim().with_occurred_at(now() - 2 * HOUR);
        Claim { pass_horizon: true, ..old.clone() }.judge_absent(now()).expect("decided");
        assert!(old.judge_absent(now()).is_err());
    }
}
