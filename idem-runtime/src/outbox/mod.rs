//! Effects outside of the database: staged in the handler's transaction, sent by a worker after the commit, and never
//! guessed about.

mod decide;
mod effect;
#[cfg(test)]
mod model;
mod provider;

pub use decide::State;
pub use effect::{Effect, EffectKey};
pub use provider::{Call, Delivery, KeyWindow, Policy, Provider, Reconciled};
