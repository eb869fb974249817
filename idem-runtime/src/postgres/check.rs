//! The start-up check: what would make every claim fail, or would let an effect happen twice, is found before the
//! first claim, and the error says what to run.

use sqlx::Row;

use super::connection::PgHandle;
use super::migrate::VERSION;
use super::store_error;
use crate::registry::check_operations;
use crate::{Error, SchemaProblem};

/// `xid8` and `pg_current_xact_id` came with it.
const OLDEST_SERVER: i32 = 130_000;

pub(super) async fn check(mut handle: PgHandle) -> Result<(), Error> {
    let checked = match check_operations() {
        Ok(()) => problem(&mut handle).await.map_err(|e| store_error(None, e))?,
        Err(error) => {
            handle.give_back();
            return Err(error);
        }
    };
    handle.give_back();
    checked.map_or(Ok(()), |problem| Err(Error::Schema { problem }))
}

async fn problem(conn: &mut PgHandle) -> Result<Option<SchemaProblem>, sqlx::Error> {
    conn.begin_to_read().await?;
    // By the catalogue alone, which every role may read.
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_user::text,
                EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                         WHERE n.nspname = 'idem' AND c.relname = 'inbox'),
                EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                         WHERE n.nspname = 'idem' AND c.relname = 'migration'),
                coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'idem'), false)",
    )
    .persistent(false)
    .fetch_one(&mut **conn)
    .await?;
    if row.try_get::<i32, _>(0)? < OLDEST_SERVER {
        return Ok(Some(SchemaProblem::Unsupported {
            found: format!("Postgres {}", row.try_get::<String, _>(1)?),
            needed: "Postgres 13 or later, for pg_current_xact_id,".to_owned(),
        }));
    }
    let role: String = row.try_get(2)?;
    if !(row.try_get(3)? && row.try_get(4)?) {
        return Ok(Some(SchemaProblem::Missing));
    }
    if !row.try_get::<bool, _>(5)? {
        return Ok(Some(no_rights(role, "use the schema idem", "USAGE ON SCHEMA idem")));
    }
    let row = sqlx::query(
        "SELECT has_table_privilege('idem.migration', 'SELECT'),
                has_table_privilege('idem.inbox', 'SELECT') AND has_table_privilege('idem.inbox', 'INSERT')
                    AND has_table_privilege('idem.inbox', 'UPDATE'),
                EXISTS (SELECT FROM pg_index i WHERE i.indrelid = 'idem.inbox'::regclass
                    AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
                    AND i.indnkeyatts = 3 AND i.indexprs IS NULL
                    AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
                          WHERE a.attrelid = i.indrelid
                            AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
                        = ARRAY['key', 'operation', 'scope']),
                (SELECT relpersistence = 'p' FROM pg_class WHERE oid = 'idem.inbox'::regclass)",
    )
    .persistent(false)
    .fetch_one(&mut **conn)
    .await?;
    if !row.try_get::<bool, _>(0)? {
        return Ok(Some(no_rights(role, "read idem.migration", "SELECT ON idem.migration")));
    }
    if !row.try_get::<bool, _>(1)? {
        let grant = "SELECT, INSERT, UPDATE, DELETE ON idem.inbox";
        return Ok(Some(no_rights(role, "read and write idem.inbox", grant)));
    }
    let versions =
        sqlx::query("SELECT coalesce(max(version), 0), coalesce(max(min_compatible), 0) FROM idem.migration")
            .persistent(false)
            .fetch_one(&mut **conn)
            .await?;
    let (found, min_compatible): (i32, i32) = (versions.try_get(0)?, versions.try_get(1)?);
    Ok(if min_compatible > VERSION {
        Some(SchemaProblem::TooNew { min_compatible, supported: VERSION })
    } else if found < VERSION {
        Some(SchemaProblem::TooOld { found, needed: VERSION })
    } else if !row.try_get::<bool, _>(2)? {
        let repair = "ALTER TABLE idem.inbox ADD PRIMARY KEY (operation, scope, key)".to_owned();
        Some(SchemaProblem::UniqueKeyMissing { repair })
    } else if !row.try_get::<bool, _>(3)? {
        Some(SchemaProblem::Unsupported {
            found: "an unlogged table idem.inbox".to_owned(),
            needed: "one that a crash does not empty (`ALTER TABLE idem.inbox SET LOGGED`)".to_owned(),
        })
    } else {
        None
    })
}

/// What the worker needs beyond that; a role that only handles needs less.
pub(super) async fn check_outbox(mut handle: PgHandle) -> Result<(), Error> {
    let asked = async {
        handle.begin_to_read().await?;
        sqlx::query_as::<_, (String, bool)>(
            "SELECT current_user::text, bool_and(has_table_privilege('idem.' || name, privilege))
               FROM unnest(ARRAY['outbox', 'outbox_attempt', 'provider', 'review_log']) AS name,
                    unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege",
        )
        .persistent(false)
        .fetch_one(&mut *handle)
        .await
    };
    let (role, may) = asked.await.map_err(|e| store_error(None, e))?;
    handle.give_back();
    if may {
        return Ok(());
    }
    let grant = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idem";
    Err(Error::Schema { problem: no_rights(role, "read and write the outbox", grant) })
}

pub(super) fn no_rights(role: String, privilege: &str, grant: &str) -> SchemaProblem {
    let grant = format!("GRANT {grant} TO {}", quoted(&role));
    SchemaProblem::NoRights { role, privilege: privilege.to_owned(), grant }
}

/// A name as SQL has it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
