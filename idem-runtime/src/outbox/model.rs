//! The outbox as a model that stateright checks: every order of crashes, stalls, late requests, late results and decisions
//! around one row, two workers and one provider. It drives [`next`](super::decide::next) itself.
//!
//! Time is relative and has no end: an answer may be written, and a row taken, as late as one likes. The bounds are the two
//! workers (which are kept sorted: their numbers in a path are places), the small limits of the policy, and that a wrong
//! word of a person ends a run, since what follows is on them. Left out: order keys, several rows, the pause of a provider
//! after `Halt`, the wishes of a provider for a wait, a new key at a person's retry.

mod world;

use std::collections::HashSet;
use std::sync::Mutex;

use stateright::{Checker as _, Model, Property};

use super::decide::{Decision, Row, State, Terms};
use super::{KeyWindow, Policy};
use world::{CALL, FLIGHT, Fate, Phase, Said, TICK, Word, World};

/// One configuration.
#[derive(Debug)]
struct Outbox {
    window: KeyWindow,
    /// The provider can be asked.
    asked: bool,
    /// The provider may accept now and act later.
    accepts: bool,
    /// A result counts as the lease holder's only under its token.
    fenced: bool,
    policy: Policy,
    start: Vec<World>,
    /// Rows of which it is known that they come to an end.
    ending: Mutex<HashSet<(Row, u8, bool)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A tick, and whether what is due to land or be lost at its end lands.
    Tick(bool),
    Take(usize),
    /// Closes an attempt whose lease ran out, and does not take the row.
    Close,
    WriteAttempt(usize),
    Send(usize),
    NotSent(usize),
    Answer(usize, Fate),
    TimeOut(usize),
    /// A request lands that nobody waits for.
    Land(usize, Fate),
    /// The provider does what it accepted.
    Work,
    /// The provider drops what it accepted, and forgets the key.
    Drop,
    WriteResult(usize),
    Reply(usize, Word),
    WriteReply(usize),
    Crash(usize),
    SayDelivered,
    SayRetry,
    SayAbandon,
}

impl Outbox {
    fn new(window: KeyWindow, asked: bool, accepts: bool) -> Self {
        let policy = Policy {
            max_attempts: 3,
            max_crashes: 2,
            max_age: TICK * 8,
            call_timeout: TICK * u32::from(CALL),
            shortest_backoff: TICK,
            longest_backoff: TICK,
            ..Policy::default()
        };
        let (start, ending) = (vec![World::new()], Mutex::new(HashSet::new()));
        Self { window, asked, accepts, fenced: true, policy, start, ending }
    }

    pub(super) fn terms(&self) -> Terms {
        Terms { window: self.window, longest_flight: TICK * u32::from(FLIGHT) }
    }

    fn steps(&self, worker: usize, phase: Phase, actions: &mut Vec<Action>, world: &World) {
        match phase {
            Phase::Idle if world.is_due() => actions.push(Action::Take(worker)),
            Phase::Idle => return,
            Phase::Judged(_) => actions.push(Action::WriteAttempt(worker)),
            Phase::Written(left) => {
                // The worker's own clock is the last thing it looks at.
                actions.extend((left > 0).then_some(Action::Send(worker)));
                actions.push(Action::NotSent(worker));
            }
            Phase::Sent(_) => {
                actions.push(Action::TimeOut(worker));
                let fates = [Fate::Acts, Fate::Refuses, Fate::Puzzles, Fate::Halts];
                actions.extend(fates.map(|fate| Action::Answer(worker, fate)));
                actions.extend(self.accepts.then_some(Action::Answer(worker, Fate::Queues)));
            }
            Phase::Told(_) => actions.push(Action::WriteResult(worker)),
            Phase::Asking(_) => {
                actions.extend(world.words(self).iter().map(|word| Action::Reply(worker, *word)));
            }
            Phase::Knows(..) => actions.push(Action::WriteReply(worker)),
        }
        actions.extend((phase != Phase::Idle).then_some(Action::Crash(worker)));
    }

