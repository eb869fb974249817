//! The variants on Postgres. All share one pool, whose connections are not tested when they are taken.

use std::time::Duration;

use anyhow::{Result, bail};
use idem_runtime::{Outcome, PgStore, PgTx, idempotent};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::carried::Carried;
use super::{OPERATION, RETAIN_SECONDS, Variants, digest_by_hand, outcome_by_hand};
use crate::request::{ACCOUNTS, Caller, Payment, Receipt};

const SCHEMA: &str = "
CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE ledger (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account bigint NOT NULL, amount bigint NOT NULL, currency text NOT NULL, destination text NOT NULL);
CREATE TABLE minimal (
    operation text COLLATE \"C\" NOT NULL, scope text COLLATE \"C\" NOT NULL, key text COLLATE \"C\" NOT NULL,
    fingerprint bytea NOT NULL, outcome json, expires_at timestamptz NOT NULL,
    PRIMARY KEY (operation, scope, key)) WITH (fillfactor = 70);
CREATE INDEX ON minimal (expires_at);
CREATE TABLE by_hand (
    operation text COLLATE \"C\" NOT NULL, scope text COLLATE \"C\" NOT NULL, key text COLLATE \"C\" NOT NULL,
    fingerprint bytea NOT NULL, outcome json, run uuid NOT NULL, claimed_at timestamptz NOT NULL DEFAULT now(),
    processed_at timestamptz, expires_at timestamptz NOT NULL,
    PRIMARY KEY (operation, scope, key)) WITH (fillfactor = 70);
CREATE INDEX ON by_hand (expires_at);
";

/// The service on one Postgres database.
#[derive(Clone, Debug)]
pub struct Postgres {
    pool: PgPool,
    store: PgStore,
    caller: Caller,
}

impl Postgres {
    /// Makes the tables, and opens all connections.
    ///
    /// # Errors
    /// What the database says.
    pub async fn open(url: &str, connections: u32) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .min_connections(connections)
            .test_before_acquire(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect(url)
            .await?;
        sqlx::raw_sql(SCHEMA).execute(&pool).await?;
        sqlx::query("INSERT INTO account SELECT id, 0 FROM generate_series(0, $1 - 1) id")
            .bind(ACCOUNTS as i64)
            .execute(&pool)
            .await?;
        let store = PgStore::new(pool.clone());
        store.migrate().await?;
        store.check().await?;
        let mut opened = Vec::new();
        for _ in 0..connections {
            opened.push(pool.acquire().await?);
        }
        Ok(Self { pool, store, caller: Caller::acme() })
    }

    /// The pool of all variants.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}

/// The body of all variants.
async fn book(conn: &mut PgConnection, payment: &Payment) -> sqlx::Result<Receipt> {
    sqlx::query("UPDATE account SET balance = balance - $1 WHERE id = $2")
        .bind(payment.amount)
        .bind(payment.account)
        .execute(&mut *conn)
        .await?;
    sqlx::query("INSERT INTO ledger (account, amount, currency, destination) VALUES ($1, $2, $3, $4)")
        .bind(payment.account)
        .bind(payment.amount)
        .bind(&payment.currency)
        .bind(&payment.destination)
        .execute(&mut *conn)
        .await?;
    Ok(Receipt::of(payment))
}

async fn bare(pool: &PgPool, payment: &Payment) -> Result<Receipt> {
    let mut tx = pool.begin().await?;
    let receipt = book(&mut tx, payment).await?;
    tx.commit().await?;
    Ok(receipt)
}

async fn minimal(pool: &PgPool, caller: &Caller, payment: &Payment) -> Result<Receipt> {
    let (scope, key) = (caller.tenant.as_str(), payment.operation_key.as_str());
    let fingerprint = digest_by_hand(payment)?;
    let mut tx = pool.begin().await?;
    let claimed = sqlx::query(
        "INSERT INTO minimal (operation, scope, key, fingerprint, expires_at)
         VALUES ($1, $2, $3, $4, now() + $5 * interval '1 second')
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
    sqlx::query("UPDATE minimal SET outcome = $4::json WHERE operation = $1 AND scope = $2 AND key = $3")
        .bind(OPERATION)
        .bind(scope)
        .bind(key)
        .bind(serde_json::to_string(&receipt)?)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(receipt)
}

/// The bounds go with `BEGIN`. Who writes this knows that the sessions have no lock timeout of their own, and that
/// their commits survive a crash.
const BEGIN: &str =
    "BEGIN; SET LOCAL lock_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '60s'";

async fn by_hand(pool: &PgPool, caller: &Caller, payment: &Payment) -> Result<Outcome<Receipt>> {
    let (scope, key, run) = (caller.tenant.as_str(), payment.operation_key.as_str(), Uuid::new_v4());
    let fingerprint = digest_by_hand(payment)?;
    let mut tx = pool.begin_with(BEGIN).await?;
    let claimed = sqlx::query(
        "INSERT INTO by_hand (operation, scope, key, fingerprint, run, expires_at)
         VALUES ($1, $2, $3, $4, $5, now() + $6 * interval '1 second')
         ON CONFLICT (operation, scope, key) DO NOTHING RETURNING set_config('lock_timeout', '0', true)",
    )
    .bind(OPERATION)
    .bind(scope)
    .bind(key)
    .bind(&fingerprint)
    .bind(run)
    .bind(RETAIN_SECONDS)
    .fetch_optional(&mut *tx)
    .await?;
    if claimed.is_none() {
        // A second statement: the first does not see what was committed while it waited.
        let (first, outcome): (Vec<u8>, String) = sqlx::query_as(
            "SELECT fingerprint, outcome::text FROM by_hand WHERE operation = $1 AND scope = $2 AND key = $3",
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
        "UPDATE by_hand SET outcome = $5::json, processed_at = clock_timestamp()
         WHERE operation = $1 AND scope = $2 AND key = $3 AND run = $4 AND xmin = pg_current_xact_id()::xid",
    )
    .bind(OPERATION)
    .bind(scope)
    .bind(key)
    .bind(run)
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
    operation = "payment.book_unit",
    key = "{payment.operation_key}",
    scope = "{caller.tenant}",
    fingerprint(payment { operation_key: _, account, amount, currency, destination, note: _ }),
    retain = "30d", older = run,
)]
async fn annotated_unit(tx: &mut PgTx, caller: &Caller, payment: Payment) -> Result<()> {
    book(tx, &payment).await?;
    Ok(())
}

#[idempotent(
    operation = "payment.book",
    key = "{payment.operation_key}",
    scope = "{caller.tenant}",
    fingerprint(payment { operation_key: _, account, amount, currency, destination, note: _ }),
    retain = "30d", older = run,
)]
async fn annotated(tx: &mut PgTx, caller: &Caller, payment: Payment) -> Result<Receipt> {
    Ok(book(tx, &payment).await?)
}

impl Variants for Postgres {
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
