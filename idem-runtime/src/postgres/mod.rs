//! The store on Postgres 13 or later. One transaction per run: it inserts the identity, runs the body, stores the
//! outcome and commits. The unique index decides who runs; nothing needs session state, session locks or PL/pgSQL,
//! so it works through a transaction pooler.

mod check;
mod claim;
mod complete;
mod connection;
mod migrate;
mod record;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};
use tokio::time::Instant;

use crate::options::{Core, common_options};
use crate::shield::Shield;
use crate::tx::{Tx, sealed::Sealed};
use crate::{Claim, Claimed, Error, Identity, Record, SchemaProblem, Store};

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
    core: Core,
    idle_timeout: Duration,
    session_commit: bool,
    settle_timeout: Duration,
}

impl PgStore {
    /// On a pool of yours. `test_before_acquire(false)` saves a round trip per call; a connection that turns out to be
    /// broken is an error that can be retried.
    pub fn new(pool: PgPool) -> Self {
        Self {
            pool,
            core: Core::new(),
            idle_timeout: Duration::from_secs(60),
            session_commit: false,
            settle_timeout: Duration::from_secs(10),
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
    /// Default: 60 s. A shorter `idle_in_transaction_session_timeout` of the session stays.
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

    /// How long to wait for the answer to `COMMIT`, and then again for the record that tells whether it happened,
    /// before [`Error::Unconfirmed`]. Default: 10 s each.
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
            Ok(Ok(conn)) => Ok(PgHandle::new(conn)),
            Err(_) | Ok(Err(sqlx::Error::PoolTimedOut)) => match self.why_none().await {
                Some(error) => Err(store_error(Some(identity), error)),
                None => Err(Error::Busy { identity: identity.clone(), waited: started.elapsed() }),
            },
            Ok(Err(error)) => Err(store_error(Some(identity), error)),
        }
    }

    /// Why the pool gave no connection. It tries again and again while the server refuses, and then only says that it
    /// timed out, which is also what it says where all its connections are in use.
    async fn why_none(&self) -> Option<sqlx::Error> {
        let options = self.pool.connect_options();
        match tokio::time::timeout(DIAGNOSIS_TIMEOUT, PgConnection::connect_with(&options)).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(sqlx::Error::PoolTimedOut),
        }
    }

    /// A connection for what is not a claim, by the pool's own time-out.
    async fn connection(&self) -> Result<PoolConnection<Postgres>, Error> {
        match self.pool.acquire().await {
            Ok(conn) => Ok(conn),
            Err(error @ sqlx::Error::PoolTimedOut) => {
                Err(store_error(None, self.why_none().await.unwrap_or(error)))
            }
            Err(error) => Err(store_error(None, error)),
        }
    }

    /// Runs the start-up check unless it has passed.
    async fn checked(&self, identity: &Identity, deadline: Instant) -> Result<(), Error> {
        let check = async || {
            let mut handle = self.acquire(identity, deadline).await?;
            check::check(&mut handle).await?;
            handle.give_back();
            Ok(())
        };
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
        check::check(&mut *self.connection().await?).await
    }
}

#[async_trait]
impl Store for PgStore {
    type Tx = PgTx;

    async fn claim(&self, claim: Claim) -> Result<Claimed<PgTx>, Error> {
        self.core.refuse_nested(&claim.identity, |running| *running == claim.identity)?;
        let claim = self.core.prepare(claim);
        let deadline = self.core.deadline();
        let store = self.clone();
        Shield::with_grace(CANCELLED_CLAIM_GRACE, async move { store.take(claim, deadline).await }).await
    }

    async fn complete(&self, tx: PgTx, outcome: String) -> Result<(), Error> {
        let (store, open) = (self.clone(), tx.into_open());
        Shield::to_the_end(async move { store.finish(open, outcome).await }).await
    }

    async fn release(&self, tx: PgTx) -> Result<(), Error> {
        Shield::to_the_end(tx.into_open().roll_back()).await
    }

    async fn find(&self, identity: &Identity) -> Result<Option<Record>, Error> {
        let mut conn = self.connection().await?;
        let stored = record::read(&mut conn, identity).await.map_err(|e| store_error(Some(identity), e))?;
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