    /// Whether the row comes to an end or to a person when one worker goes on alone and the provider says nothing that
    /// settles anything. Stateright cannot check that something happens at last where there are cycles; this is a path that
    /// is walked.
    fn ends(&self, world: &World) -> bool {
        let start = (world.row.clone(), world.lease, world.open);
        if self.ending.lock().expect("no panic").contains(&start) {
            return true;
        }
        let ends = [
            (Some(Said::Unknown), Word::Unknown),
            (Some(Said::Unknown), Word::DidNotHappen),
            (Some(Said::NotSent), Word::Unknown),
            (Some(Said::Rejected), Word::DidNotHappen),
            (Some(Said::Accepted), Word::Unknown),
            (Some(Said::Accepted), Word::DidNotHappen),
            (None, Word::DidNotHappen),
        ]
        .into_iter()
        .all(|(said, word)| self.ends_with(&start, said, word));
        if ends {
            self.ending.lock().expect("no panic").insert(start);
        }
        ends
    }

    /// `None`: the worker crashes in every attempt.
    fn ends_with(&self, (row, lease, open): &(Row, u8, bool), said: Option<Said>, word: Word) -> bool {
        let mut world = World { lease: *lease, open: *open, ..World::of(row.clone()) };
        for _ in 0..40 {
            if world.row.state.is_finished() || world.row.state == State::Review {
                return true;
            }
            if world.is_due() {
                world.take(self, 0);
            }
            if let Phase::Judged(before) = world.workers[0].phase {
                world.attempt(0, before);
            }
            match (world.workers[0].phase, said) {
                (Phase::Written(_), Some(said)) => world.report(self, 0, said),
                (Phase::Asking(since), _) => world.heed(self, 0, since, word),
                _ => world.crash(0),
            }
            world.tick(self, false);
        }
        false
    }
}

impl Model for Outbox {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        self.start.clone()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.excused {
            return;
        }
        actions.push(Action::Tick(false));
        actions.extend(world.flying.contains(&1).then_some(Action::Tick(true)));
        for (index, worker) in world.workers.iter().enumerate() {
            self.steps(index, worker.phase, actions, world);
        }
        actions.extend((world.open && world.is_due()).then_some(Action::Close));
        for index in 0..world.flying.len() {
            actions.push(Action::Land(index, Fate::Acts));
            actions.extend(self.accepts.then_some(Action::Land(index, Fate::Queues)));
        }
        if world.queued > 0 {
            actions.extend([Action::Work, Action::Drop]);
        }
        match world.row.state {
            State::Review => actions.extend([Action::SayRetry, Action::SayDelivered, Action::SayAbandon]),
            State::Rejected => actions.push(Action::SayRetry),
            _ => {}
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Tick(lands) => world.tick(self, lands),
            Action::Take(worker) => world.take(self, worker),
            Action::Close => world.close(self),
            Action::Land(index, fate) => {
                world.flying.remove(index);
                world.land(self, fate);
            }
            Action::Work => world.work(),
            Action::Drop => (world.queued, world.known) = (world.queued - 1, 0),
            Action::Crash(worker) => world.crash(worker),
            Action::SayDelivered => world.decide(self, Decision::Delivered { reference: None }),
            Action::SayRetry => world.decide(self, Decision::Retry),
            Action::SayAbandon => world.decide(self, Decision::Abandon),
            Action::WriteAttempt(worker)
            | Action::Send(worker)
            | Action::NotSent(worker)
            | Action::Answer(worker, _)
            | Action::TimeOut(worker)
            | Action::WriteResult(worker)
            | Action::Reply(worker, _)
            | Action::WriteReply(worker) => match (action, world.workers[worker].phase) {
                (Action::WriteAttempt(_), Phase::Judged(before)) => world.attempt(worker, before),
                (Action::Send(_), Phase::Written(left)) => world.workers[worker].phase = Phase::Sent(left),
                (Action::NotSent(_), _) => world.workers[worker].phase = Phase::Told(Said::NotSent),
                (Action::Answer(_, fate), _) => {
                    world.workers[worker].phase = Phase::Told(world.land(self, fate));
                }
                (Action::TimeOut(_), Phase::Sent(left)) => world.time_out(worker, left),
                (Action::WriteResult(_), Phase::Told(said)) => world.report(self, worker, said),
                (Action::Reply(_, word), Phase::Asking(since)) => {
                    world.workers[worker].phase = Phase::Knows(since, word);
                }
                (Action::WriteReply(_), Phase::Knows(since, word)) => world.heed(self, worker, since, word),
                (action, phase) => unreachable!("{action:?} in {phase:?}"),
            },
        }
        world.workers.sort_unstable();
        world.flying.sort_unstable();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TWICE, |_, world: &World| world.acted < 2),
            Property::always("what is finished stays so", |_, world: &World| {
                world.finished.is_none_or(|state| state == world.row.state)
            }),
            Property::always("what is delivered has happened", |_, world: &World| {
                world.row.state != State::Delivered || world.by_person || world.acted > 0
            }),
            Property::always("what is rejected has not happened", |_, world: &World| {
                world.row.state != State::Rejected || world.acted + world.queued == 0
            }),
            Property::always("what may have been sent is marked so", |outbox: &Self, world: &World| {
                let sent = world.acted + world.queued > 0 || !world.flying.is_empty();
                let over = world.excused || world.row.state == State::Delivered;
                // A person has cleared it too early, and the next take sees that.
                let hasty = world
                    .row
                    .last_deadline
                    .is_some_and(|at| at + outbox.terms().longest_flight > world.row.due_at);
                !sent || world.row.maybe_sent || world.open || over || hasty
            }),
            Property::always("nothing is asked about while it is on its way", |_, world: &World| {
                let asks = matches!(world.under_way(), Some(Phase::Asking(_)));
                world.excused || world.row.state != State::Pending || !asks || !world.in_flight()
            }),
            Property::always("what was accepted is not sent again", |_, world: &World| {
                world.row.state != State::Accepted || !matches!(world.under_way(), Some(Phase::Judged(_)))
            }),
            Property::always("a row comes to an end or to a person", |outbox: &Self, world: &World| {
                world.excused || outbox.ends(world)
            }),
            // A model that does not get there would prove nothing.
            Property::sometimes("delivered by the provider's word", |_, world: &World| {
                world.row.state == State::Delivered && !world.by_person
            }),
            Property::sometimes("rejected", |_, world: &World| world.row.state == State::Rejected),
            Property::sometimes("abandoned though it has happened", |_, world: &World| {
                world.row.state == State::Abandoned && world.acted == 1
            }),
            Property::sometimes("three attempts", |outbox: &Self, world: &World| {
                world.row.attempts == outbox.policy.max_attempts
            }),
        ]
    }
}

