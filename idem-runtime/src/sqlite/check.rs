//! The start-up check: what would make every claim fail, or would let an effect happen twice, is found before the
//! first claim, and the error says what to run.

use sqlx::{Row, SqlitePool};
use tokio::time::Instant;

use super::connection::Writer;
use super::migrate::VERSION;
use super::{OPEN_WAIT, store_error};
use crate::registry::check_operations;
use crate::tx::sealed::Sealed;
use crate::{Error, SchemaProblem};

/// Before it, a write could be lost when the WAL was reset while another connection checkpointed.
const OLDEST_LIBRARY: [u32; 3] = [3, 51, 3];

pub(super) async fn check(readers: &SqlitePool) -> Result<(), Error> {
    check_operations()?;
    match problem(readers).await.map_err(|e| store_error(None, e))? {
        None => Ok(()),
        Some(problem) => Err(Error::Schema { problem }),
    }
}

async fn problem(readers: &SqlitePool) -> Result<Option<SchemaProblem>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT (SELECT count(*) FROM sqlite_schema
                  WHERE type = 'table' AND name IN ('idem_inbox', 'idem_migration')) = 2,
                EXISTS (SELECT i.name FROM pragma_index_list('idem_inbox') AS i
                  WHERE \"unique\" = 1 AND partial = 0
                    AND (SELECT group_concat(name || ' ' || coll, ',' ORDER BY name)
                           FROM pragma_index_xinfo(i.name) WHERE key = 1)
                        = 'key BINARY,operation BINARY,scope BINARY'
                    AND (SELECT count(*) FROM pragma_index_info(i.name)) = 3)",
    )
    .fetch_one(readers)
    .await?;
    let unique_key: bool = row.try_get(1)?;
    if !row.try_get::<bool, _>(0)? {
        return Ok(Some(SchemaProblem::Missing));
    }
    let versions =
        sqlx::query("SELECT coalesce(max(version), 0), coalesce(max(min_compatible), 0) FROM idem_migration")
            .fetch_one(readers)
            .await?;
    let (found, min_compatible): (i32, i32) = (versions.try_get(0)?, versions.try_get(1)?);
    Ok(if min_compatible > VERSION {
        Some(SchemaProblem::TooNew { min_compatible, supported: VERSION })
    } else if found < VERSION {
        Some(SchemaProblem::TooOld { found, needed: VERSION })
    } else if !unique_key {
        let repair =
            "CREATE UNIQUE INDEX idem_inbox_identity ON idem_inbox (operation, scope, key)".to_owned();
        Some(SchemaProblem::UniqueKeyMissing { repair })
    } else {
        None
    })
}

/// Opens the writer, and refuses what the store cannot be safe on.
pub(super) async fn check_library(writer: &Writer) -> Result<(), Error> {
    let unsupported = |found: String, needed: &str| Error::Schema {
        problem: SchemaProblem::Unsupported { found, needed: needed.to_owned() },
    };
    let mut handle = open(writer).await.map_err(|e| store_error(None, e))?;
    let row = sqlx::query("SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode)")
        .fetch_one(&mut *handle)
        .await;
    let row = row.map_err(|e| store_error(None, e))?;
    let text = |column: usize| row.try_get::<String, _>(column).map_err(|e| store_error(None, e));
    let (version, journal_mode) = (text(0)?, text(1)?);
    let parts: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    if parts.as_slice() < OLDEST_LIBRARY.as_slice() {
        let needed = "SQLite 3.51.3 or later, which mends a loss of writes in WAL mode,";
        return Err(unsupported(format!("SQLite {version}"), needed));
    }
    if journal_mode != "wal" {
        let found = format!("a database with journal_mode = {journal_mode}");
        let needed = "a file in WAL mode (in memory, each connection would have a database of its own)";
        return Err(unsupported(found, needed));
    }
    sqlx::Sqlite::roll_back(handle).await.map_err(|e| store_error(None, e))
}

/// Several processes that open a new file at once are in each other's way while it is switched to WAL, and SQLite
/// does not wait there by itself.
async fn open(writer: &Writer) -> Result<super::connection::SqliteHandle, sqlx::Error> {
    let deadline = Instant::now() + OPEN_WAIT;
    loop {
        match writer.acquire().await {
            Err(error)
                if super::connection::primary_code(&error) == super::connection::BUSY
                    && Instant::now() < deadline =>
            {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            opened => return opened,
        }
    }
}
