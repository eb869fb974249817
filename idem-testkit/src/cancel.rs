//! Cancellation at a chosen poll. A handler's future may be dropped wherever it waits (HTTP timeout,
//! `select!`), so a test drops it at every poll in turn. No clock is involved: poll `n` is the `n`-th
//! time the future is asked, whatever that takes.
//!
//! There are two ways to die at poll `n`, and both find faults that the other does not: right after
//! the poll, with the question still on its way ([`drop_at_poll`]), and when the future has been woken
//! again, with the answer there but unread ([`drop_at_wake`]).

use std::pin::Pin;
use std::task::{Context, Poll};

/// More polls than any handler needs: a future that goes on for longer never completes.
const TOO_MANY: usize = 100_000;

/// Polls the future at most `n` times, each time when it was woken, and drops it right after the last.
/// `Some` if it completed by then. With `n = 0` it is never polled.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use idem_testkit::cancel::drop_at_poll;
/// let twice = || async {
///     tokio::task::yield_now().await;
///     7
/// };
/// assert_eq!(drop_at_poll(1, twice()).await, None);
/// assert_eq!(drop_at_poll(2, twice()).await, Some(7));
/// # });
/// ```
pub fn drop_at_poll<F: Future>(n: usize, future: F) -> DropAt<F> {
    DropAt { future: Some(Box::pin(future)), left: n, woken: false }
}

/// As [`drop_at_poll`], but after the `n`-th poll it waits until the future is woken again, and drops
/// it then, in place of the next poll. With `n = 0` it is never polled.
pub fn drop_at_wake<F: Future>(n: usize, future: F) -> DropAt<F> {
    DropAt { future: Some(Box::pin(future)), left: n, woken: true }
}

/// The future of [`drop_at_poll`] and [`drop_at_wake`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct DropAt<F> {
    future: Option<Pin<Box<F>>>,
    left: usize,
    woken: bool,
}

impl<F: Future> Future for DropAt<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left > 0
            && let Some(future) = &mut self.future
        {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                self.future = None;
                return Poll::Ready(Some(output));
            }
            self.left -= 1;
            if self.left > 0 || self.woken {
                return Poll::Pending;
            }
        }
        self.future = None;
        Poll::Ready(None)
    }
}

/// Runs `make` to its `n`-th poll for `n = 0, 1, ..` until it completes, and `check` after each: with
/// `n` and the output, if it got that far. Returns the number of polls that it took to complete.
///
/// Each round wants a fresh start (another key, another connection): that is what `n` is for.
///
/// # Panics
/// If it does not complete in 100,000 polls.
pub async fn at_every_poll<T>(
    mut make: impl AsyncFnMut(usize) -> T,
    mut check: impl AsyncFnMut(usize, Option<T>),
) -> usize {
    for n in 0..TOO_MANY {
        let output = drop_at_poll(n, make(n)).await;
        let done = output.is_some();
        check(n, output).await;
        if done {
            return n;
        }
    }
    panic!("not complete after {TOO_MANY} polls");
}

/// As [`at_every_poll`], with [`drop_at_wake`].
///
/// # Panics
/// If it does not complete in 100,000 polls.
pub async fn at_every_wake<T>(
    mut make: impl AsyncFnMut(usize) -> T,
    mut check: impl AsyncFnMut(usize, Option<T>),
) -> usize {
    for n in 0..TOO_MANY {
        let output = drop_at_wake(n, make(n)).await;
        let done = output.is_some();
        check(n, output).await;
        if done {
            return n;
        }
    }
    panic!("not complete after {TOO_MANY} polls");
}

/// Counts the polls of the future in it; its output is the future's own and that number.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct CountPolls<F> {
    future: Pin<Box<F>>,
    polls: usize,
}

impl<F: Future> CountPolls<F> {
    /// Wraps a future that has not been polled yet.
    pub fn new(future: F) -> Self {
        Self { future: Box::pin(future), polls: 0 }
    }

    /// How often it has been polled so far.
    pub fn polls(&self) -> usize {
        self.polls
    }
}

impl<F: Future> Future for CountPolls<F> {
    type Output = (F::Output, usize);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.polls += 1;
        let polls = self.polls;
        self.future.as_mut().poll(context).map(|output| (output, polls))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Adds one to `steps` before each of its three waits and before its end.
    async fn four_steps(steps: &Cell<usize>) {
        for _ in 0..3 {
            steps.set(steps.get() + 1);
            tokio::task::yield_now().await;
        }
        steps.set(steps.get() + 1);
    }

    #[tokio::test]
    async fn each_poll_goes_one_step_further() {
        let steps = Cell::new(0);
        let polls = at_every_poll(
            async |_| {
                steps.set(0);
                four_steps(&steps).await;
            },
            async |n, output| {
                assert_eq!(output.is_some(), n == 4);
                if n > 0 {
                    assert_eq!(steps.get(), n);
                }
            },
        )
        .await;
        assert_eq!(polls, 4);
    }

    #[tokio::test]
    async fn a_future_is_dropped_at_once_or_when_woken() {
        let (send, receive) = tokio::sync::oneshot::channel::<()>();
        assert_eq!(drop_at_poll(1, receive).await, None, "it would wait for ever, were it not dropped");
        assert!(send.is_closed());

        let (send, receive) = tokio::sync::oneshot::channel::<()>();
        let woken = drop_at_wake(1, receive);
        tokio::pin!(woken);
        assert!(futures_poll_once(woken.as_mut()).await.is_none());
        assert!(!send.is_closed(), "still there: nobody woke it");
        send.send(()).expect("the receiver is there");
        assert_eq!(woken.await, None, "the answer was there, and unread");
    }

    #[tokio::test]
    async fn polls_are_counted() {
        let steps = Cell::new(0);
        assert_eq!(CountPolls::new(four_steps(&steps)).await, ((), 4));
        assert_eq!(drop_at_poll(0, four_steps(&steps)).await, None);
        assert_eq!(steps.get(), 4, "never polled");
    }

    async fn futures_poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }
}
