//! The business effect of a handler happens once, however often its message is delivered.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
mod error;
mod fingerprint;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod flight;
mod identity;
mod macro_support;
mod nesting;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod options;
mod outcome;
mod overriding;
#[cfg(feature = "postgres")]
mod postgres;
mod registry;
mod scope;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod shield;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod time;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod tx;

pub use claim::{Claim, Concurrent, Judgement, Older, Retain};
pub use error::{BoxError, Error, SchemaProblem};
pub use fingerprint::{Comparison, Fingerprint, FingerprintBuilder};
#[cfg(feature = "macros")]
pub use idem_macros::{Scope, idempotent};
pub use identity::Identity;
pub use nesting::Inside;
pub use outcome::{Outcome, decode, encode};
pub use overriding::Override;
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub use postgres::{PgStore, PgTx};
pub use registry::{OperationInfo, operations};
pub use scope::{NotAuthorized, Scope, Verified};
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use sqlite::{SqliteStore, SqliteTx};
pub use store::{Claimed, Record, Store, Transaction};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use tx::{Backend, Savepoint, Tx};

/// What the generated code calls. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::macro_support::*;
}
