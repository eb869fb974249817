//! Everything that can go wrong between a caller and the one run of a body. Messages name the operation, the scope
//! and the key, never the payload.

use std::time::{Duration, SystemTime};

use crate::EffectKey;
use crate::Identity;
use crate::registry::OperationInfo;

/// The source of a [`Error::Store`] error, as the store's driver gave it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Why a handler did not answer with an outcome.
///
/// In every case but [`Error::Unconfirmed`] it is certain that this call has committed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A part of the identity is empty, too long, or holds a NUL. Nothing was touched; the request is at fault.
    #[error("{operation}: the {part} is not valid: {reason}")]
    InvalidIdentity {
        /// The operation whose identity it would have been.
        operation: String,
        /// `operation`, `scope` or `key`.
        part: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// A material field has no canonical form (NaN, an infinity, a map key that is no text). Nothing was touched.
    #[error("{operation}: the material field `{label}` has no fingerprint: {reason}")]
    InvalidFingerprint {
        /// The operation.
        operation: String,
        /// The label of the material field.
        label: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The event claims to have occurred more than 24 hours ahead of the database's clock. Nothing was touched.
    #[error(
        "{identity}: occurred_at is more than 24 h ahead of the database's clock; correct the sender's clock or the field that is read"
    )]
    InvalidOccurredAt {
        /// Whose event.
        identity: Identity,
        /// What it claims.
        occurred_at: SystemTime,
    },

    /// The key was used for another request. Do not retry: send the original request, or use another key.
    #[error("{identity}: this key was used for a request with other material fields")]
    Mismatch {
        /// Whose key.
        identity: Identity,
    },

    /// The first run has not ended within the claim wait. Retry with the same key.
    #[error("{identity}: the first run is still in progress (waited {waited:?}); retry with the same key")]
    InProgress {
        /// Whose run.
        identity: Identity,
        /// How long this call waited.
        waited: Duration,
    },

    /// The effect happened, and its outcome is no longer kept (`retain` is over). It is not run again.
    #[error("{identity}: it has been applied, and its outcome is no longer kept")]
    Expired {
        /// Whose outcome.
        identity: Identity,
    },

    /// The message is older than the records can prove, and the handler says `older = refuse`. A person decides:
    /// `store.overriding(Override::new(label, by).beyond_horizon())` runs it.
    #[error("{identity}: older than the records can prove; it was not run")]
    BeyondHorizon {
        /// Whose message.
        identity: Identity,
    },

    /// The material fields of the handler have changed since the record was written, and the store is strict.
    #[error("{identity}: recorded under another list of material fields, so the requests cannot be compared")]
    FingerprintChanged {
        /// Whose record.
        identity: Identity,
    },

    /// The effect happened, but its outcome cannot be read: its type has changed, or the body committed by itself.
    /// It is not run again.
    #[error("{identity}: it has been applied, and its stored outcome cannot be read as the handler's type")]
    OutcomeUnreadable {
        /// Whose outcome.
        identity: Identity,
        /// What the reader said; `None` where nothing is stored.
        source: Option<serde_json::Error>,
    },

    /// The body succeeded, but its outcome cannot be stored (too large, or JSON would not give it back), so the body
    /// was rolled back.
    #[error("{identity}: the outcome cannot be stored, and the run was rolled back: {reason}")]
    OutcomeRejected {
        /// Whose outcome.
        identity: Identity,
        /// What is wrong with it.
        reason: String,
    },

    /// An effect cannot be staged (too large, or it cannot be serialized and read back), so the run was rolled back.
    #[error("{identity}: the effect `{effect}` cannot be staged, and the run was rolled back: {reason}")]
    EffectRejected {
        /// Whose effect.
        identity: Identity,
        /// Its name.
        effect: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// There is an effect with this key already, so the run was rolled back: it would not have been sent. Its identity ran
    /// before, and the record of that run is gone.
    #[error(
        "{identity}: the effect `{effect}` was staged before, under the key {effect_key}; the run was rolled back. Its record \
         is gone while its effect is not: if it is to happen again, run it under an override"
    )]
    EffectKeyTaken {
        /// Whose effect.
        identity: Identity,
        /// Its name.
        effect: &'static str,
        /// The key that is taken.
        effect_key: EffectKey,
    },

    /// The body ended or aborted its transaction (raw `COMMIT` or `ROLLBACK`, or an SQL error that it swallowed), so
    /// no outcome is recorded. Let the SQL error out of the body, and use [`Tx::begin`](crate::Tx::begin) for a part
    /// that may fail.
    #[error("{identity}: the body ended or aborted its transaction; nothing was recorded")]
    TransactionEnded {
        /// Whose run.
        identity: Identity,
        /// What the database said, if it said something.
        source: Option<BoxError>,
    },

    /// The call comes from inside a body that holds what it needs: the same identity, or on SQLite the only writer.
    #[error(
        "{identity}: called inside the body of {running}, which holds what this call would wait for; share a plain \
         function, or call it after the body"
    )]
    Nested {
        /// The identity of this call.
        identity: Identity,
        /// The identity whose body is running.
        running: Identity,
    },

    /// No writer or connection came free within the claim wait, because of other keys. Retry.
    #[error("{identity}: the store was busy with other work (waited {waited:?}); retry")]
    Busy {
        /// The identity of this call.
        identity: Identity,
        /// How long this call waited.
        waited: Duration,
    },

    /// The answer to `COMMIT` was lost, and the record could not be read in time: it is not known whether the effect
    /// happened. Retry with the same key, which finds out.
    #[error("{identity}: the answer to COMMIT was lost; retry with the same key to get the outcome")]
    Unconfirmed {
        /// Whose run.
        identity: Identity,
        /// Why it could not be settled.
        source: Option<BoxError>,
    },

    /// The database is not as this version needs it.
    #[error("the database is not ready: {problem}")]
    Schema {
        /// What is wrong, and what to run.
        problem: SchemaProblem,
    },

    /// Two handlers have the same operation, so that they would take each other's records.
    #[error(
        "two handlers have the operation `{}`: {}:{} and {}:{}; give one of them another `operation`",
        first.name, first.file, first.line, second.file, second.line
    )]
    DuplicateOperation {
        /// The one.
        first: &'static OperationInfo,
        /// The other.
        second: &'static OperationInfo,
    },

    /// A worker has two providers for one effect.
    #[error("the worker has two providers for the effect `{effect}`; leave one of them away")]
    DuplicateProvider {
        /// The name of the effect.
        effect: &'static str,
    },

    /// The database failed or could not be reached.
    #[error("{}the store failed: {source}", identity.as_ref().map(|i| format!("{i}: ")).unwrap_or_default())]
    Store {
        /// Whose call, where there is one.
        identity: Option<Identity>,
        /// Whether a retry may succeed without a change.
        retryable: bool,
        /// What the driver said.
        source: BoxError,
    },
}

