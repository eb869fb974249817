//! The vocabulary that the ui tests and the signature crates share: a store in memory, whose transaction is a list
//! of effects, and the types of a small invoice service. The invariant: an effect is seen only after its commit.

mod memory;

pub use memory::{MemoryStore, MyTx};

use idem_runtime::Scope;
use serde::{Deserialize, Serialize};

/// Built by the authentication layer only.
#[derive(Clone, Debug, Scope)]
pub struct TenantId(pub String);

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Whose data.
    pub tenant: TenantId,
}

/// A command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Approve {
    /// The key that the client chose.
    pub operation_key: String,
    /// What is approved.
    pub invoice: i64,
    /// How much.
    pub amount: i64,
    /// Not material.
    pub note: Option<String>,
}

/// An outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approved {
    /// What was approved.
    pub invoice: i64,
}

/// The error of the handlers.
#[derive(Debug, thiserror::Error)]
pub enum ApproveError {
    /// What the domain refuses.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// What the store could not do.
    #[error(transparent)]
    Idem(#[from] idem_runtime::Error),
}

/// A caller of the tenant `tenant`.
#[must_use]
pub fn caller(tenant: &str) -> Caller {
    Caller { tenant: TenantId(tenant.to_owned()) }
}

/// A command under the key `key`.
#[must_use]
pub fn approve(key: &str) -> Approve {
    Approve { operation_key: key.to_owned(), invoice: 7, amount: 100, note: None }
}
