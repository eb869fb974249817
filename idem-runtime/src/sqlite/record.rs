//! Reading the record of an identity, with whose run it is and the database's clock.

use std::time::SystemTime;

use sqlx::{Row, SqliteConnection};
use uuid::Uuid;

use crate::time::from_micros;
use crate::{Identity, Record};

/// The database's clock, in microseconds since 1970; SQLite's own has milliseconds.
macro_rules! now {
    () => {
        "CAST(round(unixepoch('subsec') * 1000.0) AS INTEGER) * 1000"
    };
}
pub(super) use now;

/// A record as it stands in the table.
pub(super) struct Stored {
    pub(super) record: Record,
    /// Whose run it is.
    pub(super) token: Uuid,
    /// The database's clock when it was read.
    pub(super) now: SystemTime,
}

pub(super) async fn read(
    conn: &mut SqliteConnection,
    identity: &Identity,
) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query(concat!(
        "SELECT fingerprint, outcome, claim_token, claimed_at, processed_at, outcome_until, expires_at, ",
        now!(),
        " FROM idem_inbox WHERE operation = ?1 AND scope = ?2 AND key = ?3"
    ))
    .bind(identity.operation())
    .bind(identity.scope())
    .bind(identity.key())
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let time = |column: usize| row.try_get::<Option<i64>, _>(column).map(|t| t.map(from_micros));
    let mut record = Record::new(identity.clone(), from_micros(row.try_get(3)?));
    record.fingerprint = row.try_get(0)?;
    record.outcome = row.try_get(1)?;
    record.processed_at = time(4)?;
    record.outcome_until = time(5)?;
    record.expires_at = time(6)?;
    Ok(Some(Stored { record, token: row.try_get(2)?, now: from_micros(row.try_get(7)?) }))
}