/// Why a database is not ready for this version, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaProblem {
    /// The tables do not exist.
    #[error("its tables are missing; run `store.migrate().await?` once, with a role that may create them")]
    Missing,
    /// The tables are of an earlier version.
    #[error("its schema has version {found}, and this version needs {needed}; run `store.migrate().await?`")]
    TooOld {
        /// The version found.
        found: i32,
        /// The version needed.
        needed: i32,
    },
    /// The tables are of a later version that this one cannot use.
    #[error(
        "its schema can be used from version {min_compatible} on, and this is version {supported}; deploy a newer idem-runtime"
    )]
    TooNew {
        /// The oldest version that can use the schema.
        min_compatible: i32,
        /// The version of this library.
        supported: i32,
    },
    /// The inbox has no unique key over operation, scope and key.
    #[error(
        "the inbox has no primary key (operation, scope, key), so nothing would be deduplicated; restore it: {repair}"
    )]
    UniqueKeyMissing {
        /// The statement that restores it.
        repair: String,
    },
    /// The role may not use the tables.
    #[error("the role `{role}` may not {privilege}; run: {grant}")]
    NoRights {
        /// The role.
        role: String,
        /// What it may not do.
        privilege: String,
        /// The statement that grants it.
        grant: String,
    },
    /// The server or the library lacks what the store needs.
    #[error("{found} does not do; {needed} is needed")]
    Unsupported {
        /// What was found.
        found: String,
        /// What is needed, and why.
        needed: String,
    },
}

impl Error {
    /// An error of a store's own, for stores outside this crate.
    pub fn store(identity: Option<&Identity>, retryable: bool, source: impl Into<BoxError>) -> Self {
        Self::Store { identity: identity.cloned(), retryable, source: source.into() }
    }

    /// Whether the same call may succeed later without a change of the request or of the program.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InProgress { .. } | Self::Busy { .. } | Self::Unconfirmed { .. } => true,
            Self::Store { retryable, .. } => *retryable,
            _ => false,
        }
    }

    /// The identity that the error is about; `None` where it concerns no single one.
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Self::InvalidIdentity { .. }
            | Self::InvalidFingerprint { .. }
            | Self::Schema { .. }
            | Self::DuplicateOperation { .. }
            | Self::DuplicateProvider { .. } => None,
            Self::Store { identity, .. } => identity.as_ref(),
            Self::InvalidOccurredAt { identity, .. }
            | Self::Mismatch { identity }
            | Self::InProgress { identity, .. }
            | Self::Expired { identity }
            | Self::BeyondHorizon { identity }
            | Self::FingerprintChanged { identity }
            | Self::OutcomeUnreadable { identity, .. }
            | Self::OutcomeRejected { identity, .. }
            | Self::EffectRejected { identity, .. }
            | Self::EffectKeyTaken { identity, .. }
            | Self::TransactionEnded { identity, .. }
            | Self::Nested { identity, .. }
            | Self::Busy { identity, .. }
            | Self::Unconfirmed { identity, .. } => Some(identity),
        }
    }
}
