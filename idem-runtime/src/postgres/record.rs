//! Reading the record of an identity, with whose run it is and the database's clock.

use std::time::SystemTime;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::time::from_micros;
use crate::{Identity, Record};

/// A record as it stands in the table.
pub(super) struct Stored {
    pub(super) record: Record,
    /// Whose run it is.
    pub(super) token: Uuid,
    /// The database's clock when it was read.
    pub(super) now: SystemTime,
}

pub(super) async fn read(
    conn: &mut PgConnection,
    identity: &Identity,
) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT fingerprint, outcome::text, claim_token,
                (extract(epoch FROM claimed_at) * 1000000)::bigint,
                (extract(epoch FROM processed_at) * 1000000)::bigint,
                (extract(epoch FROM outcome_until) * 1000000)::bigint,
                (extract(epoch FROM expires_at) * 1000000)::bigint,
                (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
           FROM idem.inbox WHERE operation = $1 AND scope = $2 AND key = $3",
    )
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
