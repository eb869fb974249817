//! What a provider of effects is asked, and what it may answer. The words are chosen so that "I do not know" is always
//! sayable: nothing here makes an implementation guess.

use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Effect, EffectKey};
use crate::BoxError;

/// Carries out effects of one type, outside of the database: an HTTP API, a mail server, a search index.
///
/// An implementation sends [`Call::payload`] as it is, under [`Call::effect_key`], and says what it knows. The rest (when
/// to call again, and when never again) is decided by the worker.
///
/// ```
/// use idem_runtime::outbox::{Call, Delivery, KeyWindow, Provider};
/// use idem_runtime::Effect;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Effect)]
/// #[effect(name = "index.order")]
/// struct IndexOrder { order: i64 }
///
/// struct Index;
///
/// #[async_trait::async_trait]
/// impl Provider<IndexOrder> for Index {
///     fn key_window(&self) -> KeyWindow {
///         KeyWindow::Forever // writing the same document twice is writing it once
///     }
///     async fn deliver(&self, effect: &IndexOrder, call: &Call) -> Delivery {
///         println!("{} under {}", effect.order, call.effect_key);
///         Delivery::Delivered { reference: None }
///     }
/// }
/// ```
#[async_trait]
pub trait Provider<E: Effect>: Send + Sync + 'static {
    /// For how long the provider knows the key again, counted from the first call with it.
    fn key_window(&self) -> KeyWindow;

    /// How late a request may still be carried out after its [`Call::deadline`], because it is on its way or in a queue
    /// of the provider's. Default: 2 min.
    fn longest_flight(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Carries the effect out. Dropped at [`Call::deadline`], which counts as [`Delivery::Unknown`].
    async fn deliver(&self, effect: &E, call: &Call) -> Delivery;

    /// Asks whether the effect has happened, by [`Call::reference`] where there is one, else by the key.
    async fn reconcile(&self, effect: &E, call: &Call) -> Reconciled {
        let _ = (effect, call);
        Reconciled::Unsupported
    }
}

/// For how long a provider knows a key again. Within it a second call with the same key and the same bytes does nothing
/// new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyWindow {
    /// It knows no keys: what may have been sent is never sent again.
    None,
    /// It does not say: as [`KeyWindow::None`].
    Unknown,
    /// At least for so long.
    AtLeast(Duration),
    /// For ever.
    Forever,
}

/// One call of a provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// The key that makes two calls one; the same at every attempt.
    pub effect_key: EffectKey,
    /// The bytes as they were staged. Send these: a new serializer would make a keyed request another one.
    pub payload: Bytes,
    /// What the bytes are, for example `application/json`.
    pub content_type: String,
    /// From 1; at a question ([`Provider::reconcile`]) the number of the last attempt.
    pub attempt: u32,
    /// When the effect was staged, by the database's clock.
    pub created_at: SystemTime,
    /// When the first attempt that may have reached the provider was made, by the database's clock.
    pub first_attempt_at: Option<SystemTime>,
    /// Nothing may be sent after it. Test it immediately before the request is written.
    pub deadline: Instant,
    /// What the provider calls it, if it has said so.
    pub reference: Option<String>,
}

/// What became of a call.
#[derive(Debug)]
pub enum Delivery {
    /// It is done.
    Delivered {
        /// What the provider calls it.
        reference: Option<String>,
    },
    /// The provider has taken it and will do it later: it is not sent again, but asked for.
    Accepted {
        /// What the provider calls it.
        reference: Option<String>,
        /// When to ask at the earliest.
        ask_after: Duration,
    },
    /// It is certain that nothing was sent, or that the provider has not even looked at it (too many requests).
    NotSent {
        /// When to try again at the earliest; `None`: by the worker's own backoff.
        retry_after: Option<Duration>,
        /// Why.
        error: BoxError,
    },
    /// The provider refuses it for good.
    Rejected {
        /// Why.
        error: BoxError,
    },
    /// It may have happened.
    Unknown {
        /// When to try again at the earliest; `None`: by the worker's own backoff.
        retry_after: Option<Duration>,
        /// Why it is not known.
        error: BoxError,
    },
    /// An answer that proves nothing, and that a repeat will not mend: a person decides.
    Review {
        /// What was answered.
        error: BoxError,
    },
    /// No verdict on the effect, but on the caller (wrong credentials): the provider is paused for all effects.
    Halt {
        /// What was answered.
        error: BoxError,
    },
}

/// What a provider says about an effect that may have happened.
#[derive(Debug)]
pub enum Reconciled {
    /// It has.
    Happened {
        /// What the provider calls it.
        reference: Option<String>,
    },
    /// It has not, and will not by itself, and that is certain: it is sent again. While it waits in a queue of the
    /// provider's the answer is [`Reconciled::Unknown`].
    DidNotHappen,
    /// It has not and never will: the provider has refused it.
    Refused {
        /// Why.
        error: BoxError,
    },
    /// It cannot say now; it is asked again.
    Unknown,
    /// It can never say: a person decides.
    Unsupported,
}

/// When the worker tries again, and when it gives up and asks a person.
///
/// ```
/// use idem_runtime::outbox::Policy;
///
/// let policy = Policy { max_attempts: 5, ..Policy::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// So many attempts, then review. Default: 20.
    pub max_attempts: u32,
    /// So many processes that died during an attempt, then review. Default: 3.
    pub max_crashes: u32,
    /// So long after the first attempt that may have reached the provider, then review. Default: 7 days.
    pub max_age: Duration,
    /// How long one call may take. Default: 30 s.
    pub call_timeout: Duration,
    /// The wait after the first failure; doubled after each, with up to a fifth of jitter. Default: 1 s.
    pub shortest_backoff: Duration,
    /// The longest wait between two attempts. Default: 6 h.
    pub longest_backoff: Duration,
    /// How many calls one worker makes at once to each provider. Default: 16.
    pub concurrency: usize,
    /// How often the worker looks for effects that other processes staged, with a fifth of jitter. Default: 1 s.
    pub poll_interval: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 20,
            max_crashes: 3,
            max_age: Duration::from_secs(7 * 86_400),
            call_timeout: Duration::from_secs(30),
            shortest_backoff: Duration::from_secs(1),
            longest_backoff: Duration::from_secs(6 * 3_600),
            concurrency: 16,
            poll_interval: Duration::from_secs(1),
        }
    }
}
