//! A future that goes on in a task if its caller goes away: what the version by hand needs, so that no transaction is
//! left in the middle of a message.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub(super) struct Carried<F: Future + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future + Send + 'static> Carried<F> {
    pub(super) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future + Send + 'static> Future for Carried<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let polled = self.0.as_mut().expect("not polled after its end").as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<F: Future + Send + 'static> Drop for Carried<F> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take() {
            tokio::spawn(async move { drop(future.await) });
        }
    }
}
