//! The variants on SQLite: a file in WAL mode with `synchronous = FULL`. One connection writes, by hand too: more of
//! them would only wait for each other, by sleeping.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use idem_runtime::{Outcome, SqliteStore, SqliteTx, idempotent};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{SqliteConnection, SqlitePool};
use uuid::Uuid;

use super::carried::Carried;
use super::{OPERATION, RETAIN_SECONDS, Variants, digest_by_hand, outcome_by_hand};
use crate::request::{ACCOUNTS, Caller, Payment, Receipt};

const SCHEMA: &str = "
CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL) STRICT;
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY,
    account INTEGER NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL, destination TEXT NOT NULL) STRICT;
CREATE TABLE minimal (
    operation TEXT NOT NULL, scope TEXT NOT NULL, key TEXT NOT NULL,
    fingerprint BLOB NOT NULL, outcome TEXT, expires_at INTEGER NOT NULL,
    PRIMARY KEY (operation, scope, key)) STRICT, WITHOUT ROWID;
CREATE INDEX minimal_expires_at ON minimal (expires_at);
CREATE TABLE by_hand (
    operation TEXT NOT NULL, scope TEXT NOT NULL, key TEXT NOT NULL,
    fingerprint BLOB NOT NULL, outcome TEXT, run BLOB NOT NULL, claimed_at INTEGER NOT NULL,
    processed_at INTEGER, expires_at INTEGER NOT NULL,
    PRIMARY KEY (operation, scope, key)) STRICT, WITHOUT ROWID;
CREATE INDEX by_hand_expires_at ON by_hand (expires_at);
";

/// The service on one SQLite file.
#[derive(Clone, Debug)]
pub struct Sqlite {
    /// The writer of the bare variant and of the one by hand.
    pool: SqlitePool,
    store: SqliteStore,
    caller: Caller,
}

impl Sqlite {
    /// Makes the file with its tables.
    ///
    /// # Errors
    /// What the database says.
    pub async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_with(options)
            .await?;
        sqlx::raw_sql(SCHEMA).execute(&pool).await?;
        sqlx::query(
            "WITH RECURSIVE n(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id + 1 < ?1)
             INSERT INTO account SELECT id, 0 FROM n",
        )
        .bind(ACCOUNTS as i64)
        .execute(&pool)
        .await?;
        let store = SqliteStore::open(path).await?;
        store.migrate().await?;
        store.check().await?;
        Ok(Self { pool, store, caller: Caller::acme() })
    }
}

/// The body of all variants.
async fn book(conn: &mut SqliteConnection, payment: &Payment) -> sqlx::Result<Receipt> {
    sqlx::query("UPDATE account SET balance = balance - ?1 WHERE id = ?2")
        .bind(payment.amount)
        .bind(payment.account)
        .execute(&mut *conn)
        .await?;
    sqlx::query("INSERT INTO ledger (account, amount, currency, destination) VALUES (?1, ?2, ?3, ?4)")
        .bind(payment.account)
        .bind(payment.amount)
        .bind(&payment.currency)
        .bind(&payment.destination)
        .execute(&mut *conn)
        .await?;
    Ok(Receipt::of(payment))
}

async fn bare(pool: &SqlitePool, payment: &Payment) -> Result<Receipt> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let receipt = book(&mut tx, payment).await?;
    tx.commit().await?;
    Ok(receipt)
}

async fn minimal(pool: &SqlitePool, caller: &Caller, payment: &Payment) -> Result<Receipt> {
    let (scope, key) = (caller.tenant.as_str(), payment.operation_key.as_str());
    let fingerprint = digest_by_hand(payment)?;
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let claimed = sqlx::query(
        "INSERT INTO minimal (operation, scope, key, fingerprint, expires_at)
         VALUES (?1, ?2, ?3, ?4, unixepoch() + ?5)
         ON CONFLICT (operation, scope, key) DO NOTHING",
    )
    .bind(OPERATION)
    .bind(scope)
    .bind(key)
    .bind(&fingerprint)
    .bind(RETAIN_SECONDS)
    .execute(&mut *tx)
    .await?;
    if claimed.rows_affected() != 1 {
        bail!("{key}: this variant is for fresh keys");
    }
    let receipt = book(&mut tx, payment).await?;
    sqlx::query("UPDATE minimal SET outcome = ?4 WHERE operation = ?1 AND scope = ?2 AND key = ?3")
        .bind(OPERATION)
        .bind(scope)
        .bind(key)
        .bind(serde_json::to_string(&receipt)?)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(receipt)
}

