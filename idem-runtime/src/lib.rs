//! The business effect of a handler happens once, however often its message is delivered.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
mod error;
mod fingerprint;
mod identity;
mod nesting;
mod outcome;
mod overriding;
mod registry;
mod scope;
mod store;

pub use claim::{Claim, Concurrent, Judgement, Older, Retain};
pub use error::{BoxError, Error, SchemaProblem};
pub use fingerprint::{Comparison, Fingerprint, FingerprintBuilder};
pub use identity::Identity;
pub use nesting::inside_body;
pub use outcome::{Outcome, decode, encode};
pub use overriding::Override;
pub use registry::{OperationInfo, operations};
pub use scope::{NotAuthorized, Scope, Verified};
pub use store::{Claimed, Record, Store, Transaction};
