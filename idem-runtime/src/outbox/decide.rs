//! What becomes of an effect: [`next`] is the one place where that is decided, for every event, on both databases. It is
//! pure: no I/O, no clock. The tests below are its table of cases, and the model checker in `model.rs` drives this very
//! function.
//!
//! The invariant: an effect is sent again only if the one before certainly did not happen, or if the provider certainly
//! knows its key again. `maybe_sent` holds whenever a request may have reached the provider, and only an authoritative
//! answer or a person takes it back.

use std::time::{Duration, SystemTime};

use super::{Delivery, KeyWindow, Policy, Reconciled};

/// Where an effect is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// To be sent, or asked for.
    Pending,
    /// The provider has taken it: to be asked for.
    Accepted,
    /// A person decides.
    Review,
    /// It has happened.
    Delivered,
    /// The provider has refused it: it has not happened.
    Rejected,
    /// A person has given it up.
    Abandoned,
}

impl State {
    pub(crate) const ALL: [Self; 6] =
        [Self::Pending, Self::Accepted, Self::Review, Self::Delivered, Self::Rejected, Self::Abandoned];

    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Accepted => "accepted",
            Self::Review => "review",
            Self::Delivered => "delivered",
            Self::Rejected => "rejected",
            Self::Abandoned => "abandoned",
        }
    }

    /// Whether nothing more happens to it by itself or by a person's doing, but for a rejected one.
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Delivered | Self::Rejected | Self::Abandoned)
    }
}

/// What is decided about: the part of an effect's row that changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) state: State,
    /// A request may have reached the provider.
    pub(crate) maybe_sent: bool,
    /// Not to be sent again, only to be asked for.
    pub(crate) window_closed: bool,
    pub(crate) attempts: u32,
    /// Processes that died during an attempt.
    pub(crate) crashes: u32,
    /// When the first attempt that may have reached the provider was made.
    pub(crate) first_attempt_at: Option<SystemTime>,
    /// After it, nothing that may have been sent is sent any more.
    pub(crate) last_deadline: Option<SystemTime>,
    pub(crate) due_at: SystemTime,
    pub(crate) reference: Option<String>,
    pub(crate) last_error: Option<String>,
}

/// What the provider says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) window: KeyWindow,
    pub(crate) longest_flight: Duration,
}

/// What has happened to an effect.
#[derive(Debug)]
pub(crate) enum Event {
    /// It is due, and a worker has leased it.
    Take,
    /// The worker that has the lease was answered.
    Answered(Delivery),
    /// Likewise, to a question that was put at this time.
    Asked(SystemTime, Reconciled),
    /// A lease ran out, and an attempt under it has no result.
    Crashed,
    /// A worker that has lost its lease was answered; `leased`: another has one.
    Late { delivery: Delivery, leased: bool },
    /// Its bytes are not what the program takes for this effect.
    Undecodable(String),
    /// A person has decided.
    Decided(Decision),
}

/// What a person decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Delivered {
        reference: Option<String>,
    },
    /// It has not happened: send it.
    Retry,
    Abandon,
}

/// What is done about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write the attempt, if the clock still shows less than `before`, and send it.
    Send { before: Option<SystemTime> },
    /// Ask the provider whether it has happened.
    Ask,
    /// The row changes to this.
    Become(Row),
    /// The row stays as it is.
    Keep,
}

/// Decides. `now` is by the database's clock.
pub(crate) fn next(row: &Row, event: Event, now: SystemTime, terms: Terms, policy: &Policy) -> Step {
    let at = At { row, now, terms, policy };
    match event {
        // A late answer has settled it while this worker's lease had run out and nobody had taken it.
        Event::Answered(_) | Event::Asked(..) | Event::Crashed | Event::Undecodable(_)
            if row.state.is_finished() =>
        {
            Step::Keep
        }
        Event::Take => at.take(),
        Event::Answered(delivery) => at.answered(delivery),
        Event::Asked(asked_at, answer) => at.asked(asked_at, answer),
        Event::Crashed => {
            let error = "the worker ended during the attempt".to_owned();
            let row =
                Row { crashes: row.crashes + 1, maybe_sent: true, last_error: Some(error), ..row.clone() };
            at.again(row, None)
        }
        Event::Late { delivery: Delivery::Delivered { reference }, leased: false }
            if !row.state.is_finished() =>
        {
            at.delivered(reference)
        }
        Event::Late { .. } => Step::Keep,
        Event::Undecodable(error) => at.review(error),
        Event::Decided(decision) => at.decided(decision),
    }
}

