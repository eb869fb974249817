//! What one worker does for one provider.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::clock::{Clock, jitter};
use super::decide::{Event, Row, Step, Terms, next};
use super::erased::{AnyProvider, Ready};
use super::evidence::{describe, describe_answer};
use super::queue::{Attempt, AttemptTerms, Change, Current, Evidence, Lease, Leased, Note, Queue, Settled};
use super::{Call, Delivery, Policy, Reconciled};
use crate::Error;

/// By how much a lease outlives the deadline of its call: time to write the result.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// How often a worker says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// How long a provider that refuses its caller is left alone at first; doubled up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How long nothing is asked of a database that failed.
const DATABASE_AWAY: Duration = Duration::from_millis(500);

pub(crate) struct Lane {
    queue: Arc<dyn Queue>,
    provider: Arc<dyn AnyProvider>,
    terms: Terms,
    policy: Policy,
    worker: Uuid,
    stopping: watch::Receiver<bool>,
    staged: Arc<Notify>,
    clock: Clock,
    /// Leased, and not begun.
    leased: Vec<Leased>,
    calls: JoinSet<Answer>,
    /// To be written.
    settled: Vec<Settled>,
    /// There was nothing more to lease: when to look again, unless something is staged before.
    drained_until: Option<Instant>,
    paused: Option<Paused>,
    /// When to say again that it is there.
    heartbeat: Instant,
    /// When it was told to stop.
    stopped_at: Option<Instant>,
}

/// The provider has refused its caller.
struct Paused {
    until: Instant,
    wait: Duration,
    error: String,
}

/// What a call ended with.
struct Answer {
    leased: Leased,
    ended: Ended,
}

enum Ended {
    Delivered(Delivery),
    Asked(SystemTime, Reconciled),
}

