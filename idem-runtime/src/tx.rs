//! The transaction that a body works in. It derefs to sqlx's connection, so every sqlx call works in it, but it can
//! only be ended by its store: the outcome must be the last thing that is written. Dropped, it is rolled back.

use std::fmt;
use std::ops::{Deref, DerefMut};

use sqlx::{Connection as _, Database};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::flight::Seat;
use crate::nesting::StoreId;
use crate::outbox::Staging;
use crate::shield::in_runtime;
use crate::{Error, Identity, Transaction};

/// A database that this crate has a store for. Sealed.
pub trait Backend: sealed::Sealed {}

pub(crate) mod sealed {
    use std::future::Future;

    use crate::outbox::Staged;

    /// What a transaction needs of its database.
    pub trait Sealed: sqlx::Database + Sized {
        /// A connection that goes back to where it came from, or is closed where its state is not known.
        type Handle: std::ops::DerefMut<Target = Self::Connection> + Send + 'static;

        /// `SAVEPOINT`. Dropped at any poll, the transaction is as it was.
        fn savepoint(
            conn: &mut Self::Connection,
        ) -> impl Future<Output = Result<(), sqlx::Error>> + Send + '_;

        /// Writes a row of the outbox; false if its key is taken.
        fn stage(
            handle: &mut Self::Handle,
            staged: Staged<'_>,
        ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

        /// `ROLLBACK` in bounded time; where that fails the connection is closed, which rolls back too.
        fn roll_back(handle: Self::Handle) -> impl Future<Output = Result<(), sqlx::Error>> + Send + 'static;

        /// Whether a call may succeed later without a change.
        fn is_retryable(error: &sqlx::Error) -> bool;
    }
}

/// The transaction of a handler's run: state change and record commit in it together.
///
/// It derefs to the database's connection: `query.execute(&mut **tx)`. The body cannot commit it. A part that may
/// fail goes into [`begin`](Self::begin).
///
/// # Panics
/// Mutable access panics where the transaction has gone: the body ended it with raw SQL, or dropped an unfinished
/// `begin` of sqlx's own, which rolls everything back. Without the panic the next statement would commit by itself.
pub struct Tx<DB: Backend> {
    open: Option<Open<DB>>,
    runtime: Handle,
}

/// What a store keeps of a run.
pub(crate) struct Open<DB: Backend> {
    pub(crate) handle: DB::Handle,
    pub(crate) identity: Identity,
    /// Whose run the record says it is.
    pub(crate) token: Uuid,
    pub(crate) store: StoreId,
    /// Keeps duplicates of this process waiting.
    pub(crate) seat: Option<Seat>,
    pub(crate) staging: Staging,
    /// It is not known whether a savepoint was committed.
    in_doubt: bool,
}

impl<DB: Backend> Open<DB> {
    pub(crate) fn new(
        handle: DB::Handle,
        identity: Identity,
        token: Uuid,
        store: StoreId,
        seat: Option<Seat>,
        staging: Staging,
    ) -> Self {
        Self { handle, identity, token, store, seat, staging, in_doubt: false }
    }

    /// Whether what the body did is still one open transaction, as far as can be known without asking.
    pub(crate) fn is_intact(&self) -> bool {
        !self.in_doubt && self.handle.is_in_transaction()
    }

    pub(crate) fn check_intact(&self) -> Result<(), Error> {
        if self.is_intact() {
            return Ok(());
        }
        Err(Error::TransactionEnded { identity: self.identity.clone(), source: None })
    }

    /// Rolls back, and lets the next duplicate go on only after that.
    pub(crate) async fn roll_back(self) -> Result<(), Error> {
        let Self { handle, identity, seat, .. } = self;
        let result = DB::roll_back(handle).await;
        drop(seat);
        result.map_err(|e| Error::store(Some(&identity), DB::is_retryable(&e), e))
    }
}

impl<DB: Backend> Tx<DB> {
    pub(crate) fn new(open: Open<DB>) -> Self {
        Self { open: Some(open), runtime: Handle::current() }
    }

    /// For the store, which ends it.
    pub(crate) fn into_open(mut self) -> Open<DB> {
        self.open.take().expect("it is taken once, by value")
    }

    pub(crate) fn open(&self) -> &Open<DB> {
        self.open.as_ref().expect("it is taken only by value")
    }

    pub(crate) fn open_mut(&mut self) -> &mut Open<DB> {
        self.open.as_mut().expect("it is taken only by value")
    }

    /// Whose run this is.
    pub fn identity(&self) -> &Identity {
        &self.open().identity
    }

    /// Begins a part that can be rolled back alone. Dropped without [`Savepoint::commit`], it is rolled back.
    ///
    /// Use it instead of sqlx's own `begin`, which rolls back the whole transaction if it is dropped unfinished (a
    /// timeout, `select!`); this one is safe to cancel.
    ///
    /// # Errors
    /// [`Error::Store`] with what the database said; [`Error::TransactionEnded`] if the transaction has gone.
    pub async fn begin(&mut self) -> Result<Savepoint<'_, DB>, Error> {
        let open = self.open_mut();
        open.check_intact()?;
        DB::savepoint(&mut open.handle)
            .await
            .map_err(|e| Error::store(Some(&open.identity), DB::is_retryable(&e), e))?;
        let depth = depth::<DB>(&open.handle);
        Ok(Savepoint { tx: self, depth, state: State::Open })
    }