/// One decision.
struct At<'a> {
    row: &'a Row,
    now: SystemTime,
    terms: Terms,
    policy: &'a Policy,
}

impl At<'_> {
    fn take(&self) -> Step {
        let row = self.row;
        if row.state.is_finished() || row.state == State::Review {
            return Step::Keep;
        }
        if let Some(reason) = self.limit(row) {
            return self.review(reason);
        }
        if row.state == State::Accepted {
            return Step::Ask;
        }
        // A person said that it had not happened when nobody could know; since then the row has been due.
        if !row.maybe_sent && self.landed_at().is_some_and(|landed| landed > row.due_at) {
            let reason =
                "decided while a request could still be on its way: look again, and decide again".to_owned();
            return At { row: &Row { maybe_sent: true, ..row.clone() }, ..*self }.review(reason);
        }
        let before = match (row.maybe_sent, row.window_closed) {
            (true, true) => Some(SystemTime::UNIX_EPOCH),
            (true, false) => self.last_moment(),
            (false, _) => None,
        };
        let closed = before.is_some_and(|before| self.now >= before);
        if closed && let Some(landed) = self.landed_at().filter(|at| *at > self.now) {
            return Step::Become(Row { window_closed: true, due_at: landed, ..row.clone() });
        }
        if closed { Step::Ask } else { Step::Send { before } }
    }

    fn answered(&self, delivery: Delivery) -> Step {
        let row = self.row.clone();
        let told = |error: crate::BoxError| Some(error.to_string());
        match delivery {
            Delivery::Delivered { reference } => self.delivered(reference),
            Delivery::Accepted { reference, ask_after } => Step::Become(Row {
                state: State::Accepted,
                maybe_sent: true,
                due_at: self.now + self.bounded(ask_after),
                reference: reference.or(row.reference.clone()),
                last_error: None,
                ..row
            }),
            Delivery::NotSent { retry_after, error } => {
                self.again(Row { last_error: told(error), ..unsent(row) }, retry_after)
            }
            Delivery::Unknown { retry_after, error } => {
                self.again(Row { maybe_sent: true, last_error: told(error), ..row }, retry_after)
            }
            Delivery::Rejected { error } if !row.maybe_sent => {
                Step::Become(Row { state: State::Rejected, last_error: told(error), ..unsent(row) })
            }
            // What came before may have happened, so a refusal proves nothing.
            Delivery::Rejected { error } => Step::Become(Row {
                window_closed: true,
                due_at: self.landed_at().map_or(self.now, |at| at.max(self.now)),
                last_error: told(error),
                ..row
            }),
            Delivery::Review { error } => {
                Step::Become(Row { state: State::Review, maybe_sent: true, last_error: told(error), ..row })
            }
            // Not a try of the effect.
            Delivery::Halt { error } => Step::Become(Row {
                attempts: row.attempts.saturating_sub(1),
                due_at: self.now,
                last_error: told(error),
                ..unsent(row)
            }),
        }
    }

    fn asked(&self, asked_at: SystemTime, answer: Reconciled) -> Step {
        let row = self.row.clone();
        // Before that, something may still be on its way that the provider has not seen.
        let settled = self.landed_at().is_none_or(|at| at <= asked_at);
        match answer {
            Reconciled::Happened { reference } => self.delivered(reference),
            Reconciled::DidNotHappen if settled => {
                Step::Become(Row { state: State::Pending, due_at: self.now, reference: None, ..cleared(row) })
            }
            Reconciled::Refused { error } if settled => Step::Become(Row {
                state: State::Rejected,
                last_error: Some(error.to_string()),
                ..cleared(row)
            }),
            Reconciled::DidNotHappen | Reconciled::Refused { .. } => {
                let landed = self.landed_at().unwrap_or(self.now);
                Step::Become(Row { due_at: landed.max(self.now + self.between_questions()), ..row })
            }
            Reconciled::Unknown => Step::Become(Row { due_at: self.now + self.between_questions(), ..row }),
            Reconciled::Unsupported => {
                self.review("it may have happened, and the provider cannot be asked".to_owned())
            }
        }
    }

    fn decided(&self, decision: Decision) -> Step {
        match (self.row.state, decision) {
            (State::Review, Decision::Delivered { reference }) => self.delivered(reference),
            (State::Review, Decision::Abandon) => {
                Step::Become(Row { state: State::Abandoned, ..self.row.clone() })
            }
            // `last_deadline` stays: it tells whether something may be on its way.
            (State::Review | State::Rejected, Decision::Retry) => Step::Become(Row {
                state: State::Pending,
                attempts: 0,
                crashes: 0,
                due_at: self.now,
                reference: None,
                ..cleared(self.row.clone())
            }),
            _ => Step::Keep,
        }
    }

    fn delivered(&self, reference: Option<String>) -> Step {
        let reference = reference.or(self.row.reference.clone());
        Step::Become(Row { state: State::Delivered, reference, last_error: None, ..self.row.clone() })
    }

    fn review(&self, reason: String) -> Step {
        // What the provider said last says more than that it was said too often.
        let last_error = match &self.row.last_error {
            Some(error) => Some(format!("{reason}: {error}")),
            None => Some(reason),
        };
        Step::Become(Row { state: State::Review, last_error, ..self.row.clone() })
    }

    /// Another attempt, later.
    fn again(&self, row: Row, retry_after: Option<Duration>) -> Step {
        if let Some(reason) = self.limit(&row) {
            return At { row: &row, ..*self }.review(reason);
        }
        let wait = self.backoff(&row).max(self.bounded(retry_after.unwrap_or_default()));
        Step::Become(Row { due_at: self.now + wait, ..row })
    }

    /// Why it is not tried any more.
    fn limit(&self, row: &Row) -> Option<String> {
        let Policy { max_attempts, max_crashes, max_age, .. } = self.policy;
        let age = row.first_attempt_at.and_then(|first| self.now.duration_since(first).ok());
        if row.crashes >= *max_crashes {
            Some(format!("{} workers ended during an attempt", row.crashes))
        } else if row.attempts >= *max_attempts && row.state == State::Pending {
            Some(format!("{} attempts", row.attempts))
        } else if age.is_some_and(|age| age >= *max_age) {
            Some(format!("not settled in {max_age:?} since the first attempt"))
        } else {
            None
        }
    }

    /// Until when a request with the same key may be sent again. One that is sent in the last moment has landed while the
    /// provider still knows the key. `None`: for ever.
    fn last_moment(&self) -> Option<SystemTime> {
        let first = self.row.first_attempt_at.unwrap_or(SystemTime::UNIX_EPOCH);
        let margin = self.policy.call_timeout + self.terms.longest_flight;
        match self.terms.window {
            KeyWindow::Forever => None,
            KeyWindow::AtLeast(window) => {
                // A window that no clock can express is one without end.
                Some(first.checked_add(window)?.checked_sub(margin).unwrap_or(SystemTime::UNIX_EPOCH))
            }
            KeyWindow::None | KeyWindow::Unknown => Some(SystemTime::UNIX_EPOCH),
        }
    }

    /// When everything that may have been sent has landed.
    fn landed_at(&self) -> Option<SystemTime> {
        self.row.last_deadline.map(|deadline| deadline + self.terms.longest_flight)
    }

    fn backoff(&self, row: &Row) -> Duration {
        let doubled = 2u32.saturating_pow(row.attempts.saturating_sub(1));
        self.policy.shortest_backoff.saturating_mul(doubled).min(self.policy.longest_backoff)
    }

    /// A quarter of the time that it has been open.
    fn between_questions(&self) -> Duration {
        let open = self.row.first_attempt_at.and_then(|first| self.now.duration_since(first).ok());
        let longest = self.policy.longest_backoff;
        (open.unwrap_or_default() / 4).clamp(self.policy.shortest_backoff.min(longest), longest)
    }

    /// A provider's wish, which is not to put a row off for ever.
    fn bounded(&self, wait: Duration) -> Duration {
        wait.min(self.policy.max_age)
    }
}

/// After an attempt that certainly has not reached the provider.
fn unsent(row: Row) -> Row {
    if row.maybe_sent { row } else { Row { first_attempt_at: None, last_deadline: None, ..row } }
}

/// As if nothing had been sent, which somebody who knows has said.
fn cleared(row: Row) -> Row {
    Row { maybe_sent: false, window_closed: false, first_attempt_at: None, last_error: None, ..row }
}

#[cfg(test)]
mod cases;
