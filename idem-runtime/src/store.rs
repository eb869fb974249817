//! The storage trait: what a database must be able to do so that a body runs once.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::nesting::StoreId;
use crate::{Claim, Error, Identity};

/// What can stand for `tx` in a handler: the transaction type of a [`Store`].
///
/// Implement it for the transaction type of a store of your own. Dropping a transaction must roll it back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction of an idem store",
    label = "the first parameter of a handler is the transaction that its store opens",
    note = "write `tx: &mut PgTx` or `tx: &mut SqliteTx`: both deref to sqlx's connection, so `&mut **tx` executes queries",
    note = "a store of your own: `impl idem_runtime::Transaction for YourTx {{}}`"
)]
pub trait Transaction: Debug + Send + 'static {
    /// Which store opened it, for the check of calls inside a body.
    #[doc(hidden)]
    fn __store_id(&self) -> Option<StoreId> {
        None
    }
}

/// What is recorded under an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Whose record.
    pub identity: Identity,
    /// [`Fingerprint::to_bytes`](crate::Fingerprint::to_bytes) of the first request; `None` for `fingerprint(none)`.
    pub fingerprint: Option<Vec<u8>>,
    /// The outcome as JSON text; `None` once it has been dropped.
    pub outcome: Option<String>,
    /// When the run began, by the database's clock.
    pub claimed_at: SystemTime,
    /// When the outcome was stored; `None` where a body committed by itself.
    pub processed_at: Option<SystemTime>,
    /// Until when the outcome counts; `None`: as long as the record.
    pub outcome_until: Option<SystemTime>,
    /// Until when the record counts; `None`: for ever.
    pub expires_at: Option<SystemTime>,
}

impl Record {
    /// A record that never expires and has no outcome yet.
    pub fn new(identity: Identity, claimed_at: SystemTime) -> Self {
        Self {
            identity,
            fingerprint: None,
            outcome: None,
            claimed_at,
            processed_at: None,
            outcome_until: None,
            expires_at: None,
        }
    }
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claimed<T> {
    /// The identity is taken in this transaction: run the body in it.
    Fresh(T),
    /// It has been processed; this is its record, already judged.
    Done(Record),
}

/// A database that takes an identity and the state change of a body in one transaction.
///
/// The three calls are safe to cancel: a future that is dropped unfinished leaves either nothing, or record and
/// effect both.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "a handler is called with the store (`&store`), not with a transaction, a pool or a connection",
    note = "inside another handler's body: share a plain function that takes `&mut PgTx` or `&mut SqliteTx`",
    note = "of a pool: `PgStore::new(pool)`"
)]
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// The transaction in which a body runs.
    type Tx: Transaction;

    /// Opens a transaction and takes the identity in it, or returns what is recorded.
    ///
    /// # Errors
    /// Those of [`Claim::judge`] and [`Claim::judge_absent`]; [`Error::InProgress`], [`Error::Busy`],
    /// [`Error::Nested`], [`Error::Schema`], [`Error::DuplicateOperation`], [`Error::Store`].
    async fn claim(&self, claim: Claim) -> Result<Claimed<Self::Tx>, Error>;

    /// Stores the outcome (JSON text; `()` is `null`) and commits.
    ///
    /// # Errors
    /// [`Error::OutcomeRejected`], [`Error::TransactionEnded`], [`Error::Store`]: rolled back.
    /// [`Error::Unconfirmed`]: not known.
    async fn complete(&self, tx: Self::Tx, outcome: String) -> Result<(), Error>;

    /// Rolls back.
    ///
    /// # Errors
    /// [`Error::Store`]: the connection broke, which rolls back too.
    async fn release(&self, tx: Self::Tx) -> Result<(), Error>;

    /// What is recorded under `identity`, expired or not; `None` where there is nothing.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Schema`].
    async fn find(&self, identity: &Identity) -> Result<Option<Record>, Error>;
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        #[async_trait]
        impl<S: Store + ?Sized> Store for $pointer {
            type Tx = S::Tx;

            async fn claim(&self, claim: Claim) -> Result<Claimed<S::Tx>, Error> {
                (**self).claim(claim).await
            }

            async fn complete(&self, tx: S::Tx, outcome: String) -> Result<(), Error> {
                (**self).complete(tx, outcome).await
            }

            async fn release(&self, tx: S::Tx) -> Result<(), Error> {
                (**self).release(tx).await
            }

            async fn find(&self, identity: &Identity) -> Result<Option<Record>, Error> {
                (**self).find(identity).await
            }
        }
    )*};
}
forward!(Arc<S>, Box<S>, &'static S);