async fn by_hand(pool: &SqlitePool, caller: &Caller, payment: &Payment) -> Result<Outcome<Receipt>> {
    let (scope, key, run) = (caller.tenant.as_str(), payment.operation_key.as_str(), Uuid::new_v4());
    let fingerprint = digest_by_hand(payment)?;
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let claimed = sqlx::query(
        "INSERT INTO by_hand (operation, scope, key, fingerprint, run, claimed_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, unixepoch(), unixepoch() + ?6)
         ON CONFLICT (operation, scope, key) DO NOTHING",
    )
    .bind(OPERATION)
    .bind(scope)
    .bind(key)
    .bind(&fingerprint)
    .bind(run.as_bytes().as_slice())
    .bind(RETAIN_SECONDS)
    .execute(&mut *tx)
    .await?;
    if claimed.rows_affected() != 1 {
        let (first, outcome): (Vec<u8>, String) = sqlx::query_as(
            "SELECT fingerprint, outcome FROM by_hand WHERE operation = ?1 AND scope = ?2 AND key = ?3",
        )
        .bind(OPERATION)
        .bind(scope)
        .bind(key)
        .fetch_one(&mut *tx)
        .await?;
        if first != fingerprint {
            bail!("{key}: another request had this key");
        }
        // Dropped: the rollback goes with the connection, and nobody waits for it.
        return Ok(Outcome::Replayed(serde_json::from_str(&outcome)?));
    }
    let receipt = book(&mut tx, payment).await?;
    let recorded = sqlx::query(
        "UPDATE by_hand SET outcome = ?5, processed_at = unixepoch()
         WHERE operation = ?1 AND scope = ?2 AND key = ?3 AND run = ?4",
    )
    .bind(OPERATION)
    .bind(scope)
    .bind(key)
    .bind(run.as_bytes().as_slice())
    .bind(outcome_by_hand(&receipt)?)
    .execute(&mut *tx)
    .await?;
    if recorded.rows_affected() != 1 {
        bail!("{key}: the transaction was ended inside the body");
    }
    tx.commit().await?;
    Ok(Outcome::Applied(receipt))
}

#[idempotent(
    operation = "payment.book_unit.sqlite",
    key = "{payment.operation_key}",
    scope = "{caller.tenant}",
    fingerprint(payment { operation_key: _, account, amount, currency, destination, note: _ }),
    retain = "30d", older = run,
)]
async fn annotated_unit(tx: &mut SqliteTx, caller: &Caller, payment: Payment) -> Result<()> {
    book(tx, &payment).await?;
    Ok(())
}

#[idempotent(
    operation = "payment.book.sqlite",
    key = "{payment.operation_key}",
    scope = "{caller.tenant}",
    fingerprint(payment { operation_key: _, account, amount, currency, destination, note: _ }),
    retain = "30d", older = run,
)]
async fn annotated(tx: &mut SqliteTx, caller: &Caller, payment: Payment) -> Result<Receipt> {
    Ok(book(tx, &payment).await?)
}

impl Variants for Sqlite {
    async fn bare(&self, payment: Payment) -> Result<Receipt> {
        bare(&self.pool, &payment).await
    }

    async fn minimal(&self, payment: Payment) -> Result<Receipt> {
        minimal(&self.pool, &self.caller, &payment).await
    }

    async fn by_hand(&self, payment: Payment) -> Result<Outcome<Receipt>> {
        let (pool, caller) = (self.pool.clone(), self.caller.clone());
        Carried::new(async move { by_hand(&pool, &caller, &payment).await }).await
    }

    async fn annotated_unit(&self, payment: Payment) -> Result<Outcome<()>> {
        annotated_unit(&self.store, &self.caller, payment).await
    }

    async fn annotated(&self, payment: Payment) -> Result<Outcome<Receipt>> {
        annotated(&self.store, &self.caller, payment).await
    }

    async fn settled(&self) {
        while self.pool.num_idle() < self.pool.size() as usize {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }

    async fn booked(&self) -> Result<i64> {
        Ok(sqlx::query_scalar("SELECT count(*) FROM ledger").fetch_one(&self.pool).await?)
    }
}
