//! Reading the record of an identity, with whose run it is and the database's clock; and the three types of Postgres that
//! this takes, without the features of sqlx that would bring them.

use std::time::SystemTime;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Row, Type};
use uuid::Uuid;

use super::connection::PgHandle;
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

pub(super) async fn read(handle: &mut PgHandle, identity: &Identity) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT fingerprint, outcome::text, claim_token, claimed_at, processed_at, outcome_until, expires_at,
                clock_timestamp()
           FROM idem.inbox WHERE operation = $1 AND scope = $2 AND key = $3",
    )
    .bind(identity.operation())
    .bind(identity.scope())
    .bind(identity.key())
    .persistent(handle.persistent)
    .fetch_optional(&mut **handle)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let time =
        |column: usize| row.try_get::<Option<Micros>, _>(column).map(|t| t.map(|Micros(t)| from_micros(t)));
    let mut record = Record::new(identity.clone(), from_micros(row.try_get::<Micros, _>(3)?.0));
    record.fingerprint = row.try_get(0)?;
    record.outcome = row.try_get(1)?;
    record.processed_at = time(4)?;
    record.outcome_until = time(5)?;
    record.expires_at = time(6)?;
    let now = from_micros(row.try_get::<Micros, _>(7)?.0);
    Ok(Some(Stored { record, token: row.try_get(2)?, now }))
}

/// A `timestamptz`, as microseconds since 1970. On the wire they count from 2000.
pub(super) struct Micros(pub(super) i64);

/// 2000-01-01, in microseconds since 1970.
const EPOCH: i64 = 946_684_800_000_000;

impl Type<Postgres> for Micros {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for Micros {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for Micros {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode_by_ref(&(self.0 - EPOCH), buffer)
    }
}

impl Decode<'_, Postgres> for Micros {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        // Everything here is prepared, and so it comes in binary. `infinity` is the largest number.
        Ok(Self(i64::from_be_bytes(value.as_bytes()?.try_into()?).saturating_add(EPOCH)))
    }
}

/// JSON that is text already.
pub(super) struct JsonText(pub(super) String);

impl Type<Postgres> for JsonText {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(114))
    }
}

impl Encode<'_, Postgres> for JsonText {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <&str as Encode<Postgres>>::encode_by_ref(&self.0.as_str(), buffer)
    }
}

/// Where a row version is in its table, as it is on the wire.
#[derive(Clone, Copy)]
pub(super) struct Tid([u8; 6]);

impl Tid {
    /// From `tidsend`.
    pub(super) fn new(sent: &[u8]) -> Result<Self, sqlx::Error> {
        sent.try_into().map(Self).map_err(|_| sqlx::Error::Protocol("tidsend gives 6 bytes".to_owned()))
    }
}

impl Type<Postgres> for Tid {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(27))
    }
}

impl Encode<'_, Postgres> for Tid {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <&[u8] as Encode<Postgres>>::encode_by_ref(&self.0.as_slice(), buffer)
    }
}
