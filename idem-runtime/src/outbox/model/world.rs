//! What is around the decision: the row and its lease as the two databases keep them, two workers, the network, the
//! provider, a person. Every change of the row is decided by [`next`]; nothing here knows a rule.

use std::time::{Duration, SystemTime};

use super::super::decide::{Decision, Event, Row, State, Step, next};
use super::super::{Delivery, KeyWindow, Reconciled};
use super::Outbox;

/// Everything below is in ticks.
pub(super) const TICK: Duration = Duration::from_secs(1);
pub(super) const CALL: u8 = 2;
pub(super) const FLIGHT: u8 = 1;
const LEASE: u8 = 2;
const MARGIN: u8 = 1;
/// How long a worker waits for the answer to a question before it gives up.
const PATIENCE: u8 = 3;
const FOR_EVER: u8 = u8::MAX;

/// The database's clock, always: what lies in the past moves away from it, so that time has no end and the states are
/// finitely many.
pub(super) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + TICK * 1_000_000
}

/// One state of the model. A request that was sent either has a worker who waits for it ([`Phase::Sent`]) or is in
/// `flying`; one that is lost is one that never lands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) row: Row,
    /// For how long.
    pub(super) lease: u8,
    /// The attempt under the last token has no result.
    pub(super) open: bool,
    pub(super) workers: [Worker; 2],
    /// For how long each may still land.
    pub(super) flying: Vec<u8>,
    /// How often the provider has done it, up to 2.
    pub(super) acted: u8,
    /// How many it has accepted and not done yet.
    pub(super) queued: u8,
    /// For how long it still knows the key.
    pub(super) known: u8,
    /// What the row has once ended as.
    pub(super) finished: Option<State>,
    pub(super) by_person: bool,
    /// A person said that it had not happened, and it had, or still could.
    pub(super) excused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Worker {
    /// Whether the row has its token.
    pub(super) holds: bool,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    Idle,
    /// To write the attempt, for so long.
    Judged(Option<u8>),
    /// It has, and may send for so long.
    Written(u8),
    /// It waits for so long.
    Sent(u8),
    /// It has an answer to write.
    Told(Said),
    /// It asked so long ago.
    Asking(u8),
    /// And was told.
    Knows(u8, Word),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Said {
    Delivered,
    Accepted,
    NotSent,
    Rejected,
    Unknown,
    Review,
    Halt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Word {
    Happened,
    DidNotHappen,
    Refused,
    Unknown,
    Unsupported,
}

/// What the provider makes of a request that lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Acts,
    Queues,
    Refuses,
    /// It acts, and answers what nobody understands.
    Puzzles,
    Halts,
}

impl Said {
    fn delivery(self) -> Delivery {
        let (error, retry_after) = ("said".into(), None);
        match self {
            Self::Delivered => Delivery::Delivered { reference: None },
            Self::Accepted => Delivery::Accepted { reference: None, ask_after: TICK },
            Self::NotSent => Delivery::NotSent { retry_after, error },
            Self::Rejected => Delivery::Rejected { error },
            Self::Unknown => Delivery::Unknown { retry_after, error },
            Self::Review => Delivery::Review { error },
            Self::Halt => Delivery::Halt { error },
        }
    }
}

impl Word {
    fn reconciled(self) -> Reconciled {
        match self {
            Self::Happened => Reconciled::Happened { reference: None },
            Self::DidNotHappen => Reconciled::DidNotHappen,
            Self::Refused => Reconciled::Refused { error: "said".into() },
            Self::Unknown => Reconciled::Unknown,
            Self::Unsupported => Reconciled::Unsupported,
        }
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self::of(Row {
            state: State::Pending,
            maybe_sent: false,
            window_closed: false,
            attempts: 0,
            crashes: 0,
            first_attempt_at: None,
            last_deadline: None,
            due_at: now(),
            reference: None,
            last_error: None,
        })
    }

    /// With this row, and nothing else going on.
    pub(super) fn of(row: Row) -> Self {
        let idle = Worker { holds: false, phase: Phase::Idle };
        Self {
            row,
            lease: 0,
            open: false,
            workers: [idle; 2],
            flying: Vec::new(),
            acted: 0,
            queued: 0,
            known: 0,
            finished: None,
            by_person: false,
            excused: false,
        }
    }

    /// What a restored database may find: the row as never sent, marked by the one who restored it, and the effect done, on
    /// its way, or neither.
    pub(super) fn recovered() -> [Self; 3] {
        let row = Row {
            maybe_sent: true,
            window_closed: true,
            first_attempt_at: Some(now()),
            last_deadline: Some(now() + TICK * u32::from(CALL)),
            ..Self::new().row
        };
        [(0, false), (0, true), (1, false)].map(|(acted, flies)| {
            let flying = flies.then_some(CALL + FLIGHT).into_iter().collect();
            Self { acted, flying, ..Self::of(row.clone()) }
        })
    }

    // The storage layer.

    fn write(&mut self, outbox: &Outbox, event: Event) -> Step {
        let step = next(&self.row, event, now(), outbox.terms(), &outbox.policy);
        if let Step::Become(row) = &step {
            // No rule reads the text.
            self.row = Row { last_error: None, ..row.clone() };
            self.finished = self.finished.or(Some(self.row.state).filter(|state| state.is_finished()));
        }
        step
    }

    /// Its lease is free, its time has come, and a worker may have something to do about it.
    pub(super) fn is_due(&self) -> bool {
        self.lease == 0
            && self.row.due_at <= now()
            && matches!(self.row.state, State::Pending | State::Accepted)
    }

    /// The attempt of a lease that ran out is closed.
    pub(super) fn close(&mut self, outbox: &Outbox) {
        self.workers.iter_mut().for_each(|worker| worker.holds = false);
        if std::mem::take(&mut self.open) {
            self.write(outbox, Event::Crashed);
        }
    }

    pub(super) fn take(&mut self, outbox: &Outbox, taker: usize) {
        self.close(outbox);
        let phase = match self.write(outbox, Event::Take) {
            Step::Send { before } => Phase::Judged(before.map(ticks_until)),
            Step::Ask => Phase::Asking(0),
            Step::Become(_) | Step::Keep => return,
        };
        self.lease = LEASE;
        self.workers[taker] = Worker { holds: true, phase };
    }

    /// The attempt is written; where the fence holds it off, the worker lets go.
    pub(super) fn attempt(&mut self, writer: usize, before: Option<u8>) {
        let worker = &mut self.workers[writer];
        if !worker.holds || self.lease == 0 || before == Some(0) {
            *worker = Worker { holds: false, phase: Phase::Idle };
            return;
        }
        worker.phase = Phase::Written(CALL);
        self.lease = CALL + MARGIN;
        self.open = true;
        let deadline = now() + TICK * u32::from(CALL);
        self.row.attempts += 1;
        self.row.first_attempt_at.get_or_insert(now());
        self.row.last_deadline = self.row.last_deadline.max(Some(deadline));
    }

    pub(super) fn report(&mut self, outbox: &Outbox, reporter: usize, said: Said) {
        let holds = self.workers[reporter].holds || !outbox.fenced;
        self.workers[reporter] = Worker { holds: false, phase: Phase::Idle };
        if holds {
            self.write(outbox, Event::Answered(said.delivery()));
            (self.lease, self.open) = (0, false);
        } else {
            // Whose lease ran out keeps its token: it may yet write.
            self.write(outbox, Event::Late { delivery: said.delivery(), leased: self.lease > 0 });
        }
    }

    pub(super) fn heed(&mut self, outbox: &Outbox, reporter: usize, since: u8, word: Word) {
        let holds = self.workers[reporter].holds;
        self.workers[reporter] = Worker { holds: false, phase: Phase::Idle };
        if holds {
            let asked_at = now() - TICK * u32::from(since);
            self.write(outbox, Event::Asked(asked_at, word.reconciled()));
            self.lease = 0;
        }
    }

    pub(super) fn decide(&mut self, outbox: &Outbox, decision: Decision) {
        if decision == Decision::Retry {
            // Who says so while a request is on its way says what is true, and will not stay so.
            self.excused = self.acted + self.queued > 0;
            self.finished = None;
        }
        self.by_person = matches!(decision, Decision::Delivered { .. });
        self.write(outbox, Event::Decided(decision));
    }

    /// What the worker that has the row is about.
    pub(super) fn under_way(&self) -> Option<Phase> {
        self.workers.iter().find(|worker| worker.holds).map(|worker| worker.phase)
    }

    // The network and the provider.

    /// Whether something is, or will be, on its way.
    pub(super) fn in_flight(&self) -> bool {
        let sends = |worker: &Worker| matches!(worker.phase, Phase::Written(1..) | Phase::Sent(_));
        !self.flying.is_empty() || self.workers.iter().any(sends)
    }

    pub(super) fn land(&mut self, outbox: &Outbox, fate: Fate) -> Said {
        match fate {
            Fate::Refuses => return Said::Rejected,
            Fate::Halts => return Said::Halt,
            Fate::Acts | Fate::Puzzles if self.known == 0 => self.acted = 2.min(self.acted + 1),
            Fate::Queues if self.known == 0 => self.queued += 1,
            Fate::Acts | Fate::Puzzles | Fate::Queues => {}
        }
        if self.known == 0 {
            self.known = match outbox.window {
                KeyWindow::None | KeyWindow::Unknown => 0,
                KeyWindow::AtLeast(window) => ticks(window),
                KeyWindow::Forever => FOR_EVER,
            };
        }
        match fate {
            Fate::Puzzles => Said::Review,
            _ if self.queued > 0 => Said::Accepted,
            _ => Said::Delivered,
        }
    }

    /// The provider does what it has accepted.
    pub(super) fn work(&mut self) {
        self.queued -= 1;
        self.acted = 2.min(self.acted + 1);
    }

    /// What the provider may truthfully say.
    pub(super) fn words(&self, outbox: &Outbox) -> &'static [Word] {
        match (outbox.asked, self.acted, self.queued) {
            (false, ..) => &[Word::Unsupported],
            (true, 1.., _) => &[Word::Happened, Word::Unknown],
            (true, 0, 1..) => &[Word::Unknown],
            (true, 0, 0) => &[Word::DidNotHappen, Word::Refused, Word::Unknown],
        }
    }

    /// The worker stops waiting.
    pub(super) fn time_out(&mut self, waiter: usize, left: u8) {
        self.flying.push(left + FLIGHT);
        self.workers[waiter].phase = Phase::Told(Said::Unknown);
    }

    /// A process ends; what it has sent is on its way.
    pub(super) fn crash(&mut self, worker: usize) {
        if let Phase::Sent(left) = self.workers[worker].phase {
            self.time_out(worker, left);
        }
        self.workers[worker] = Worker { holds: false, phase: Phase::Idle };
    }

    /// Time passes. What is on its way for as long as can be lands in that very moment, or never.
    pub(super) fn tick(&mut self, outbox: &Outbox, lands: bool) {
        let oldest = now() - outbox.policy.max_age - TICK * u32::from(PATIENCE + FLIGHT);
        let earlier = |time: SystemTime| (time - TICK).max(oldest);
        self.row.first_attempt_at = self.row.first_attempt_at.map(earlier);
        self.row.last_deadline = self.row.last_deadline.map(earlier);
        // Of a time that is over, only whether it was before everything had landed tells something.
        let (due, landed) =
            (self.row.due_at - TICK, self.row.last_deadline.map(|at| at + outbox.terms().longest_flight));
        self.row.due_at = match landed.filter(|landed| *landed > due && due < now()) {
            Some(landed) => (landed - TICK).min(now()),
            None => due.max(now()),
        };
        self.lease = self.lease.saturating_sub(1);
        if self.known < FOR_EVER {
            self.known = self.known.saturating_sub(1);
        }
        self.flying.iter_mut().for_each(|left| *left -= 1);
        let before = self.flying.len();
        self.flying.retain(|left| *left > 0);
        for _ in 0..if lands { before - self.flying.len() } else { 0 } {
            self.land(outbox, Fate::Acts);
        }
        for index in 0..self.workers.len() {
            let phase = &mut self.workers[index].phase;
            match *phase {
                Phase::Judged(before) => *phase = Phase::Judged(before.map(|left| left.saturating_sub(1))),
                Phase::Written(left) => *phase = Phase::Written(left.saturating_sub(1)),
                Phase::Sent(1) => self.time_out(index, 0),
                Phase::Sent(left) => *phase = Phase::Sent(left - 1),
                Phase::Asking(PATIENCE) | Phase::Knows(PATIENCE, _) => self.crash(index),
                Phase::Asking(since) => *phase = Phase::Asking(since + 1),
                Phase::Knows(since, word) => *phase = Phase::Knows(since + 1, word),
                Phase::Idle | Phase::Told(_) => {}
            }
        }
    }
}

pub(super) fn ticks(duration: Duration) -> u8 {
    u8::try_from(duration.as_secs()).unwrap_or(u8::MAX)
}

fn ticks_until(time: SystemTime) -> u8 {
    time.duration_since(now()).map_or(0, ticks)
}
