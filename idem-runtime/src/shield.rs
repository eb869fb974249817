//! Futures that go on when nobody waits for them any more. Handlers run under HTTP timeouts and `select!`; a `BEGIN`
//! or `COMMIT` that is dropped half-way leaves a connection whose state nobody knows. So what a store does on a
//! connection owns all it needs, is polled in place, and is moved to a task if it is dropped unfinished.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;

/// Carries `future` on in a task if it is dropped unfinished; `grace` bounds how long.
pub(crate) struct Shield<F: Future + Send + 'static> {
    future: Option<Pin<Box<F>>>,
    /// Still set after a poll that panicked: it must not be polled again.
    polling: bool,
    grace: Option<Duration>,
    runtime: Handle,
}

impl<F: Future + Send + 'static> Shield<F> {
    /// To its end, however long that takes: the future bounds itself.
    pub(crate) fn to_the_end(future: F) -> Self {
        Self::new(future, None)
    }

    /// For `grace` after it was dropped; then it is dropped in earnest.
    pub(crate) fn with_grace(grace: Duration, future: F) -> Self {
        Self::new(future, Some(grace))
    }

    fn new(future: F, grace: Option<Duration>) -> Self {
        Self { future: Some(Box::pin(future)), polling: false, grace, runtime: Handle::current() }
    }
}

impl<F: Future + Send + 'static> Future for Shield<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.polling = true;
        let future = self.future.as_mut().expect("a shielded future is not polled after its end");
        let polled = future.as_mut().poll(cx);
        self.polling = false;
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<F: Future + Send + 'static> Drop for Shield<F> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else { return };
        if self.polling {
            return in_runtime(&self.runtime, move || drop(future));
        }
        let grace = self.grace;
        self.runtime.spawn(async move {
            match grace {
                None => drop(future.await),
                Some(grace) => drop(tokio::time::timeout(grace, future).await),
            }
        });
    }
}

/// Runs `f` where sqlx finds a runtime: it spawns a task when a connection is dropped, and panics without one.
pub(crate) fn in_runtime<T>(runtime: &Handle, f: impl FnOnce() -> T) -> T {
    let _entered = runtime.enter();
    f()
}
