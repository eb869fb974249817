//! The business effect of a handler happens once, however often its message is delivered.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
mod error;
mod fingerprint;
mod identity;
mod macro_support;
mod nesting;
mod outcome;
mod overriding;
mod registry;
mod scope;
mod store;

pub use claim::{Claim, Concurrent, Judgement, Older, Retain};
pub use error::{BoxError, Error, SchemaProblem};
pub use fingerprint::{Comparison, Fingerprint, FingerprintBuilder};
#[cfg(feature = "macros")]
pub use idem_macros::{Scope, idempotent};
pub use identity::Identity;
pub use nesting::inside_body;
pub use outcome::{Outcome, decode, encode};
pub use overriding::Override;
pub use registry::{OperationInfo, operations};
pub use scope::{NotAuthorized, Scope, Verified};
pub use store::{Claimed, Record, Store, Transaction};

/// What the generated code calls. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::macro_support::*;
}
