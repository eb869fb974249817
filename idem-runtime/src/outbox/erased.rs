//! A provider without the type of its effect, so that one worker holds several. What is decoded stays beside the provider
//! that takes it.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use tokio::time::Instant;

use super::decide::Terms;
use super::{Call, Delivery, Effect, Provider, Reconciled};

pub(crate) trait AnyProvider: fmt::Debug + Send + Sync {
    fn effect(&self) -> &'static str;

    fn terms(&self) -> Terms;

    /// Decodes an effect; `Err` with the decoder's words.
    fn decode(self: Arc<Self>, payload: &[u8]) -> Result<Box<dyn Ready>, String>;
}

/// An effect, ready to be carried out.
#[async_trait]
pub(crate) trait Ready: Send + Sync {
    /// Within the call's deadline. A panic and no answer are not known.
    async fn deliver(&self, call: &Call) -> Delivery;

    async fn reconcile(&self, call: &Call) -> Reconciled;
}

pub(crate) struct Typed<E, P> {
    provider: P,
    effect: PhantomData<fn(E)>,
}

impl<E: Effect, P: Provider<E>> Typed<E, P> {
    pub(crate) fn new(provider: P) -> Self {
        Self { provider, effect: PhantomData }
    }
}

impl<E: Effect, P> fmt::Debug for Typed<E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Provider").field(&E::NAME).finish()
    }
}

impl<E: Effect, P: Provider<E>> AnyProvider for Typed<E, P> {
    fn effect(&self) -> &'static str {
        E::NAME
    }

    fn terms(&self) -> Terms {
        Terms { window: self.provider.key_window(), longest_flight: self.provider.longest_flight() }
    }

    fn decode(self: Arc<Self>, payload: &[u8]) -> Result<Box<dyn Ready>, String> {
        match serde_json::from_slice(payload) {
            Ok(effect) => Ok(Box::new(Decoded::<E, P> { effect, provider: self })),
            Err(error) => Err(format!("its bytes cannot be read as `{}`: {error}", E::NAME)),
        }
    }
}

struct Decoded<E, P> {
    effect: E,
    provider: Arc<Typed<E, P>>,
}

#[async_trait]
impl<E: Effect, P: Provider<E>> Ready for Decoded<E, P> {
    async fn deliver(&self, call: &Call) -> Delivery {
        if std::time::Instant::now() >= call.deadline {
            let error = "the worker came to it after its deadline".into();
            return Delivery::NotSent { retry_after: None, error };
        }
        let unknown = |error: &str| Delivery::Unknown { retry_after: None, error: error.into() };
        match in_time(call, self.provider.provider.deliver(&self.effect, call)).await {
            Ended::With(delivery) => delivery,
            Ended::InPanic => unknown("the provider's code panicked"),
            Ended::Late => unknown("no answer within the call's time"),
        }
    }

    async fn reconcile(&self, call: &Call) -> Reconciled {
        match in_time(call, self.provider.provider.reconcile(&self.effect, call)).await {
            Ended::With(answer) => answer,
            Ended::InPanic | Ended::Late => Reconciled::Unknown,
        }
    }
}

enum Ended<T> {
    With(T),
    InPanic,
    Late,
}

async fn in_time<T>(call: &Call, future: impl Future<Output = T>) -> Ended<T> {
    tokio::pin!(future);
    let caught = std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ended::With(value)),
            Err(_) => Poll::Ready(Ended::InPanic),
        }
    });
    tokio::time::timeout_at(Instant::from_std(call.deadline), caught).await.unwrap_or(Ended::Late)
}