    /// Whether the same statement, or the whole run, may succeed later without a change: for the SQL errors that a
    /// body lets out (a deadlock, a connection that broke, a full disk), as
    /// [`Error::is_retryable`](crate::Error::is_retryable) is for the store's.
    pub fn is_retryable(error: &sqlx::Error) -> bool {
        DB::is_retryable(error)
    }

    fn ended(&self) -> Error {
        Error::TransactionEnded { identity: self.identity().clone(), source: None }
    }
}

fn depth<DB: Backend>(conn: &DB::Connection) -> usize {
    <DB as Database>::TransactionManager::get_transaction_depth(conn)
}

impl<DB: Backend> Deref for Tx<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.open().handle
    }
}

impl<DB: Backend> DerefMut for Tx<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        let open = self.open_mut();
        assert!(
            open.is_intact(),
            "{}: the transaction has gone: it was ended inside the body, or a `begin` or `commit` inside it was \
             dropped unfinished; the run is rolled back. Use `tx.begin()`, and let errors out of the body",
            open.identity
        );
        &mut open.handle
    }
}

impl<DB: Backend> Transaction for Tx<DB> {
    fn __store_id(&self) -> Option<StoreId> {
        Some(self.open().store)
    }
}

impl<DB: Backend> fmt::Debug for Tx<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("identity", self.identity()).finish_non_exhaustive()
    }
}

impl<DB: Backend> Drop for Tx<DB> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let identity = open.identity.clone();
            in_runtime(&self.runtime, || {
                self.runtime.spawn(async move {
                    if let Err(error) = open.roll_back().await {
                        tracing::debug!(%identity, %error, "the connection of a dropped run was closed");
                    }
                })
            });
        }
    }
}

/// A part of a run that can be rolled back alone; derefs to [`Tx`].
///
/// Dropped, it is rolled back. If its [`commit`](Self::commit) is dropped unfinished, nobody knows whether it is part
/// of the run, and the whole run can only be rolled back.
#[derive(Debug)]
#[must_use = "dropped at once, it is rolled back at once"]
pub struct Savepoint<'t, DB: Backend> {
    tx: &'t mut Tx<DB>,
    depth: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open,
    /// A `commit` is on its way, and its answer was not read.
    Committing,
    RollingBack,
    Ended,
}

impl<DB: Backend> Savepoint<'_, DB> {
    /// Keeps what was done since [`Tx::begin`].
    ///
    /// # Errors
    /// [`Error::Store`] with what the database said; [`Error::TransactionEnded`] if the transaction has gone.
    pub async fn commit(mut self) -> Result<(), Error> {
        self.end(State::Committing).await
    }

    /// Takes back what was done since [`Tx::begin`], and waits for it.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub async fn rollback(mut self) -> Result<(), Error> {
        self.end(State::RollingBack).await
    }

    async fn end(&mut self, how: State) -> Result<(), Error> {
        let open = self.tx.open_mut();
        if !open.is_intact() || depth::<DB>(&open.handle) != self.depth {
            open.in_doubt = true;
            self.state = State::Ended;
            return Err(self.tx.ended());
        }
        self.state = how;
        let conn = &mut *open.handle;
        let result = match how {
            State::Committing => <DB as Database>::TransactionManager::commit(conn).await,
            _ => <DB as Database>::TransactionManager::rollback(conn).await,
        };
        // Refused, it is still open, and is rolled back on drop.
        self.state = if result.is_ok() { State::Ended } else { State::Open };
        result.map_err(|e| Error::store(Some(self.tx.identity()), DB::is_retryable(&e), e))
    }
}

impl<DB: Backend> Deref for Savepoint<'_, DB> {
    type Target = Tx<DB>;

    fn deref(&self) -> &Tx<DB> {
        self.tx
    }
}

impl<DB: Backend> DerefMut for Savepoint<'_, DB> {
    fn deref_mut(&mut self) -> &mut Tx<DB> {
        self.tx
    }
}

impl<DB: Backend> Drop for Savepoint<'_, DB> {
    fn drop(&mut self) {
        let runtime = self.tx.runtime.clone();
        let open = self.tx.open_mut();
        let is_innermost = depth::<DB>(&open.handle) == self.depth;
        match self.state {
            State::Ended => return,
            // Something inside it has ended it: what came after is in the run, or is not.
            State::Open if !is_innermost => {
                open.in_doubt = true;
                return;
            }
            State::Open | State::RollingBack => {}
            State::Committing => open.in_doubt = true,
        }
        // Also after an end whose answer was not read: sqlx's SQLite worker counts on it, and lets it pass then.
        in_runtime(&runtime, || <DB as Database>::TransactionManager::start_rollback(&mut open.handle));
    }
}
