//! The worker: one lane for each provider. A lane leases what is due, writes the attempts of a wave, makes the calls with
//! no transaction open, and writes what came of them; [`next`](super::decide::next) decides about everything else.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::erased::{AnyProvider, Typed};
use super::lane::Lane;
use super::queue::Queue;
use super::{Effect, OutboxStore, Policy, Provider};
use crate::Error;

/// Sends what was staged and committed. Any number of processes may run one; stop it at any moment, by a signal or by
/// `kill -9`.
///
/// ```no_run
/// # #[cfg(feature = "sqlite")]
/// # mod example {
/// use idem_runtime::outbox::{Call, Delivery, KeyWindow, Provider, Worker};
/// use idem_runtime::{Effect, SqliteStore};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Effect)]
/// #[effect(name = "receipt.email")]
/// struct EmailReceipt { to: String }
///
/// struct Mailer;
///
/// #[async_trait::async_trait]
/// impl Provider<EmailReceipt> for Mailer {
///     fn key_window(&self) -> KeyWindow {
///         KeyWindow::None
///     }
///     async fn deliver(&self, effect: &EmailReceipt, call: &Call) -> Delivery {
///         println!("to {} under {}", effect.to, call.effect_key);
///         Delivery::Delivered { reference: None }
///     }
/// }
///
/// /// `stop` is for example Ctrl-C.
/// async fn work(store: &SqliteStore, stop: impl Future<Output = ()>) -> Result<(), idem_runtime::Error> {
///     Worker::new(store).provider::<EmailReceipt>(Mailer).run(stop).await
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a worker does nothing until it runs"]
pub struct Worker {
    queue: Arc<dyn Queue>,
    providers: Vec<Arc<dyn AnyProvider>>,
    policy: Policy,
}

impl Worker {
    /// On a store: a clone of the one that the handlers use tells it at once what they have staged.
    pub fn new(store: impl OutboxStore) -> Self {
        Self { queue: store.outbox().0, providers: Vec::new(), policy: Policy::default() }
    }

    /// What carries out effects of this type. An effect that no worker has a provider for waits, and
    /// [`status`](super::status()) says so.
    pub fn provider<E: Effect>(mut self, provider: impl Provider<E>) -> Self {
        self.providers.push(Arc::new(Typed::new(provider)));
        self
    }

    /// Other limits than those of [`Policy::default`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Runs until `shutdown` completes: then nothing more is begun, calls that are on their way are waited for, and what
    /// is leased and not begun is handed back. Once at work, it outlives restarts of the database.
    ///
    /// # Errors
    /// At the start: [`Error::DuplicateProvider`], [`Error::Schema`], [`Error::DuplicateOperation`], [`Error::Store`]. At
    /// the end: [`Error::Store`], where the last results could not be written; they count as unknown.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        for (place, provider) in self.providers.iter().enumerate() {
            let effect = provider.effect();
            if self.providers[..place].iter().any(|other| other.effect() == effect) {
                return Err(Error::DuplicateProvider { effect });
            }
        }
        self.queue.ready().await?;
        let worker = Uuid::new_v4();
        let (stop, stopping) = watch::channel(false);
        let mut lanes = JoinSet::new();
        for provider in self.providers {
            let lane = Lane::new(self.queue.clone(), provider, self.policy.clone(), worker, stopping.clone());
            lanes.spawn(lane.run());
        }
        tokio::pin!(shutdown);
        let mut result = Ok(());
        let mut stopped = false;
        loop {
            tokio::select! {
                () = &mut shutdown, if !stopped => {
                    stopped = true;
                    // There is a receiver as long as a lane runs, and without one nobody has to be told.
                    _ = stop.send(true);
                }
                ended = lanes.join_next(), if !lanes.is_empty() => match ended {
                    Some(Ok(Err(error))) => result = Err(error),
                    Some(Err(panicked)) if panicked.is_panic() => std::panic::resume_unwind(panicked.into_panic()),
                    _ => {}
                },
                else => break,
            }
        }
        if let Err(error) = self.queue.gone(worker).await {
            tracing::debug!(%error, "that a worker has gone could not be written; it is seen no more in a minute");
        }
        result
    }
}
