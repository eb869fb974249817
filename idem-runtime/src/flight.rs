//! Single flight: in one process, duplicates of a claim that is running wait for it here, before they take a
//! connection, so that a hot key never takes the whole pool. The database alone decides who runs; this only spares
//! it the waiting. Memory is bounded by what is in flight.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::Instant;

use crate::{Concurrent, Identity, Record};

/// The claims of one store that are running.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<Identity, Entry>>);

/// A flight, and how many are interested in it. Counted here, under the lock of the map: by the count of the `Arc` two
/// who leave at once would each take the other for one who stays.
#[derive(Debug, Default)]
struct Entry {
    flight: Arc<Flight>,
    interested: usize,
}

#[derive(Debug, Default)]
struct Flight {
    /// Held by the leader; holds the record once one has been read.
    turn: Arc<tokio::sync::Mutex<Option<Seen>>>,
    /// Whether the leader runs a body (and does not merely ask the database).
    running: AtomicBool,
    /// Whether the leader asks the database (and does not merely wait for a connection).
    asking: AtomicBool,
    started: Notify,
}

/// A record as it was read by one of those who waited for it, which answers for all the others too.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) record: Record,
    read_at: SystemTime,
    read: Instant,
}

impl Seen {
    /// `now` is the database's clock when the record was read.
    pub(crate) fn new(record: Record, now: SystemTime) -> Self {
        Self { record, read_at: now, read: Instant::now() }
    }

    /// The database's clock by now.
    pub(crate) fn now(&self) -> SystemTime {
        self.read_at + self.read.elapsed()
    }
}

/// What became of waiting.
pub(crate) enum Boarded {
    /// Nobody else of this process is at this identity: ask the database.
    Lead(Seat),
    /// Another one has read the record meanwhile.
    Landed(Seen),
    /// The first run goes on, and the wait is over (or was not wanted).
    InProgress,
    /// The wait is over, and the one before has not even asked the database.
    Busy,
}

impl Flights {
    /// Waits until no other claim of this process is at `identity`.
    pub(crate) async fn board(
        self: &Arc<Self>,
        identity: &Identity,
        concurrent: Concurrent,
        deadline: Instant,
    ) -> Boarded {
        let ticket = self.ticket(identity);
        let flight = Arc::clone(&ticket.flight);
        let turn = async {
            let turn = Arc::clone(&flight.turn).lock_owned();
            if concurrent == Concurrent::Wait {
                return Some(turn.await);
            }
            let started = flight.started.notified();
            tokio::pin!(started);
            started.as_mut().enable();
            if flight.running.load(Ordering::Acquire) {
                return None;
            }
            tokio::select! {
                biased;
                turn = turn => Some(turn),
                () = started => None,
            }
        };
        let turn = match Arc::clone(&flight.turn).try_lock_owned() {
            Ok(turn) => Ok(Some(turn)),
            Err(_) => tokio::time::timeout_at(deadline, turn).await,
        };
        match turn {
            Err(_) if !flight.asking.load(Ordering::Acquire) => Boarded::Busy,
            Err(_) | Ok(None) => Boarded::InProgress,
            Ok(Some(turn)) => match &*turn {
                Some(seen) => Boarded::Landed(seen.clone()),
                None => Boarded::Lead(Seat { turn, ticket }),
            },
        }
    }

    fn ticket(self: &Arc<Self>, identity: &Identity) -> Ticket {
        let mut map = self.map();
        let entry = map.entry(identity.clone()).or_default();
        entry.interested += 1;
        Ticket { flight: Arc::clone(&entry.flight), flights: Arc::clone(self), identity: identity.clone() }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Identity, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many identities are in flight.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.map().len()
    }
}

/// The leader's place. Dropped without [`landed`](Self::landed), the next one who waits leads.
#[derive(Debug)]
pub(crate) struct Seat {
    turn: OwnedMutexGuard<Option<Seen>>,
    ticket: Ticket,
}

impl Seat {
    /// The database is asked, which waits while another process runs the body.
    pub(crate) fn asking(&self) {
        self.ticket.flight.asking.store(true, Ordering::Release);
    }

    /// The claim is fresh: a body runs from now on.
    pub(crate) fn running(&self) {
        self.asking();
        self.ticket.flight.running.store(true, Ordering::Release);
        self.ticket.flight.started.notify_waiters();
    }

    /// The record has been read: it answers for everybody who waits, and who comes later asks anew.
    pub(crate) fn landed(mut self, seen: Seen) {
        *self.turn = Some(seen);
        self.ticket.leave_map();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.ticket.flight.running.store(false, Ordering::Release);
        self.ticket.flight.asking.store(false, Ordering::Release);
    }
}

