//! Effects outside of the database: staged in the handler's transaction, sent by a worker after the commit, and never
//! guessed about.

mod decide;
mod effect;
#[cfg(feature = "http-provider")]
mod http;
mod provider;

pub use decide::State;
pub use effect::{Effect, EffectKey};
#[cfg(feature = "http-provider")]
#[cfg_attr(docsrs, doc(cfg(feature = "http-provider")))]
pub use http::{HttpProvider, HttpProviderBuilder, HttpProviderError};
pub use provider::{Call, Delivery, KeyWindow, Policy, Provider, Reconciled};
