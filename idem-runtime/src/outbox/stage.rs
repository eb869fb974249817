//! Staging: the effect's row commits with the run. What cannot be staged rolls the run back, also where the body goes on:
//! a state change without its effect would be half of what the author wrote.

use super::Generation;
use crate::tx::{Backend, sealed::Sealed};
use crate::{Effect, EffectKey, Error, Identity, Tx};

/// The longest [`Effect::NAME`], in bytes.
const MAX_NAME_BYTES: usize = 128;
/// The longest order key, in bytes: it stands in an index.
const MAX_ORDER_KEY_BYTES: usize = 1024;

/// What a run has staged so far.
#[derive(Debug)]
pub(crate) struct Staging {
    generation: Generation,
    max_bytes: usize,
    /// How many effects of each name. Those of a savepoint that was rolled back count: a key is never used twice.
    counts: Vec<(&'static str, u32)>,
    failed: Option<Failed>,
}

/// Why something could not be staged.
#[derive(Clone, Debug)]
enum Failed {
    Rejected { effect: &'static str, reason: String },
    KeyTaken { effect: &'static str, effect_key: EffectKey },
}

/// A row of the outbox that is to be written.
pub struct Staged<'a> {
    pub effect: &'static str,
    pub content_type: &'static str,
    pub payload: Vec<u8>,
    pub effect_key: &'a EffectKey,
    pub identity: &'a Identity,
    pub order_key: Option<String>,
}

impl Staging {
    pub(crate) fn new(generation: Generation, max_bytes: usize) -> Self {
        Self { generation, max_bytes, counts: Vec::new(), failed: None }
    }

    pub(crate) fn has_staged(&self) -> bool {
        !self.counts.is_empty()
    }

    /// Refuses to complete a run in which something could not be staged.
    pub(crate) fn check(&self, identity: &Identity) -> Result<(), Error> {
        self.failed.as_ref().map_or(Ok(()), |failed| Err(failed.error(identity)))
    }

    fn next_ordinal(&mut self, effect: &'static str) -> u32 {
        match self.counts.iter_mut().find(|(name, _)| *name == effect) {
            Some((_, count)) => {
                *count += 1;
                *count - 1
            }
            None => {
                self.counts.push((effect, 1));
                0
            }
        }
    }

    /// The bytes, if they can be staged.
    fn payload<E: Effect>(&self, effect: &E, order_key: Option<&str>) -> Result<Vec<u8>, String> {
        if E::NAME.is_empty() || E::NAME.len() > MAX_NAME_BYTES || E::NAME.contains('\0') {
            return Err(format!("its name has 1 to {MAX_NAME_BYTES} bytes, and no NUL"));
        }
        if let Some(order_key) = order_key.filter(|key| key.len() > MAX_ORDER_KEY_BYTES || key.contains('\0'))
        {
            let bytes = order_key.len();
            return Err(format!(
                "its order key has {bytes} bytes; at most {MAX_ORDER_KEY_BYTES}, and no NUL"
            ));
        }
        let payload = serde_json::to_vec(effect).map_err(|e| format!("it cannot be serialized: {e}"))?;
        if payload.len() > self.max_bytes {
            let (bytes, limit) = (payload.len(), self.max_bytes);
            return Err(format!(
                "it has {bytes} bytes, and {limit} is the store's limit (`with_max_effect_bytes`)"
            ));
        }
        // The worker of a later hour would find out too late.
        match serde_json::from_slice::<E>(&payload) {
            Ok(_) => Ok(payload),
            Err(error) => Err(format!("it does not read back: {error}")),
        }
    }
}

impl Failed {
    fn error(&self, identity: &Identity) -> Error {
        let identity = identity.clone();
        match self.clone() {
            Self::Rejected { effect, reason } => Error::EffectRejected { identity, effect, reason },
            Self::KeyTaken { effect, effect_key } => Error::EffectKeyTaken { identity, effect, effect_key },
        }
    }
}

impl<DB: Backend> Tx<DB> {
    /// Stages an effect outside of the database: a [`Worker`](crate::outbox::Worker) sends it once this run has
    /// committed, and never otherwise.
    ///
    /// A run may stage several, also of one type. An effect with an order key is numbered in the order of commits: that
    /// serializes the handlers of its order key until they commit, so stage it late, and several in the order of their
    /// keys, or two handlers may deadlock.
    ///
    /// # Errors
    /// [`Error::EffectRejected`]: too large, or it cannot be serialized and read back. [`Error::EffectKeyTaken`]: there is
    /// one with this key already. After both the run cannot be completed, also where the body ignores them.
    /// [`Error::Store`], [`Error::TransactionEnded`].
    pub async fn stage<E: Effect>(&mut self, effect: E) -> Result<EffectKey, Error> {
        let open = self.open_mut();
        open.check_intact()?;
        let order_key = effect.order_key();
        let payload = match open.staging.payload(&effect, order_key.as_deref()) {
            Ok(payload) => payload,
            Err(reason) => {
                let failed = open.staging.failed.insert(Failed::Rejected { effect: E::NAME, reason });
                return Err(failed.error(&open.identity));
            }
        };
        let ordinal = open.staging.next_ordinal(E::NAME);
        let effect_key = EffectKey::staged(&open.identity, &open.staging.generation, E::NAME, ordinal);
        let staged = Staged {
            effect: E::NAME,
            content_type: "application/json",
            payload,
            effect_key: &effect_key,
            identity: &open.identity,
            order_key,
        };
        match DB::stage(&mut open.handle, staged).await {
            Ok(true) => Ok(effect_key),
            Ok(false) => {
                let failed = open.staging.failed.insert(Failed::KeyTaken { effect: E::NAME, effect_key });
                Err(failed.error(&open.identity))
            }
            Err(error) => {
                Err(Error::store(Some(&open.identity), <DB as Sealed>::is_retryable(&error), error))
            }
        }
    }

    /// A key for a call that the body makes by itself: the same when the run is repeated, and never that of a staged
    /// effect. Prefer [`stage`](Self::stage): a call from the body is made again whenever the run is.
    pub fn effect_key(&self, effect: &str) -> EffectKey {
        EffectKey::called(self.identity(), &self.open().staging.generation, effect)
    }
}
