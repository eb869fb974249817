//! The bytes of a request behind a gate. The invariant: either they have been handed to the connection, or they never
//! will be, and which of both is known at every moment. So an error, a timeout or a lost race before that is "not sent",
//! and everything after it is "unknown", whatever the client's errors are called.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

const WAITING: u8 = 0;
const PASSED: u8 = 1;
const CLOSED: u8 = 2;

/// Whether the bytes of one request may still go, or have gone.
#[derive(Debug)]
pub(super) struct Gate {
    state: AtomicU8,
    deadline: Instant,
}

impl Gate {
    /// Open until the deadline.
    pub(super) fn until(deadline: Instant) -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(WAITING), deadline })
    }

    /// Closes it. True if nothing had passed: then nothing will.
    pub(super) fn close(&self) -> bool {
        self.set(CLOSED) != PASSED
    }

    /// Lets the bytes pass, if it is not closed and the deadline is not over.
    fn pass(&self) -> bool {
        if Instant::now() >= self.deadline {
            self.close();
            return false;
        }
        self.set(PASSED) == PASSED
    }

    /// The first one to decide has decided; returns what it is now.
    fn set(&self, state: u8) -> u8 {
        match self.state.compare_exchange(WAITING, state, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => state,
            Err(decided) => decided,
        }
    }
}

/// A request's body. The connection asks for it when it writes the head, in the same step, and sends neither if the gate
/// is closed. An empty body is not asked for, so it has no gate.
#[derive(Debug)]
pub(super) struct Gated {
    bytes: Option<Bytes>,
    gate: Arc<Gate>,
}

impl Gated {
    pub(super) fn new(bytes: Bytes, gate: Arc<Gate>) -> Self {
        if bytes.is_empty() {
            gate.pass();
        }
        Self { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()), gate }
    }
}

/// The bytes were not sent.
#[derive(Debug, thiserror::Error)]
#[error("the deadline of the call was over before the request could be written")]
pub(super) struct Late;

impl Body for Gated {
    type Data = Bytes;
    type Error = Late;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Late>>> {
        Poll::Ready(self.bytes.take().map(|bytes| match self.gate.pass() {
            true => Ok(Frame::data(bytes)),
            false => Err(Late),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(body: &mut Gated) -> Option<Result<Frame<Bytes>, Late>> {
        match Pin::new(body).poll_frame(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(frame) => frame,
            Poll::Pending => panic!("it never waits"),
        }
    }

    #[test]
    fn once_it_is_said_that_nothing_was_sent_nothing_goes() {
        let gate = Gate::until(Instant::now() + Duration::from_secs(60));
        let mut body = Gated::new(Bytes::from_static(b"x"), gate.clone());
        assert!(gate.close() && gate.close());
        assert!(matches!(frame(&mut body), Some(Err(Late))));
    }

    #[test]
    fn once_the_bytes_have_gone_nobody_can_say_that_they_have_not() {
        let gate = Gate::until(Instant::now() + Duration::from_secs(60));
        let mut body = Gated::new(Bytes::from_static(b"x"), gate.clone());
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(1), false));
        assert!(matches!(frame(&mut body), Some(Ok(_))));
        assert!(!gate.close());
        assert!(body.is_end_stream() && frame(&mut body).is_none());
    }

    #[test]
    fn nothing_goes_after_the_deadline() {
        let gate = Gate::until(Instant::now());
        assert!(matches!(frame(&mut Gated::new(Bytes::from_static(b"x"), gate.clone())), Some(Err(Late))));
        assert!(gate.close());
    }

    #[test]
    fn an_empty_body_may_always_have_gone() {
        let gate = Gate::until(Instant::now() + Duration::from_secs(60));
        assert!(Gated::new(Bytes::new(), gate.clone()).is_end_stream());
        assert!(!gate.close());
    }
}
