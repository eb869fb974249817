//! When a fault happens, and what happens then.

use std::sync::atomic::{AtomicBool, Ordering};

/// When a fault fires. A fault fires once, on the first connection where this comes about; with
/// [`every_connection`](Self::every_connection) once on each.
#[derive(Clone, Debug)]
pub struct Trigger {
    pub(super) point: Point,
    every: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Point {
    Statement { contains: String, moment: Moment },
    Message { number: usize, side: Side },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    Before,
    Forwarded,
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Side {
    Frontend,
    Backend,
    Both,
}

impl Trigger {
    /// A statement with this text in it (upper and lower case are alike) is about to run; the server
    /// never gets it.
    ///
    /// Here and below, "runs" is a simple query, or the execution of a prepared statement, whenever
    /// that was prepared.
    pub fn before_statement(contains: &str) -> Self {
        Self::statement(contains, Moment::Before)
    }

    /// The statement has been handed to the server, and nothing of its answer came back. Whether it
    /// took effect is open if the connection is cut; when it goes silent, the server completes it.
    pub fn forwarded_statement(contains: &str) -> Self {
        Self::statement(contains, Moment::Forwarded)
    }

    /// The server has run the statement and answered, and the client gets nothing of that answer.
    pub fn answered_statement(contains: &str) -> Self {
        Self::statement(contains, Moment::Answered)
    }

    /// In place of the `number`-th protocol message (from 1, both ways counted together) that a
    /// connection passes after the fault was armed. So a test cuts at each message in turn:
    /// `for number in 1..`, until [`Proxy::fired`](super::Proxy::fired) is false.
    pub fn message(number: usize) -> Self {
        Self::numbered(number, Side::Both)
    }

    /// As [`message`](Self::message), counting only what the client sends.
    pub fn frontend_message(number: usize) -> Self {
        Self::numbered(number, Side::Frontend)
    }

    /// As [`message`](Self::message), counting only what the server sends.
    pub fn backend_message(number: usize) -> Self {
        Self::numbered(number, Side::Backend)
    }

    /// Fires once on every connection, also on those that are opened later, until
    /// [`Proxy::heal`](super::Proxy::heal).
    pub fn every_connection(mut self) -> Self {
        self.every = true;
        self
    }

    fn statement(contains: &str, moment: Moment) -> Self {
        let contains = contains.to_ascii_lowercase();
        Self { point: Point::Statement { contains, moment }, every: false }
    }

    fn numbered(number: usize, side: Side) -> Self {
        Self { point: Point::Message { number, side }, every: false }
    }
}

/// What a fault does to its connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Effect {
    /// Both sides get a reset (RST). What the peer had not read yet may be lost.
    Reset,
    /// Both sides get an end of stream (FIN), after what was forwarded before.
    Close,
    /// Both sockets stay open, and nothing passes any more.
    Silence,
}

/// A trigger that is armed.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) trigger: Trigger,
    pub(super) effect: Effect,
    taken: AtomicBool,
    fired: AtomicBool,
}

impl Fault {
    pub(super) fn new(trigger: Trigger, effect: Effect) -> Self {
        Self { trigger, effect, taken: AtomicBool::new(false), fired: AtomicBool::new(false) }
    }

    /// Whether a connection where the trigger came about may fire.
    pub(super) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::SeqCst) || self.trigger.every
    }

    pub(super) fn fire(&self) -> Effect {
        self.fired.store(true, Ordering::SeqCst);
        self.effect
    }

    pub(super) fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}
