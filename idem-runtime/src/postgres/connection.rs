//! A connection that goes back to the pool only when its transaction is known to have ended, and what the
//! transaction needs of Postgres.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Connection as _, Database, PgConnection, Postgres, SqlSafeStr as _};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;

use super::record::Tid;
use super::stage;
use crate::outbox::Staged;
use crate::shield::in_runtime;
use crate::tx::{Backend, sealed::Sealed};

type Manager = <Postgres as Database>::TransactionManager;

/// How long a `ROLLBACK` may take before the connection is closed instead.
const ROLLBACK_WAIT: Duration = Duration::from_secs(2);

/// A pooled connection. Dropped in the middle of anything, it is closed, never returned.
pub struct PgHandle {
    /// `None` only while it is dropped.
    conn: Option<PoolConnection<Postgres>>,
    settled: bool,
    /// Whether the store's statements stay prepared in the session.
    pub(super) persistent: bool,
    /// Where the record is that its transaction wrote.
    pub(super) row: Option<Tid>,
    runtime: Handle,
}

impl PgHandle {
    pub(super) fn new(conn: PoolConnection<Postgres>, persistent: bool) -> Self {
        Self { conn: Some(conn), settled: false, persistent, row: None, runtime: Handle::current() }
    }

    /// A transaction for statements that only read: behind a transaction pooler, a statement that was prepared
    /// outside of one may be executed in another session, where another client has prepared another.
    pub(super) async fn begin_to_read(&mut self) -> Result<(), sqlx::Error> {
        Manager::begin(self, Some(AssertSqlSafe("BEGIN READ ONLY").into_sql_str())).await
    }

    /// Gives the connection back with a rollback that nobody waits for: it is in the connection's buffer, and goes
    /// out before anything else that is sent.
    pub(super) fn give_back(mut self) {
        self.start_over();
        self.settled = true;
    }

    /// The connection itself, which the pool forgets.
    pub(super) fn detach(mut self) -> PgConnection {
        self.conn.take().expect("taken on drop only").detach()
    }

    /// As [`give_back`](Self::give_back), for another transaction on it.
    pub(super) fn start_over(&mut self) {
        while self.is_in_transaction() {
            Manager::start_rollback(self);
        }
    }
}

impl Deref for PgHandle {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.conn.as_ref().expect("taken on drop only")
    }
}

impl DerefMut for PgHandle {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.conn.as_mut().expect("taken on drop only")
    }
}

impl Drop for PgHandle {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        let settled = self.settled;
        in_runtime(&self.runtime, || if settled { drop(conn) } else { drop(conn.detach()) });
    }
}

impl Backend for Postgres {}

impl Sealed for Postgres {
    type Handle = PgHandle;

    async fn savepoint(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        Forgotten(Some(Box::pin(Manager::begin(conn, None)))).await
    }

    async fn stage(handle: &mut PgHandle, staged: Staged<'_>) -> Result<bool, sqlx::Error> {
        stage::stage(handle, staged).await
    }

    async fn roll_back(mut handle: PgHandle) -> Result<(), sqlx::Error> {
        while handle.is_in_transaction() {
            let rollback = Manager::rollback(&mut handle);
            tokio::time::timeout(ROLLBACK_WAIT, rollback)
                .await
                .map_err(|_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))??;
        }
        handle.settled = true;
        Ok(())
    }

    fn is_retryable(error: &sqlx::Error) -> bool {
        match error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
            // By class of SQLSTATE: connection, authorization (a password that is being changed), rollback,
            // resources, intervention, system; a lock not available; a standby after a failover; a session that was
            // ended because it was idle, or its transaction long; a prepared statement that the session has lost.
            sqlx::Error::Database(e) => e.code().is_some_and(|code| {
                ["08", "28", "40", "53", "57", "58"].iter().any(|class| code.starts_with(class))
                    || matches!(&*code, "55P03" | "25006" | "25P03" | "25P04" | "26000")
            }),
            _ => false,
        }
    }
}

/// A future that is forgotten, not dropped, if it is dropped unfinished.
///
/// sqlx's `SAVEPOINT` answers a drop with a rollback of the whole transaction. Forgotten, it leaves a savepoint that
/// nobody refers to, which changes nothing; the connection still counts the answer that it has to read. What leaks
/// are the few hundred bytes of the future.
struct Forgotten<F>(Option<Pin<Box<F>>>);

impl<F: Future> Future for Forgotten<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let future = self.0.as_mut().expect("not polled after its end");
        let output = std::task::ready!(future.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F> Drop for Forgotten<F> {
    fn drop(&mut self) {
        std::mem::forget(self.0.take());
    }
}

/// What the server itself said, if it said something.
pub(super) fn server_error(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

/// The SQLSTATE, `""` where the server said nothing.
pub(super) fn code(error: &sqlx::Error) -> &str {
    server_error(error).map_or("", PgDatabaseError::code)
}
