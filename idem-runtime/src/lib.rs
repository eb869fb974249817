//! The business effect of a handler happens once, however often its message is delivered, retried or replayed.
//!
//! An async function that is annotated with `#[idempotent]` becomes one that opens a transaction, takes the identity
//! of the delivery in it (operation, scope and key, with a fingerprint of the request), runs its body in that
//! transaction, and commits the outcome together with what the body changed. A duplicate gets the stored outcome.
//!
//! ```
//! # #[cfg(all(feature = "macros", feature = "sqlite"))] mod example {
//! use idem_runtime::{Outcome, Scope, SqliteStore, SqliteTx, idempotent};
//!
//! /// Built by the authentication layer only.
//! #[derive(Scope)]
//! struct Tenant(String);
//!
//! struct Approve { operation_key: String, invoice: i64, amount: i64, note: String }
//!
//! #[derive(Debug, thiserror::Error)]
//! enum ApproveError {
//!     #[error(transparent)]
//!     Idem(#[from] idem_runtime::Error),
//!     #[error(transparent)]
//!     Sql(#[from] sqlx::Error),
//! }
//!
//! #[idempotent(
//!     operation = "invoice.approve",
//!     key = "{cmd.operation_key}",
//!     scope = "{tenant}",
//!     fingerprint(cmd { operation_key: _, invoice, amount, note: _ }),
//! )]
//! async fn approve(tx: &mut SqliteTx, tenant: &Tenant, cmd: Approve) -> Result<i64, ApproveError> {
//!     sqlx::query("INSERT INTO approval (invoice, amount) VALUES ($1, $2)")
//!         .bind(cmd.invoice).bind(cmd.amount).execute(&mut **tx).await?;
//!     Ok(cmd.invoice)
//! }
//!
//! // The generated function takes the store where the body takes the transaction.
//! async fn on_request(store: &SqliteStore, tenant: &Tenant, cmd: Approve) -> Result<(), ApproveError> {
//!     match approve(store, tenant, cmd).await? {
//!         Outcome::Applied(invoice) => println!("approved {invoice}"),
//!         Outcome::Replayed(invoice) => println!("{invoice} had been approved"),
//!     }
//!     Ok(())
//! }
//! # }
//! ```
//!
//! The vocabulary: an [`Identity`] is what makes two deliveries the same; its [`Scope`] exists only after
//! authorization. A [`Claim`] asks a [`Store`] for it. A [`Record`] holds the [`Fingerprint`] of the first request and
//! its outcome. The body works in a [`Transaction`]. What went wrong is an [`Error`], which says whether a retry with
//! the same key may succeed ([`Error::is_retryable`]).
//!
//! What is to happen outside of the database is an [`Effect`], staged in the body and sent by a worker (`outbox`).
//!
//! Features: `macros` (default), `postgres` and `sqlite`; neither database brings the other. `http-provider`: effects by
//! HTTP, `outbox::HttpProvider`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
mod effect;
mod error;
mod fingerprint;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod flight;
mod identity;
mod macro_support;
mod nesting;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod options;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod outbox;
mod outcome;
mod overriding;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod recorded;
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
pub use effect::{Effect, EffectKey};
pub use error::{BoxError, Error, SchemaProblem};
pub use fingerprint::{Comparison, Fingerprint, FingerprintBuilder};
#[cfg(feature = "macros")]
pub use idem_macros::{Effect, Scope, idempotent};
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

/// The README's code, compiled.
#[cfg(all(doctest, feature = "macros", feature = "postgres", feature = "sqlite"))]
#[doc = include_str!("../../README.md")]
struct Readme;