/// A claim's interest in a flight; the last one removes it.
#[derive(Debug)]
struct Ticket {
    flight: Arc<Flight>,
    flights: Arc<Flights>,
    identity: Identity,
}

impl Ticket {
    fn leave_map(&self) {
        let mut map = self.flights.map();
        if map.get(&self.identity).is_some_and(|entry| Arc::ptr_eq(&entry.flight, &self.flight)) {
            map.remove(&self.identity);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut map = self.flights.map();
        let Some(entry) = map.get_mut(&self.identity) else { return };
        if !Arc::ptr_eq(&entry.flight, &self.flight) {
            return;
        }
        entry.interested -= 1;
        if entry.interested == 0 {
            map.remove(&self.identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Verified;

    fn identity() -> Identity {
        Identity::new("op", &Verified::vouch("s"), "k").expect("valid")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    async fn lead(flights: &Arc<Flights>) -> Seat {
        match flights.board(&identity(), Concurrent::Wait, soon()).await {
            Boarded::Lead(seat) => seat,
            _ => panic!("nobody else is there"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_leads_and_the_next_leads_when_it_failed() {
        let flights = Arc::new(Flights::default());
        let first = lead(&flights).await;
        let next = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { drop(lead(&flights).await) }
        });
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        drop(first);
        next.await.expect("leads");
        assert_eq!(flights.len(), 0, "nothing stays behind");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_who_leave_at_once_leave_nothing_behind() {
        let flights = Arc::new(Flights::default());
        let barrier = Arc::new(std::sync::Barrier::new(2));
        let sides = [0, 1].map(|_| {
            let (flights, barrier) = (Arc::clone(&flights), Arc::clone(&barrier));
            std::thread::spawn(move || {
                for n in 0..100_000 {
                    let identity = Identity::new("op", &Verified::vouch("s"), &n.to_string()).expect("valid");
                    let ticket = flights.ticket(&identity);
                    barrier.wait();
                    drop(ticket);
                }
            })
        });
        for side in sides {
            side.join().expect("no panic");
        }
        assert_eq!(flights.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_was_read_answers_for_those_who_waited() {
        let flights = Arc::new(Flights::default());
        let first = lead(&flights).await;
        let waiting = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { flights.board(&identity(), Concurrent::Wait, soon()).await }
        });
        tokio::task::yield_now().await;
        first.landed(Seen::new(Record::new(identity(), SystemTime::now()), SystemTime::now()));
        let later = flights.board(&identity(), Concurrent::Wait, soon()).await;
        assert!(matches!(later, Boarded::Lead(_)), "who comes later asks anew, though others still wait");
        assert!(matches!(waiting.await.expect("no panic"), Boarded::Landed(_)));
        drop(later);
        assert_eq!(flights.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn reject_ends_as_soon_as_a_body_runs_and_wait_ends_at_the_deadline() {
        let flights = Arc::new(Flights::default());
        let first = lead(&flights).await;
        let rejecting = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { flights.board(&identity(), Concurrent::Reject, soon()).await }
        });
        tokio::task::yield_now().await;
        assert!(!rejecting.is_finished(), "the leader may find a record yet");
        first.running();
        let (began, deadline) = (Instant::now(), soon());
        assert!(matches!(rejecting.await.expect("no panic"), Boarded::InProgress));
        let now = flights.board(&identity(), Concurrent::Reject, deadline).await;
        assert!(matches!(now, Boarded::InProgress));
        assert_eq!(Instant::now(), began, "at once");
        let late = flights.board(&identity(), Concurrent::Wait, deadline).await;
        assert!(matches!(late, Boarded::InProgress));
        assert!(Instant::now() >= deadline && Instant::now() < deadline + Duration::from_secs(1));
        drop(first);
        assert_eq!(flights.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn reject_waits_for_the_next_leader_when_the_first_run_failed() {
        let flights = Arc::new(Flights::default());
        let first = lead(&flights).await;
        first.running();
        let next = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { lead(&flights).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        let next = next.await.expect("leads");
        let rejecting = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { flights.board(&identity(), Concurrent::Reject, soon()).await }
        });
        tokio::task::yield_now().await;
        assert!(!rejecting.is_finished(), "no body runs yet");
        drop(next);
        assert!(matches!(rejecting.await.expect("no panic"), Boarded::Lead(_)));
    }

    #[test]
    fn a_record_that_waited_is_judged_by_the_time_of_now() {
        let seen = Seen::new(Record::new(identity(), SystemTime::now()), SystemTime::UNIX_EPOCH);
        let earlier = Seen { read: seen.read.checked_sub(Duration::from_secs(5)).expect("uptime"), ..seen };
        assert!(earlier.now() >= SystemTime::UNIX_EPOCH + Duration::from_secs(5));
    }
}