const TWICE: &str = "nothing happens twice";

fn window(ticks: u32) -> KeyWindow {
    KeyWindow::AtLeast(TICK * ticks)
}

/// All states, and every property in each.
fn check(name: &str, outbox: Outbox) {
    let began = std::time::Instant::now();
    let checker = outbox.checker().spawn_bfs().join();
    eprintln!("{name}: {} states in {:?}", checker.unique_state_count(), began.elapsed());
    checker.assert_properties();
}

/// The shortest way to break this property.
fn counterexample(property: &'static str, outbox: impl Fn() -> Outbox) -> Vec<Action> {
    // Of one search stateright keeps the last, so it is searched deeper and deeper.
    let found = (1..60).find_map(|depth| {
        let checker = outbox().checker().target_max_depth(depth).spawn_bfs().join();
        checker.discovery(property)
    });
    let actions = found.expect("the model finds it").into_actions();
    eprintln!("{property}: broken by {actions:?}");
    actions
}

#[test]
fn without_a_window_what_may_have_been_sent_is_not_sent_again() {
    check("no window", Outbox::new(KeyWindow::None, false, true));
    check("no window, can be asked", Outbox::new(KeyWindow::None, true, true));
}

#[test]
fn with_a_window_nothing_is_sent_that_could_land_after_it() {
    check("a window", Outbox::new(window(5), false, false));
    check("a window, can be asked", Outbox::new(window(5), true, true));
}

#[test]
fn a_window_that_is_shorter_than_a_call_and_its_flight_is_none() {
    check("a short window", Outbox::new(window(3), true, false));
}

#[test]
fn with_a_window_without_end_everything_may_be_sent_again() {
    check("a window without end", Outbox::new(KeyWindow::Forever, false, false));
    check("a window without end, can be asked", Outbox::new(KeyWindow::Forever, true, false));
}

/// After a restore the row is older than what was sent. It is safe if it is taken as sent just now.
#[test]
fn what_was_pending_when_the_database_was_restored_is_asked_about_first() {
    for window in [KeyWindow::None, window(5)] {
        let start = World::recovered().to_vec();
        check("recovered", Outbox { start, ..Outbox::new(window, true, false) });
    }
}

#[test]
fn without_the_fence_of_the_result_the_model_finds_a_second_effect() {
    let unfenced = || Outbox { fenced: false, ..Outbox::new(KeyWindow::None, true, false) };
    let path = counterexample(TWICE, unfenced);
    assert!(path.iter().any(|action| matches!(action, Action::WriteResult(_))));
}
