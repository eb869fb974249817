//! Effects outside of the database: staged in the handler's transaction, sent by a worker after the commit, and never
//! guessed about.
//!
//! [`Tx::stage`](crate::Tx::stage) writes an [`Effect`] with the run. A [`Worker`] hands it to its [`Provider`], which says
//! what it knows ([`Delivery`]); what may have happened is sent again only while the provider knows its key
//! ([`KeyWindow`]), else asked for ([`Reconciled`]), and where that settles nothing a person decides ([`Review`]).

mod clock;
mod decide;
mod erased;
mod evidence;
#[cfg(feature = "http-provider")]
mod http;
mod key;
mod lane;
#[cfg(test)]
mod model;
mod provider;
pub(crate) mod queue;
mod review;
mod stage;
mod status;
mod store;
mod worker;

pub use decide::State;
#[cfg(feature = "http-provider")]
#[cfg_attr(docsrs, doc(cfg(feature = "http-provider")))]
pub use http::{HttpProvider, HttpProviderBuilder, HttpProviderError};
pub use provider::{Call, Delivery, KeyWindow, Policy, Provider, Reconciled};
pub use review::{DecisionError, Filter, Item, Logged, Review, Shown, Tried};
pub use status::{EffectStatus, status};
pub use store::OutboxStore;
pub use worker::Worker;

pub use crate::effect::{Effect, EffectKey};

pub(crate) use decide::Row;
pub(crate) use key::Generation;
pub(crate) use stage::{Staged, Staging};
