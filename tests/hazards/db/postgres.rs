//! A fresh Postgres database with the library's tables and the user's.

use std::time::Duration;

use idem_runtime::{PgStore, PgTx};
use idem_testkit::postgres::TestDatabase;
use idem_testkit::wait::eventually;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};

pub type Store = PgStore;
pub type Tx = PgTx;

/// The table that an inbox has.
pub const INBOX: &str = "idem.inbox";
pub const MIGRATION: &str = "idem.migration";
pub const OUTBOX: &str = "idem.outbox";
/// Bytes that are no JSON.
pub const BYTES: &str = "'\\xff7b'::bytea";
/// An SQL expression: so many seconds, to be taken from a time.
pub fn seconds(seconds: i64) -> String {
    format!("interval '{seconds} seconds'")
}
/// An SQL expression: now and so many seconds.
pub fn in_seconds(seconds: i64) -> String {
    format!("now() + interval '{seconds} seconds'")
}

/// An SQL expression: the token of somebody's lease.
pub fn some_lease() -> &'static str {
    "gen_random_uuid()"
}

pub struct Db {
    pub pool: PgPool,
    database: TestDatabase,
}

impl Db {
    /// With the user's tables, but not migrated.
    pub async fn bare() -> Self {
        let database = TestDatabase::create().await;
        // Unlike a store's pool this one looks before it gives a connection: tests end sessions.
        let pool = PgPoolOptions::new().max_connections(5).connect_lazy(database.url()).expect("a valid url");
        let db = Self { pool, database };
        db.execute(
            "CREATE TABLE effect (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL);
             CREATE TABLE named (name text PRIMARY KEY);
             CREATE TABLE parent (id int PRIMARY KEY);
             CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
        db
    }

    pub async fn fresh() -> Self {
        let db = Self::bare().await;
        db.store().await.migrate().await.expect("migrated");
        db
    }

    pub fn url(&self) -> &str {
        self.database.url()
    }

    /// A store as another process would have it, with a pool of its own.
    pub async fn store(&self) -> PgStore {
        self.store_of(8)
    }

    pub fn store_of(&self, connections: u32) -> PgStore {
        PgStore::new(pool(self.url(), connections))
    }

    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.expect("executed");
    }

    pub async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.expect("counted")
    }

    /// No session is in a transaction: none was given back to a pool with one open.
    pub async fn assert_no_open_transaction(&self) {
        eventually("no session stays in a transaction", Duration::from_secs(20), async || {
            let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                         AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL";
            self.count(open).await == 0
        })
        .await;
    }
}

/// A store on a database that another process has set up.
pub async fn open(url: &str) -> PgStore {
    PgStore::new(pool(url, 4))
}

pub fn pool(url: &str, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .connect_lazy(url)
        .expect("a valid url")
}
