//! How the outbox stands, for those who operate it.

use std::time::SystemTime;

use super::OutboxStore;
use crate::Error;

/// The effects of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EffectStatus {
    /// The name.
    pub effect: String,
    /// To be sent, or asked for.
    pub pending: u64,
    /// Taken by the provider, which has not done it yet.
    pub accepted: u64,
    /// A person decides.
    pub review: u64,
    /// They have happened.
    pub delivered: u64,
    /// Refused by the provider.
    pub rejected: u64,
    /// Given up by a person.
    pub abandoned: u64,
    /// Since when the oldest one is due.
    pub oldest_due: Option<SystemTime>,
    /// Workers that have served it within the last minute. None, while some are pending: start one that has a provider
    /// for it.
    pub workers: u64,
    /// Until when the last of them is paused, and why.
    pub paused: Option<(SystemTime, String)>,
}

/// How the outbox stands, by effect.
///
/// # Errors
/// [`Error::Store`], [`Error::Schema`].
pub async fn status(store: impl OutboxStore) -> Result<Vec<EffectStatus>, Error> {
    store.outbox().0.status().await
}
