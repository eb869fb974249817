//! The store on SQLite, in the file that holds the state of the handlers. One connection writes, so the bodies of all
//! keys run one after another; a pool of others reads. Commits on the writer are the store's own or they are refused.

mod change;
mod check;
mod claim;
mod complete;
mod connection;
mod migrate;
mod outbox;
mod record;
mod review;
mod stage;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqlitePool};
use tokio::time::Instant;

use crate::options::{Core, common_options};
use crate::shield::Shield;
use crate::tx::{Tx, sealed::Sealed};
use crate::{Claim, Claimed, Error, Identity, Record, SchemaProblem, Store};

use claim::Ready;
use connection::Writer;

/// The transaction of a handler on SQLite.
pub type SqliteTx = Tx<Sqlite>;

/// How long a claim that nobody waits for any more may keep the writer.
const CANCELLED_CLAIM_GRACE: Duration = Duration::from_millis(500);

/// How long opening the file waits for other processes that open it.
const OPEN_WAIT: Duration = Duration::from_secs(10);

/// Records in tables `idem_..` of a SQLite file, beside the state that the handlers change. A cheap clone.
///
/// The file is used in WAL mode with `synchronous = FULL` and `foreign_keys = ON`. Bodies of all keys run one after
/// another. Several processes may use one file. Beside it stand `-wal` and `-shm`, which belong to it: back it up with
/// `VACUUM INTO`, or copy all three.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let dir = tempfile::tempdir()?;
/// let store = idem_runtime::SqliteStore::open(dir.path().join("app.sqlite3")).await?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteStore {
    writer: Arc<Writer>,
    readers: SqlitePool,
    core: Arc<Core>,
}

impl SqliteStore {
    /// On the file at `path`, which is created if it does not exist.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect(SqliteConnectOptions::new().filename(path).create_if_missing(true)).await
    }

    /// With options of yours. Journal mode, `synchronous`, `foreign_keys` and a shared cache (none) are set as the store
    /// needs them.
    ///
    /// # Errors
    /// [`Error::Store`]: the file cannot be opened. [`Error::Schema`]: a database in memory (its connections would
    /// not see the same one), a file system without WAL, or an SQLite before 3.51.3 (with a fault in WAL mode).
    pub async fn connect(options: SqliteConnectOptions) -> Result<Self, Error> {
        let path = options.get_filename().display().to_string();
        let options = options
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            // Readers would see what is not committed, or be refused while a body runs.
            .shared_cache(false)
            .pragma("read_uncommitted", "OFF")
            .busy_timeout(OPEN_WAIT);
        let readers = SqlitePoolOptions::new()
            .max_connections(4)
            .test_before_acquire(false)
            .connect_lazy_with(options.clone().create_if_missing(false).pragma("query_only", "ON"));
        let store = Self { writer: Arc::new(Writer::new(options)), readers, core: Core::new() };
        match check::check_library(&store.writer).await {
            Ok(()) => Ok(store),
            Err(Error::Store { retryable, source, .. }) => {
                let message =
                    format!("{path}: {source} (the path of a file is wanted, in a folder that exists)");
                Err(Error::store(None, retryable, message))
            }
            Err(error) => Err(error),
        }
    }

    common_options!();

    /// A pool of connections that can only read. To write outside of handlers, open a connection of your own.
    pub fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// Runs the start-up check unless it has passed.
    async fn checked(&self) -> Result<(), Error> {
        self.core.checked.get_or_try_init(|| check::check(&self.readers)).await.map(drop)
    }

    /// Creates or upgrades the tables. Safe to run from several processes at once, and where there is nothing to do.
    /// A newer schema that this version can use is left alone.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Schema`] where the file is read-only.
    pub async fn migrate(&self) -> Result<(), Error> {
        let (store, deadline) = (self.clone(), self.core.deadline());
        Shield::to_the_end(async move { migrate::migrate(&store.writer, &store.readers, deadline).await })
            .await
    }

    /// Checks that the database and the program are as this version needs them. It also runs by itself before the
    /// first claim.
    ///
    /// # Errors
    /// [`Error::Schema`], which says what to run; [`Error::DuplicateOperation`]; [`Error::Store`].
    pub async fn check(&self) -> Result<(), Error> {
        check::check(&self.readers).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    type Tx = SqliteTx;

    async fn claim(&self, claim: Claim) -> Result<Claimed<SqliteTx>, Error> {
        // Any body holds the only writer.
        self.core.refuse_nested(&claim.identity, |_| true)?;
        let claim = self.core.prepare(claim);
        let deadline = self.core.deadline();
        let (seat, handle) = match self.ready(&claim, deadline).await? {
            Ready::Done(record) => return Ok(Claimed::Done(record)),
            Ready::Go(seat, handle) => (seat, handle),
        };
        let store = self.clone();
        let take = async move { store.take(claim, seat, handle, deadline).await };
        Shield::with_grace(CANCELLED_CLAIM_GRACE, take).await
    }

    async fn complete(&self, tx: SqliteTx, outcome: String) -> Result<(), Error> {
        let (store, open) = (self.clone(), tx.into_open());
        Shield::to_the_end(async move { store.finish(open, outcome).await }).await
    }

    async fn release(&self, tx: SqliteTx) -> Result<(), Error> {
        Shield::to_the_end(tx.into_open().roll_back()).await
    }

    async fn find(&self, identity: &Identity) -> Result<Option<Record>, Error> {
        self.read(identity).await.map(|stored| stored.map(|stored| stored.record))
    }
}

impl SqliteStore {
    /// The record as the last commit left it.
    async fn read(&self, identity: &Identity) -> Result<Option<record::Stored>, Error> {
        let read = async {
            let mut conn = self.readers.acquire().await?;
            record::read(&mut conn, identity).await
        };
        read.await.map_err(|e| store_error(Some(identity), e))
    }
}

fn busy(identity: &Identity, started: Instant) -> Error {
    Error::Busy { identity: identity.clone(), waited: started.elapsed() }
}

fn store_error(identity: Option<&Identity>, error: sqlx::Error) -> Error {
    let no_table = error.as_database_error().is_some_and(|e| {
        // SQLite has no code of its own for it, and its messages are not translated.
        e.message().contains("no such table: idem_")
    });
    let problem = match connection::primary_code(&error) {
        _ if no_table => SchemaProblem::Missing,
        connection::READONLY => SchemaProblem::NoRights {
            role: "this process".to_owned(),
            privilege: "write the database file".to_owned(),
            grant: "chmod u+w on the file and its folder, as the owner of both".to_owned(),
        },
        _ => return Error::store(identity, Sqlite::is_retryable(&error), error),
    };
    Error::Schema { problem }
}
