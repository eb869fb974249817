//! The store on Postgres 13 or later. One transaction per run: it inserts the identity, runs the body, stores the
//! outcome and commits. The unique index decides who runs; nothing needs session state, session locks or PL/pgSQL,
//! so it works through a transaction pooler.

mod change;
mod check;
mod claim;
mod complete;
mod connection;
mod insert;
mod migrate;
mod outbox;
mod record;
mod review;
mod stage;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool, Postgres};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::options::{Core, common_options};
use crate::shield::Shield;
use crate::tx::{Tx, sealed::Sealed};
use crate::{Claim, Claimed, Error, Identity, Record, SchemaProblem, Store};

use claim::Ready;
use connection::PgHandle;

/// The transaction of a handler on Postgres.
pub type PgTx = Tx<Postgres>;

/// How long opening a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a failed call looks for the reason why there was no connection.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a claim that nobody waits for any more may keep its connection.
const CANCELLED_CLAIM_GRACE: Duration = Duration::from_millis(500);

/// Records in the schema `idem` of a Postgres database, beside the state that the handlers change. A cheap clone.
///
/// ```no_run
/// # async fn example() -> Result<(), idem_runtime::Error> {
/// let store = idem_runtime::PgStore::connect("postgres://app@localhost/app").await?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PgStore {
    pool: PgPool,
    /// sqlx gives names to statements that it does not keep, and never closes them.
    persistent: bool,
    core: Arc<Core>,
    idle_timeout: Duration,
    session_commit: bool,
    settle_timeout: Duration,
    shared: Arc<Shared>,
}

/// What the clones of a store find out together.
#[derive(Debug)]
struct Shared {
    /// Whether the last claims were given up without an answer of the server: the table may be locked.
    unanswered: AtomicBool,
    diagnosis: Mutex<Option<Diagnosis>>,
}

/// When a connection was tried beside the pool, and why there was none.
type Diagnosis = (Instant, Option<String>);

impl PgStore {
    /// On a pool of yours. `test_before_acquire(false)` saves a round trip per call; a connection that turns out to be
    /// broken is an error that can be retried.
    ///
    /// Behind a transaction pooler that does not know prepared statements, give the pool's connections
    /// `statement_cache_capacity(0)`: then the store's statements have no name, and are prepared in the transaction
    /// that uses them.
    pub fn new(pool: PgPool) -> Self {
        // sqlx has no other way to ask.
        let url = pool.connect_options().to_url_lossy();
        let persistent =
            !url.query_pairs().any(|(name, value)| name == "statement-cache-capacity" && value == "0");
        Self {
            pool,
            persistent,
            core: Core::new(),
            idle_timeout: Duration::from_secs(60),
            session_commit: false,
            settle_timeout: Duration::from_secs(10),
            shared: Arc::new(Shared { unanswered: AtomicBool::new(false), diagnosis: Mutex::default() }),
        }
    }

