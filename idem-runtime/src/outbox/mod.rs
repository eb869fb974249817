//! Effects outside of the database: staged in the handler's transaction, sent by a worker after the commit, and never
//! guessed about.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod decide;
mod effect;
mod provider;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod stage;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use decide::State;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use effect::Generation;
pub use effect::{Effect, EffectKey};
pub use provider::{Call, Delivery, KeyWindow, Policy, Provider, Reconciled};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use stage::{Staged, Staging};
