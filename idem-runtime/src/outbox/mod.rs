//! Effects outside of the database: staged in the handler's transaction, sent by a worker after the commit, and never
//! guessed about.
//!
//! [`Tx::stage`](crate::Tx::stage) writes an [`Effect`] with the run. A [`Worker`] hands it to its [`Provider`], which says
//! what it knows ([`Delivery`]); what may have happened is sent again only while the provider knows its key
//! ([`KeyWindow`]), else asked for ([`Reconciled`]), and where that settles nothing a person decides ([`Review`]).

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod decide;
mod effect;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod erased;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod lane;
#[cfg(all(test, any(feature = "postgres", feature = "sqlite")))]
mod model;
mod provider;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) mod queue;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod review;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod stage;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod status;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod store;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod worker;

pub use effect::{Effect, EffectKey};
pub use provider::{Call, Delivery, KeyWindow, Policy, Provider, Reconciled};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use {
    decide::State,
    review::{DecisionError, Filter, Item, Logged, Review, Shown, Tried},
    status::{EffectStatus, status},
    store::OutboxStore,
    worker::Worker,
};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use {
    decide::Row,
    effect::Generation,
    stage::{Staged, Staging},
};
