//! The one writer connection, and what the transaction needs of SQLite. SQLite may end a transaction by itself
//! (`OR ROLLBACK`, a full disk) and then commits every later statement alone; a hook on the connection lets only the
//! store's own commits through. A connection whose transaction did not end as it should is replaced.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Database, SqlSafeStr as _, Sqlite, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::stage;
use crate::outbox::Staged;
use crate::shield::in_runtime;
use crate::tx::{Backend, sealed::Sealed};

type Manager = <Sqlite as Database>::TransactionManager;

/// How long a `ROLLBACK` may take (a statement that nobody waits for any more may run before it).
const ROLLBACK_WAIT: Duration = Duration::from_secs(2);

/// How long one `BEGIN` waits for another process; a claim begins again until its wait is over.
const BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 250";
/// For how long nothing waits between two.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// Primary result codes (<https://sqlite.org/rescode.html>); an extended code has its primary one in the low byte.
pub(super) const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const NOMEM: i32 = 7;
pub(super) const READONLY: i32 = 8;
const IOERR: i32 = 10;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
pub(super) const CONSTRAINT: i32 = 19;
/// The extended code of a commit that the hook refused.
pub(super) const COMMIT_REFUSED: i32 = CONSTRAINT | 2 << 8;

/// Whose turn it is to write; opens the connection when it is needed.
#[derive(Debug)]
pub(super) struct Writer {
    turn: Arc<Mutex<Option<Guarded>>>,
    options: SqliteConnectOptions,
}

/// A connection whose commits are refused unless `gate` is open.
#[derive(Debug)]
struct Guarded {
    conn: SqliteConnection,
    gate: Arc<AtomicBool>,
}

impl Writer {
    pub(super) fn new(options: SqliteConnectOptions) -> Self {
        Self { turn: Arc::default(), options }
    }

    /// The writer if nobody else has it.
    pub(super) async fn try_acquire(&self) -> Result<Option<SqliteHandle>, sqlx::Error> {
        match Arc::clone(&self.turn).try_lock_owned() {
            Ok(turn) => self.open(turn).await.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// The writer, in the order of asking.
    pub(super) async fn acquire(&self) -> Result<SqliteHandle, sqlx::Error> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        self.open(turn).await
    }

    async fn open(&self, mut turn: OwnedMutexGuard<Option<Guarded>>) -> Result<SqliteHandle, sqlx::Error> {
        if turn.is_none() {
            let mut conn = self.options.connect().await?;
            let gate = Arc::new(AtomicBool::new(false));
            let hook = Arc::clone(&gate);
            conn.lock_handle().await?.set_commit_hook(move || hook.load(Ordering::Acquire));
            sqlx::raw_sql(BUSY_TIMEOUT).execute(&mut conn).await?;
            *turn = Some(Guarded { conn, gate });
        }
        Ok(SqliteHandle { turn, settled: false, runtime: Handle::current() })
    }
}

/// The writer, while it is one's turn. Dropped in the middle of anything, the connection is closed and replaced.
pub struct SqliteHandle {
    turn: OwnedMutexGuard<Option<Guarded>>,
    settled: bool,
    runtime: Handle,
}

impl SqliteHandle {
    /// `BEGIN IMMEDIATE`, waiting for other processes until `deadline`.
    pub(super) async fn begin(&mut self, deadline: Instant) -> Result<(), sqlx::Error> {
        while !self.try_begin().await? {
            if Instant::now() >= deadline {
                return Err(sqlx::Error::Io(std::io::Error::other(
                    "another process holds the database file",
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// One turn of it; false where another process still has the file. The thread of a claim whose caller has gone is
    /// stuck in the last one.
    pub(super) async fn try_begin(&mut self) -> Result<bool, sqlx::Error> {
        self.settled = false;
        let begun = Manager::begin(self, Some("BEGIN IMMEDIATE".into_sql_str())).await;
        // Refused by SQLite itself, there is nothing to roll back, and the connection is fine.
        let refused = begun.as_ref().is_err_and(|e| e.as_database_error().is_some());
        self.settled = refused && !self.is_in_transaction();
        match begun {
            Ok(()) => Ok(true),
            Err(error) if primary_code(&error) == BUSY && self.settled => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Commits. Nothing else can commit on this connection.
    pub(super) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let gate = Arc::clone(&self.guarded().gate);
        gate.store(true, Ordering::Release);
        let committed = self.commit_all().await;
        gate.store(false, Ordering::Release);
        self.settled = committed.is_ok();
        committed
    }

    /// Savepoints that the body left open are part of its run.
    async fn commit_all(&mut self) -> Result<(), sqlx::Error> {
        while self.is_in_transaction() {
            Manager::commit(self).await?;
        }
        Ok(())
    }

    fn guarded(&self) -> &Guarded {
        self.turn.as_ref().expect("taken on drop only")
    }
}

impl Deref for SqliteHandle {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.guarded().conn
    }
}

impl DerefMut for SqliteHandle {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.turn.as_mut().expect("taken on drop only").conn
    }
}

impl Drop for SqliteHandle {
    fn drop(&mut self) {
        if !self.settled {
            let broken = self.turn.take();
            in_runtime(&self.runtime, || drop(broken));
        }
    }
}

impl Backend for Sqlite {}

impl Sealed for Sqlite {
    type Handle = SqliteHandle;

    /// The worker thread rolls a savepoint back whose caller has gone.
    async fn savepoint(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        Manager::begin(conn, None).await
    }

    async fn stage(handle: &mut SqliteHandle, staged: Staged<'_>) -> Result<bool, sqlx::Error> {
        stage::stage(handle, staged).await
    }

    async fn roll_back(mut handle: SqliteHandle) -> Result<(), sqlx::Error> {
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
            _ => matches!(primary_code(error), BUSY | LOCKED | NOMEM | IOERR | FULL | CANTOPEN),
        }
    }
}

/// SQLite's extended result code, 0 where it said nothing.
pub(super) fn code(error: &sqlx::Error) -> i32 {
    error.as_database_error().and_then(|e| e.code()).and_then(|code| code.parse().ok()).unwrap_or(0)
}

pub(super) fn primary_code(error: &sqlx::Error) -> i32 {
    code(error) & 0xff
}
