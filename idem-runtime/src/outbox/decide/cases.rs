//! The table of cases of [`next`]: each rule, at its boundary, under the name of what goes wrong without it.

use super::*;

const MICRO: Duration = Duration::from_micros(1);
const CALL: Duration = secs(30);
const FLIGHT: Duration = secs(120);
const HOUR: Duration = secs(3_600);
const DAY: Duration = secs(86_400);
const WINDOWS: [KeyWindow; 4] =
    [KeyWindow::None, KeyWindow::Unknown, KeyWindow::AtLeast(HOUR), KeyWindow::Forever];

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// When it was staged, and first tried: a time far from 1970, which [`next`] uses as "long ago".
fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + secs(1_800_000_000)
}

/// As it was staged.
fn fresh() -> Row {
    Row {
        state: State::Pending,
        maybe_sent: false,
        window_closed: false,
        attempts: 0,
        crashes: 0,
        first_attempt_at: None,
        last_deadline: None,
        due_at: noon(),
        reference: None,
        last_error: None,
    }
}

/// The storage layer has written the first attempt, at this time.
fn tried(at: SystemTime) -> Row {
    Row { attempts: 1, first_attempt_at: Some(at), last_deadline: Some(at + CALL), ..fresh() }
}

/// And its result was not known.
fn unknown(at: SystemTime) -> Row {
    Row { maybe_sent: true, ..tried(at) }
}

fn on(window: KeyWindow, row: &Row, event: Event, now: SystemTime) -> Step {
    next(row, event, now, Terms { window, longest_flight: FLIGHT }, &Policy::default())
}

/// With a window of an hour.
fn step(row: &Row, event: Event, now: SystemTime) -> Step {
    on(KeyWindow::AtLeast(HOUR), row, event, now)
}

/// Likewise, where the row must change.
fn row_after(row: &Row, event: Event, now: SystemTime) -> Row {
    match step(row, event, now) {
        Step::Become(row) => row,
        step => panic!("{step:?}"),
    }
}

fn why() -> crate::BoxError {
    "boom".into()
}

fn delivered() -> Delivery {
    Delivery::Delivered { reference: None }
}

fn not_sent() -> Event {
    Event::Answered(Delivery::NotSent { retry_after: None, error: why() })
}

fn no_answer() -> Event {
    Event::Answered(Delivery::Unknown { retry_after: None, error: why() })
}

fn rejected() -> Event {
    Event::Answered(Delivery::Rejected { error: why() })
}

fn halted() -> Event {
    Event::Answered(Delivery::Halt { error: why() })
}

fn refused() -> Reconciled {
    Reconciled::Refused { error: why() }
}

/// One of every answer.
fn answers() -> [Delivery; 7] {
    [
        delivered(),
        Delivery::Accepted { reference: None, ask_after: HOUR },
        Delivery::NotSent { retry_after: None, error: why() },
        Delivery::Rejected { error: why() },
        Delivery::Unknown { retry_after: None, error: why() },
        Delivery::Review { error: why() },
        Delivery::Halt { error: why() },
    ]
}

mod answers;
mod questions;
mod take;