impl Lane {
    pub(crate) fn new(
        queue: Arc<dyn Queue>,
        provider: Arc<dyn AnyProvider>,
        policy: Policy,
        worker: Uuid,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        Self {
            staged: queue.staged(),
            terms: provider.terms(),
            queue,
            provider,
            policy,
            worker,
            stopping,
            clock: Clock { at: SystemTime::UNIX_EPOCH, read: Instant::now() },
            leased: Vec::new(),
            calls: JoinSet::new(),
            settled: Vec::new(),
            drained_until: None,
            paused: None,
            heartbeat: Instant::now(),
            stopped_at: None,
        }
    }

    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let staged = Arc::clone(&self.staged);
        loop {
            // Before the look, so that what is staged after it is not missed.
            let told = staged.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            if *self.stopping.borrow() {
                self.stopped_at.get_or_insert_with(Instant::now);
            }
            if let Err(error) = self.turn().await {
                let grace = self.policy.call_timeout + LEASE_MARGIN;
                if self.stopped_at.is_some_and(|at| at.elapsed() > grace) {
                    return Err(error);
                }
                tracing::warn!(effect = self.provider.effect(), %error, "the outbox could not be asked; trying again");
                tokio::time::sleep(DATABASE_AWAY).await;
                continue;
            }
            let stopping = self.stopped_at.is_some();
            if stopping && self.leased.is_empty() && self.calls.is_empty() && self.settled.is_empty() {
                return Ok(());
            }
            let look = self.next_look();
            tokio::select! {
                biased;
                Some(answer) = self.calls.join_next(), if !self.calls.is_empty() => {
                    self.answered(answer);
                    // What ends at the same time is written together.
                    tokio::task::yield_now().await;
                }
                () = told, if !stopping => self.drained_until = None,
                _ = self.stopping.changed(), if !stopping => {}
                () = tokio::time::sleep_until(look) => {}
            }
        }
    }

    /// Everything that can be done without waiting for a provider.
    async fn turn(&mut self) -> Result<(), Error> {
        while let Some(answer) = self.calls.try_join_next() {
            self.answered(answer);
        }
        if self.stopped_at.is_some() || self.is_paused() {
            for leased in std::mem::take(&mut self.leased) {
                self.hand_back(leased);
            }
        }
        self.settle().await?;
        self.say_that_it_is_there().await;
        if self.stopped_at.is_some() || self.is_paused() {
            return Ok(());
        }
        self.lease().await?;
        self.dispatch().await
    }

    fn is_paused(&self) -> bool {
        self.paused.as_ref().is_some_and(|paused| Instant::now() < paused.until)
    }

    /// How many calls may be begun. After a pause one finds out.
    fn room(&self) -> usize {
        let most = if self.paused.is_some() { 1 } else { self.policy.concurrency.max(1) };
        most.saturating_sub(self.calls.len())
    }

    /// When there may be something to do though no call has ended.
    fn next_look(&self) -> Instant {
        let now = Instant::now();
        let look = if !self.settled.is_empty() {
            now
        } else if let Some(paused) = self.paused.as_ref().filter(|paused| paused.until > now) {
            paused.until
        } else if let Some(until) = self.drained_until.filter(|_| self.leased.is_empty()) {
            until
        } else if self.room() > 0 {
            now
        } else {
            self.heartbeat
        };
        look.min(self.heartbeat)
    }

    async fn lease(&mut self) -> Result<(), Error> {
        let drained = self.drained_until.is_some_and(|until| Instant::now() < until);
        if drained || self.leased.len() >= self.room() {
            return Ok(());
        }
        let lasts = self.policy.call_timeout + LEASE_MARGIN;
        let limit = if self.paused.is_some() { 1 } else { self.policy.concurrency.max(1) };
        let lease = Lease { effect: self.provider.effect(), token: Uuid::new_v4(), lasts, limit };
        let read = Instant::now();
        let batch = self.queue.lease(&lease).await?;
        self.clock = Clock { at: batch.now, read };
        self.drained_until = (!batch.full).then(|| {
            let poll = self.policy.poll_interval;
            Instant::now() + poll + jitter(poll)
        });
        self.leased.extend(batch.rows);
        Ok(())
    }

    /// Judges what is leased, as far as there is room, and begins what is to be done.
    async fn dispatch(&mut self) -> Result<(), Error> {
        let wave: Vec<Leased> = self.leased.drain(..self.room().min(self.leased.len())).collect();
        let mut sends = Vec::new();
        for leased in wave {
            let event = if leased.crashed { Event::Crashed } else { Event::Take };
            let evidence = if leased.crashed { Evidence::Crashed } else { Evidence::None };
            let step = next(&leased.row, event, self.clock.now(), self.terms, &self.policy);
            let (ready, before) = match step {
                Step::Become(row) => {
                    self.settled.push(self.becoming(leased, row, evidence));
                    continue;
                }
                Step::Keep => {
                    self.hand_back(leased);
                    continue;
                }
                Step::Send { before } => (Arc::clone(&self.provider).decode(&leased.payload), Some(before)),
                Step::Ask => (Arc::clone(&self.provider).decode(&leased.payload), None),
            };
            match (ready, before) {
                (Ok(ready), Some(before)) => sends.push((leased, ready, before)),
                (Ok(ready), None) => self.ask(leased, ready),
                (Err(error), _) => {
                    let event = Event::Undecodable(error);
                    if let Step::Become(row) =
                        next(&leased.row, event, self.clock.now(), self.terms, &self.policy)
                    {
                        self.settled.push(self.becoming(leased, row, Evidence::None));
                    }
                }
            }
        }
        if sends.is_empty() {
            return Ok(());
        }
        self.send(sends).await
    }

    /// Writes the attempts of a wave, and makes the calls.
    async fn send(&mut self, sends: Vec<(Leased, Box<dyn Ready>, Option<SystemTime>)>) -> Result<(), Error> {
        let call_timeout = self.policy.call_timeout;
        let terms = AttemptTerms { call_timeout, lease: call_timeout + LEASE_MARGIN };
        let attempts: Vec<Attempt> = sends
            .iter()
            .map(|(leased, _, before)| Attempt { id: leased.id, token: leased.token, before: *before })
            .collect();
        // From before they are written: the calls end before the leases do.
        let deadline = Instant::now() + call_timeout;
        let started = match self.queue.attempt(&terms, &attempts).await {
            Ok(started) => started,
            Err(error) => {
                // Whether or not they were written: nothing was sent.
                for (leased, ..) in sends {
                    let detail = Some("the attempt could not be written".to_owned());
                    let evidence = Evidence::Attempt { result: "not sent", detail };
                    let row = leased.row.clone();
                    self.settled.push(self.becoming(leased, row, evidence));
                }
                return Err(error);
            }
        };
        let mut started: HashMap<i64, _> = started.into_iter().map(|started| (started.id, started)).collect();
        for (mut leased, ready, _) in sends {
            let Some(started) = started.remove(&leased.id) else {
                self.hand_back(leased);
                continue;
            };
            leased.row.attempts = started.attempts;
            leased.row.first_attempt_at = Some(started.first_attempt_at);
            leased.row.last_deadline = Some(started.last_deadline);
            let call = call(&leased, deadline);
            self.calls.spawn(async move {
                let ended = Ended::Delivered(ready.deliver(&call).await);
                Answer { leased, ended }
            });
        }
        Ok(())
    }

    fn ask(&mut self, leased: Leased, ready: Box<dyn Ready>) {
        let asked_at = self.clock.now();
        let call = call(&leased, Instant::now() + self.policy.call_timeout);
        self.calls.spawn(async move {
            let ended = Ended::Asked(asked_at, ready.reconcile(&call).await);
            Answer { leased, ended }
        });
    }

    /// Decides about a call that has ended.
    fn answered(&mut self, answer: Result<Answer, tokio::task::JoinError>) {
        let Ok(Answer { leased, ended }) = answer else {
            // Its task was cancelled with the runtime: nobody is left to write.
            return;
        };
        let (event, evidence) = match ended {
            Ended::Delivered(delivery) => {
                self.heed(&delivery);
                let (result, detail) = describe(&delivery);
                (Event::Answered(delivery), Evidence::Attempt { result, detail })
            }
            Ended::Asked(at, answer) => {
                let (result, detail) = describe_answer(&answer);
                (Event::Asked(at, answer), Evidence::Asked { at, result, detail })
            }
        };
        if let Step::Become(row) = next(&leased.row, event, self.clock.now(), self.terms, &self.policy) {
            self.settled.push(self.becoming(leased, row, evidence));
        }
    }

    /// Pauses where the provider refuses its caller, and goes on where it does not.
    fn heed(&mut self, delivery: &Delivery) {
        let now = Instant::now();
        match delivery {
            // One of those that were on their way when it was paused.
            Delivery::Halt { .. } if self.is_paused() => {}
            Delivery::Halt { error } => {
                let wait = self.paused.as_ref().map_or(SHORTEST_PAUSE, |paused| paused.wait * 2);
                let wait = wait.min(LONGEST_PAUSE);
                let effect = self.provider.effect();
                tracing::error!(effect, %error, ?wait, "the provider refuses this caller: paused");
                self.paused = Some(Paused { until: now + wait, wait, error: error.to_string() });
                self.heartbeat = now;
            }
            _ if self.paused.is_some() && !self.is_paused() => {
                self.paused = None;
                self.heartbeat = now;
            }
            _ => {}
        }
    }

    fn hand_back(&mut self, leased: Leased) {
        let row = leased.row.clone();
        self.settled.push(self.becoming(leased, row, Evidence::None));
    }

    /// Waits are stretched a little, so that what failed together is not tried together.
    fn becoming(&self, leased: Leased, mut row: Row, evidence: Evidence) -> Settled {
        if let Ok(wait) = row.due_at.duration_since(self.clock.now()) {
            row.due_at += jitter(wait);
        }
        Settled { id: leased.id, token: leased.token, row, ordered: leased.ordered, evidence }
    }

    /// Writes what is decided.
    async fn settle(&mut self) -> Result<(), Error> {
        if self.settled.is_empty() {
            return Ok(());
        }
        let ours = self.queue.settle(&self.settled).await?;
        let mut late = std::mem::take(&mut self.settled);
        late.retain(|settled| {
            !ours.contains(&settled.id) && matches!(settled.evidence, Evidence::Attempt { .. })
        });
        while let Some(settled) = late.pop() {
            if let Err(error) = self.report_late(&settled).await {
                late.push(settled);
                self.settled = late;
                return Err(error);
            }
        }
        Ok(())
    }

    /// The lease is another's, or was: what the provider said is evidence, and that it is done may be more.
    async fn report_late(&self, settled: &Settled) -> Result<(), Error> {
        let Evidence::Attempt { result, detail } = settled.evidence.clone() else { return Ok(()) };
        let decide = |current: &Current| {
            let is_delivered = settled.row.state == super::State::Delivered;
            let delivery = Delivery::Delivered { reference: settled.row.reference.clone() };
            let event = Event::Late { delivery, leased: current.leased };
            let row = match next(&current.row, event, current.now, self.terms, &self.policy) {
                Step::Become(row) if is_delivered => Some(row),
                _ => None,
            };
            Change { row, effect_key: None, note: Note::Late { token: settled.token, result, detail } }
        };
        self.queue.change(settled.id, Box::new(decide)).await.map(drop)
    }

    async fn say_that_it_is_there(&mut self) {
        let now = Instant::now();
        if now < self.heartbeat {
            return;
        }
        self.heartbeat = now + HEARTBEAT;
        let paused = self.paused.as_ref().filter(|paused| paused.until > now);
        let paused = paused.map(|paused| (paused.until - now, paused.error.as_str()));
        if let Err(error) = self.queue.seen(self.provider.effect(), self.worker, paused).await {
            tracing::debug!(%error, "that a worker is there could not be written");
        }
    }
}

fn call(leased: &Leased, deadline: Instant) -> Call {
    Call {
        effect_key: leased.effect_key.clone(),
        payload: leased.payload.clone(),
        content_type: leased.content_type.clone(),
        attempt: leased.row.attempts,
        created_at: leased.created_at,
        first_attempt_at: leased.row.first_attempt_at,
        deadline: deadline.into_std(),
        reference: leased.row.reference.clone(),
    }
}
