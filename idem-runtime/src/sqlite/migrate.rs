//! The tables, and how they come about. Versions are applied in order, in one transaction of the only writer, so that
//! any number of processes may do it at once.

use sqlx::SqlitePool;
use tokio::time::Instant;

use super::connection::{SqliteHandle, Writer};
use super::store_error;
use crate::Error;
use crate::tx::sealed::Sealed;

/// A step of the schema.
struct Migration {
    version: i32,
    /// The oldest version of this library that can work with the result.
    min_compatible: i32,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, min_compatible: 1, sql: INBOX },
    Migration { version: 2, min_compatible: 1, sql: OUTBOX },
];

/// Times are microseconds since 1970.
const INBOX: &str = "
CREATE TABLE idem_inbox (
    operation     TEXT NOT NULL,
    scope         TEXT NOT NULL,
    key           TEXT NOT NULL,
    fingerprint   BLOB,
    outcome       TEXT,
    claim_token   BLOB NOT NULL,
    claimed_at    INTEGER NOT NULL,
    processed_at  INTEGER,
    outcome_until INTEGER,
    expires_at    INTEGER,
    PRIMARY KEY (operation, scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idem_inbox_expires_at ON idem_inbox (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX idem_inbox_outcome_until ON idem_inbox (outcome_until) WHERE outcome_until IS NOT NULL;
";

/// Finished rows are in no index but those of the keys.
const OUTBOX: &str = "
CREATE TABLE idem_outbox (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    effect           TEXT NOT NULL,
    content_type     TEXT NOT NULL,
    payload          BLOB NOT NULL,
    effect_key       TEXT NOT NULL UNIQUE,
    operation        TEXT NOT NULL,
    scope            TEXT NOT NULL,
    key              TEXT NOT NULL,
    order_key        TEXT,
    order_no         INTEGER,
    state            TEXT NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'accepted', 'review', 'delivered', 'rejected', 'abandoned')),
    maybe_sent       INTEGER NOT NULL DEFAULT 0,
    attempts         INTEGER NOT NULL DEFAULT 0,
    crashes          INTEGER NOT NULL DEFAULT 0,
    first_attempt_at INTEGER,
    due_at           INTEGER NOT NULL,
    lease_until      INTEGER,
    lease_token      BLOB,
    last_deadline    INTEGER,
    window_closed    INTEGER NOT NULL DEFAULT 0,
    version          INTEGER NOT NULL DEFAULT 0,
    reference        TEXT,
    last_error       TEXT,
    created_at       INTEGER NOT NULL,
    finished_at      INTEGER
) STRICT;
CREATE INDEX idem_outbox_due ON idem_outbox (effect, due_at) WHERE state IN ('pending', 'accepted');
CREATE INDEX idem_outbox_order ON idem_outbox (effect, scope, order_key, order_no)
    WHERE order_key IS NOT NULL AND state IN ('pending', 'accepted', 'review');
CREATE INDEX idem_outbox_review ON idem_outbox (id) WHERE state = 'review';
CREATE TABLE idem_outbox_attempt (
    outbox_id   INTEGER NOT NULL REFERENCES idem_outbox ON DELETE CASCADE,
    lease_token BLOB NOT NULL,
    attempt     INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    deadline    INTEGER NOT NULL,
    ended_at    INTEGER,
    result      TEXT,
    detail      TEXT,
    PRIMARY KEY (outbox_id, lease_token)
) STRICT, WITHOUT ROWID;
CREATE TABLE idem_order_head (
    effect    TEXT NOT NULL,
    scope     TEXT NOT NULL,
    order_key TEXT NOT NULL,
    last      INTEGER NOT NULL,
    PRIMARY KEY (effect, scope, order_key)
) STRICT, WITHOUT ROWID;
CREATE TABLE idem_review_log (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    outbox_id INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    decision  TEXT NOT NULL,
    by        TEXT NOT NULL,
    note      TEXT NOT NULL,
    at        INTEGER NOT NULL,
    won       INTEGER NOT NULL
) STRICT;
CREATE INDEX idem_review_log_outbox_id ON idem_review_log (outbox_id);
CREATE TABLE idem_provider (
    effect       TEXT NOT NULL,
    worker       BLOB NOT NULL,
    seen_at      INTEGER NOT NULL,
    paused_until INTEGER,
    error        TEXT,
    PRIMARY KEY (effect, worker)
) STRICT, WITHOUT ROWID;
";

/// The version that this library writes.
pub(super) const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

const FOUND: &str = "SELECT coalesce(max(version), 0) FROM idem_migration";

pub(super) async fn migrate(writer: &Writer, readers: &SqlitePool, deadline: Instant) -> Result<(), Error> {
    // A process that starts does not wait for the bodies of others where there is nothing to do.
    if !is_needed(readers).await.map_err(|e| store_error(None, e))? {
        return Ok(());
    }
    let acquired = tokio::time::timeout_at(deadline, writer.acquire()).await.map_err(|_| {
        Error::store(None, true, "the writer was busy with a body; run the migration before the handlers")
    })?;
    let mut handle = acquired.map_err(|e| store_error(None, e))?;
    let migrated = match handle.begin(deadline).await {
        Ok(()) => apply(&mut handle).await,
        Err(error) => Err(error),
    };
    if let Err(error) = migrated {
        if let Err(rollback) = sqlx::Sqlite::roll_back(handle).await {
            tracing::debug!(%rollback, "the writer connection was replaced instead of rolled back");
        }
        return Err(store_error(None, error));
    }
    handle.commit().await.map_err(|e| store_error(None, e))
}

async fn is_needed(readers: &SqlitePool) -> Result<bool, sqlx::Error> {
    let tables = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'idem_migration'";
    if sqlx::query_scalar::<_, i32>(tables).fetch_one(readers).await? == 0 {
        return Ok(true);
    }
    let found: i32 = sqlx::query_scalar(FOUND).fetch_one(readers).await?;
    Ok(found < VERSION)
}

async fn apply(handle: &mut SqliteHandle) -> Result<(), sqlx::Error> {
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS idem_migration (
            version        INTEGER PRIMARY KEY,
            min_compatible INTEGER NOT NULL,
            applied_at     INTEGER NOT NULL DEFAULT (unixepoch() * 1000000)) STRICT",
    )
    .execute(&mut **handle)
    .await?;
    let found: i32 = sqlx::query_scalar(FOUND).fetch_one(&mut **handle).await?;
    for migration in MIGRATIONS.iter().filter(|m| m.version > found) {
        sqlx::raw_sql(migration.sql).execute(&mut **handle).await?;
        sqlx::query("INSERT INTO idem_migration (version, min_compatible) VALUES (?1, ?2)")
            .bind(migration.version)
            .bind(migration.min_compatible)
            .execute(&mut **handle)
            .await?;
    }
    Ok(())
}