    /// With a pool of its own of at most 10 connections, after a first connection has succeeded.
    ///
    /// # Errors
    /// [`Error::Store`]: the URL is not valid, or no connection came about within 10 s (refused, unreachable, wrong
    /// password; these can be retried).
    pub async fn connect(url: &str) -> Result<Self, Error> {
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            let message = "the URL of a Postgres database begins with `postgres://`";
            return Err(Error::store(None, false, message));
        }
        let options: PgConnectOptions = url.parse().map_err(|e| store_error(None, e))?;
        // The pool would answer every failure by its time-out alone.
        let first = PgConnection::connect_with(&options);
        let first = tokio::time::timeout(CONNECT_TIMEOUT, first).await.map_err(|_| {
            let message = format!("no connection to {} within {CONNECT_TIMEOUT:?}", options.get_host());
            Error::store(None, true, message)
        })?;
        let first = first.map_err(|e| store_error(None, e))?;
        // Closed in the background: that it is, changes nothing.
        drop(first);
        let pool = PgPoolOptions::new()
            .max_connections(10)
            .acquire_timeout(CONNECT_TIMEOUT)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Ok(Self::new(pool))
    }

    common_options!();

    /// How long the transaction may be idle before the server ends it, so that a client that vanished frees its key.
    /// Default: 60 s; zero: never. A shorter `idle_in_transaction_session_timeout` of the session stays.
    #[must_use]
    pub fn with_idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Whether `synchronous_commit = off` of the session stays in force. Default: no, since a crash of the server
    /// then loses runs that were answered.
    #[must_use]
    pub fn with_session_commit(mut self, keep: bool) -> Self {
        self.session_commit = keep;
        self
    }

    /// How long to wait for the last statement and the answer to `COMMIT`, and then again for the record that tells
    /// whether it happened, before [`Error::Unconfirmed`]. Default: 10 s each.
    #[must_use]
    pub fn with_settle_timeout(mut self, timeout: Duration) -> Self {
        self.settle_timeout = timeout;
        self
    }

    /// The pool.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A connection, by `deadline`.
    async fn acquire(&self, identity: &Identity, deadline: Instant) -> Result<PgHandle, Error> {
        let started = Instant::now();
        match tokio::time::timeout_at(deadline, self.pool.acquire()).await {
            Ok(Ok(conn)) => Ok(PgHandle::new(conn, self.persistent)),
            Err(_) | Ok(Err(sqlx::Error::PoolTimedOut)) => match Box::pin(self.why_none(started)).await {
                Some(error) => Err(store_error(Some(identity), error)),
                None => Err(Error::Busy { identity: identity.clone(), waited: started.elapsed() }),
            },
            Ok(Err(error)) => Err(store_error(Some(identity), error)),
        }
    }

    /// Why the pool gave no connection. It tries again and again while the server refuses, and then only says that it
    /// timed out, which is also what it says where all its connections are in use. One call asks for all that wait
    /// with it: the server is not to be flooded by connections beside those of the pool.
    async fn why_none(&self, since: Instant) -> Option<sqlx::Error> {
        let mut last =
            tokio::time::timeout(2 * DIAGNOSIS_TIMEOUT, self.shared.diagnosis.lock()).await.ok()?;
        if let Some((_, reason)) = last.as_ref().filter(|(at, _)| *at >= since) {
            return reason.clone().map(|reason| sqlx::Error::Io(std::io::Error::other(reason)));
        }
        let options = self.pool.connect_options();
        let connected = tokio::time::timeout(DIAGNOSIS_TIMEOUT, PgConnection::connect_with(&options)).await;
        let reason = match connected {
            Ok(Ok(conn)) => {
                drop(conn.close().await);
                None
            }
            Ok(Err(error)) => Some(error),
            Err(_) => Some(sqlx::Error::PoolTimedOut),
        };
        *last = Some((Instant::now(), reason.as_ref().map(ToString::to_string)));
        reason
    }

    /// A connection for what is not a claim, by the pool's own time-out.
    async fn connection(&self) -> Result<PoolConnection<Postgres>, Error> {
        let started = Instant::now();
        match self.pool.acquire().await {
            Ok(conn) => Ok(conn),
            Err(error @ sqlx::Error::PoolTimedOut) => {
                Err(store_error(None, self.why_none(started).await.unwrap_or(error)))
            }
            Err(error) => Err(store_error(None, error)),
        }
    }

    /// Runs the start-up check unless it has passed.
    async fn checked(&self, identity: &Identity, deadline: Instant) -> Result<(), Error> {
        let check = async || check::check(self.acquire(identity, deadline).await?).await;
        self.core.checked.get_or_try_init(check).await.map(drop)
    }

    /// Creates or upgrades the tables in the schema `idem`. Safe to run from several processes at once, and where
    /// there is nothing to do. A newer schema that this version can use is left alone.
    ///
    /// # Errors
    /// [`Error::Store`], for example where the role may not create them; [`Error::Schema`].
    pub async fn migrate(&self) -> Result<(), Error> {
        let store = self.clone();
        Shield::to_the_end(async move { migrate::migrate(store.connection().await?).await }).await
    }

    /// Checks that the database and the program are as this version needs them. It also runs by itself before the
    /// first claim.
    ///
    /// # Errors
    /// [`Error::Schema`], which says what to run; [`Error::DuplicateOperation`]; [`Error::Store`].
    pub async fn check(&self) -> Result<(), Error> {
        check::check(PgHandle::new(self.connection().await?, self.persistent)).await
    }
}

#[async_trait]
impl Store for PgStore {
    type Tx = PgTx;

    async fn claim(&self, claim: Claim) -> Result<Claimed<PgTx>, Error> {
        self.core.refuse_nested(&claim.identity, |running| *running == claim.identity)?;
        let claim = self.core.prepare(claim);
        let (started, deadline) = (Instant::now(), self.core.deadline());
        let (seat, handle) = match self.ready(&claim, deadline).await? {
            Ready::Done(record) => return Ok(Claimed::Done(record)),
            Ready::Go(seat, handle) => (seat, handle),
        };
        let store = self.clone();
        let take = async move { store.take(claim, seat, handle, (started, deadline)).await };
        Shield::with_grace(CANCELLED_CLAIM_GRACE, take).await
    }

    async fn complete(&self, tx: PgTx, outcome: String) -> Result<(), Error> {
        let (store, open) = (self.clone(), tx.into_open());
        Shield::to_the_end(async move { store.finish(open, outcome).await }).await
    }

    async fn release(&self, tx: PgTx) -> Result<(), Error> {
        Shield::to_the_end(tx.into_open().roll_back()).await
    }

    async fn find(&self, identity: &Identity) -> Result<Option<Record>, Error> {
        let mut handle = PgHandle::new(self.connection().await?, self.persistent);
        let read = async {
            handle.begin_to_read().await?;
            record::read(&mut handle, identity).await
        };
        let stored = read.await.map_err(|e| store_error(Some(identity), e))?;
        handle.give_back();
        Ok(stored.map(|stored| stored.record))
    }
}

fn store_error(identity: Option<&Identity>, error: sqlx::Error) -> Error {
    match connection::code(&error) {
        // No such table, no such schema.
        "42P01" | "3F000" => Error::Schema { problem: SchemaProblem::Missing },
        _ => Error::store(identity, Postgres::is_retryable(&error), error),
    }
}
