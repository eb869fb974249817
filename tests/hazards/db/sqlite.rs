//! A fresh SQLite file with the library's tables and the user's.

use idem_runtime::{SqliteStore, SqliteTx};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, SqlitePool};
use tempfile::TempDir;

pub type Store = SqliteStore;
pub type Tx = SqliteTx;

/// The table that an inbox has.
pub const INBOX: &str = "idem_inbox";
pub const MIGRATION: &str = "idem_migration";
pub const OUTBOX: &str = "idem_outbox";
/// Bytes that are no JSON.
pub const BYTES: &str = "x'ff7b'";
/// An SQL expression: so many seconds, to be taken from a time.
pub fn seconds(seconds: i64) -> String {
    format!("{seconds} * 1000000")
}
/// An SQL expression: now and so many seconds.
pub fn in_seconds(seconds: i64) -> String {
    format!("(unixepoch() + {seconds}) * 1000000")
}

/// An SQL expression: the token of somebody's lease.
pub fn some_lease() -> &'static str {
    "randomblob(16)"
}

pub struct Db {
    pub pool: SqlitePool,
    path: std::path::PathBuf,
    _dir: TempDir,
}

impl Db {
    /// With the user's tables, but not migrated.
    pub async fn bare() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("test.sqlite3");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true).foreign_keys(true);
        let pool = SqlitePoolOptions::new().max_connections(2).connect_lazy_with(options);
        let db = Self { pool, path, _dir: dir };
        // Switches the file to WAL, which the pool's connections then keep to.
        drop(db.store().await);
        db.execute(
            "CREATE TABLE effect (id integer PRIMARY KEY, key text NOT NULL);
             CREATE TABLE named (name text PRIMARY KEY);
             CREATE TABLE parent (id integer PRIMARY KEY);
             CREATE TABLE child (parent integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
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
        self.path.to_str().expect("UTF-8")
    }

    /// A store as another process would have it, with connections of its own.
    pub async fn store(&self) -> SqliteStore {
        SqliteStore::open(&self.path).await.expect("opened")
    }

    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.expect("executed");
    }

    pub async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.expect("counted")
    }

    /// Nobody holds the file for writing.
    pub async fn assert_no_open_transaction(&self) {
        self.execute("BEGIN IMMEDIATE; ROLLBACK").await;
    }
}

/// A store on a database that another process has set up.
pub async fn open(path: &str) -> SqliteStore {
    SqliteStore::open(path).await.expect("opened")
}
