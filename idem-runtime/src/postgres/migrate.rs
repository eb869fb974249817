//! The tables, and how they come about. Versions are applied in order, in one transaction under a lock of that
//! transaction, so that any number of processes may do it at once.

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres};

use super::check::{no_rights, quoted};
use super::connection::{PgHandle, code};
use super::store_error;
use crate::Error;

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

const INBOX: &str = "
CREATE TABLE idem.inbox (
    operation     text COLLATE \"C\" NOT NULL,
    scope         text COLLATE \"C\" NOT NULL,
    key           text COLLATE \"C\" NOT NULL,
    fingerprint   bytea,
    outcome       json,
    claim_token   uuid NOT NULL,
    claimed_at    timestamptz NOT NULL DEFAULT now(),
    processed_at  timestamptz,
    outcome_until timestamptz,
    expires_at    timestamptz,
    PRIMARY KEY (operation, scope, key)
) WITH (fillfactor = 70);
CREATE INDEX ON idem.inbox (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX ON idem.inbox (outcome_until) WHERE outcome_until IS NOT NULL;
";

/// Finished rows are in no index but those of the keys. What changes at a lease and at an attempt is in none, so that
/// both are updates in place.
const OUTBOX: &str = "
CREATE TABLE idem.outbox (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    effect           text COLLATE \"C\" NOT NULL,
    content_type     text NOT NULL,
    payload          bytea NOT NULL,
    effect_key       text COLLATE \"C\" NOT NULL UNIQUE,
    operation        text COLLATE \"C\" NOT NULL,
    scope            text COLLATE \"C\" NOT NULL,
    key              text COLLATE \"C\" NOT NULL,
    order_key        text COLLATE \"C\",
    order_no         bigint,
    state            text COLLATE \"C\" NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'accepted', 'review', 'delivered', 'rejected', 'abandoned')),
    maybe_sent       boolean NOT NULL DEFAULT false,
    attempts         int NOT NULL DEFAULT 0,
    crashes          int NOT NULL DEFAULT 0,
    first_attempt_at timestamptz,
    due_at           timestamptz NOT NULL,
    lease_until      timestamptz,
    lease_token      uuid,
    last_deadline    timestamptz,
    window_closed    boolean NOT NULL DEFAULT false,
    version          bigint NOT NULL DEFAULT 0,
    reference        text,
    last_error       text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    finished_at      timestamptz
) WITH (fillfactor = 70);
CREATE INDEX outbox_due ON idem.outbox (effect, due_at) WHERE state IN ('pending', 'accepted');
CREATE INDEX outbox_order ON idem.outbox (effect, scope, order_key, order_no)
    WHERE order_key IS NOT NULL AND state IN ('pending', 'accepted', 'review');
CREATE INDEX outbox_review ON idem.outbox (id) WHERE state = 'review';
CREATE TABLE idem.outbox_attempt (
    outbox_id   bigint NOT NULL REFERENCES idem.outbox ON DELETE CASCADE,
    lease_token uuid NOT NULL,
    attempt     int NOT NULL,
    started_at  timestamptz NOT NULL,
    deadline    timestamptz NOT NULL,
    ended_at    timestamptz,
    result      text,
    detail      text,
    PRIMARY KEY (outbox_id, lease_token)
) WITH (fillfactor = 70);
CREATE TABLE idem.order_head (
    effect    text COLLATE \"C\" NOT NULL,
    scope     text COLLATE \"C\" NOT NULL,
    order_key text COLLATE \"C\" NOT NULL,
    last      bigint NOT NULL,
    PRIMARY KEY (effect, scope, order_key)
) WITH (fillfactor = 70);
CREATE TABLE idem.review_log (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    outbox_id bigint NOT NULL,
    version   bigint NOT NULL,
    decision  text NOT NULL,
    by        text NOT NULL,
    note      text NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    won       boolean NOT NULL
);
CREATE INDEX ON idem.review_log (outbox_id);
CREATE TABLE idem.provider (
    effect       text COLLATE \"C\" NOT NULL,
    worker       uuid NOT NULL,
    seen_at      timestamptz NOT NULL,
    paused_until timestamptz,
    error        text,
    PRIMARY KEY (effect, worker)
);
";

/// The version that this library writes.
pub(super) const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

const FOUND: &str = "SELECT coalesce(max(version), 0) FROM idem.migration";

/// `idem` in ASCII: the advisory lock of the transaction that migrates.
const LOCK: i64 = 0x6964_656d;

pub(super) async fn migrate(conn: PoolConnection<Postgres>) -> Result<(), Error> {
    // Dropped in the middle, it is closed.
    let mut handle = PgHandle::new(conn, false);
    // A process that starts does not wait for another's migration where there is nothing to do.
    let needed = match is_needed(&mut handle).await {
        // It may not even look: the attempt tells which right it lacks.
        Err(error) if code(&error) == "42501" => true,
        needed => needed.map_err(|e| store_error(None, e))?,
    };
    handle.start_over();
    if !needed {
        handle.give_back();
        return Ok(());
    }
    let mut conn = handle.detach();
    let migrated = match apply(&mut conn).await {
        Err(error) if code(&error) == "42501" => Err(refused(&mut conn, error).await),
        other => other.map_err(|e| store_error(None, e)),
    };
    let closed = conn.close().await;
    migrated?;
    closed.map_err(|e| store_error(None, e))
}

/// Which right the role lacks; `error` itself, where that cannot be asked.
async fn refused(conn: &mut PgConnection, error: sqlx::Error) -> Error {
    let asked = sqlx::query_as::<_, (String, String, Option<bool>)>(
        "SELECT current_user::text, current_database()::text,
                has_schema_privilege(to_regnamespace('idem'), 'USAGE')
                    AND has_schema_privilege(to_regnamespace('idem'), 'CREATE')",
    );
    let Ok((role, database, may_create)) = asked.persistent(false).fetch_one(conn).await else {
        return store_error(None, error);
    };
    let problem = match may_create {
        None => {
            let grant = format!("CREATE ON DATABASE {}", quoted(&database));
            no_rights(role, "create the schema idem", &grant)
        }
        Some(false) => no_rights(role, "create tables in the schema idem", "USAGE, CREATE ON SCHEMA idem"),
        Some(true) => no_rights(role, "write idem.migration", "SELECT, INSERT ON idem.migration"),
    };
    Error::Schema { problem }
}

async fn is_needed(conn: &mut PgHandle) -> Result<bool, sqlx::Error> {
    conn.begin_to_read().await?;
    if !sqlx::query_scalar("SELECT to_regclass('idem.migration') IS NOT NULL")
        .persistent(false)
        .fetch_one(&mut **conn)
        .await?
    {
        return Ok(true);
    }
    let found: i32 = sqlx::query_scalar(FOUND).persistent(false).fetch_one(&mut **conn).await?;
    Ok(found < VERSION)
}

async fn apply(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).persistent(false).execute(&mut *tx).await?;
    // `IF NOT EXISTS` asks for the right to create first, also where an administrator has created it.
    let exists = |relation: &'static str| {
        sqlx::query_scalar::<_, bool>(AssertSqlSafe(format!("SELECT {relation} IS NOT NULL")))
            .persistent(false)
    };
    if !exists("to_regnamespace('idem')").fetch_one(&mut *tx).await? {
        sqlx::query("CREATE SCHEMA idem").persistent(false).execute(&mut *tx).await?;
    }
    if !exists("to_regclass('idem.migration')").fetch_one(&mut *tx).await? {
        sqlx::query(
            "CREATE TABLE idem.migration (
                version int PRIMARY KEY,
                min_compatible int NOT NULL,
                applied_at timestamptz NOT NULL DEFAULT now())",
        )
        .persistent(false)
        .execute(&mut *tx)
        .await?;
    }
    let found: i32 = sqlx::query_scalar(FOUND).persistent(false).fetch_one(&mut *tx).await?;
    for migration in MIGRATIONS.iter().filter(|m| m.version > found) {
        sqlx::raw_sql(migration.sql).execute(&mut *tx).await?;
        sqlx::query("INSERT INTO idem.migration (version, min_compatible) VALUES ($1, $2)")
            .bind(migration.version)
            .bind(migration.min_compatible)
            .persistent(false)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await
}
