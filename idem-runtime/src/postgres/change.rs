//! What the worker and people do to one row, and the parts that this has in common with the queue.

use std::time::{Duration, SystemTime};

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;

use super::connection::PgHandle;
use super::record::Micros;
use crate::outbox::queue::{Change, Current, Decide, Note};
use crate::outbox::{EffectKey, Row, State};
use crate::time::{duration_micros, from_micros, to_micros};

/// The part of a row that [`row`] reads.
macro_rules! columns {
    ($o:literal) => {
        concat!(
            $o,
            ".id, ",
            $o,
            ".state, ",
            $o,
            ".maybe_sent, ",
            $o,
            ".window_closed, ",
            $o,
            ".attempts, ",
            $o,
            ".crashes, ",
            $o,
            ".first_attempt_at, ",
            $o,
            ".last_deadline, ",
            $o,
            ".due_at, ",
            $o,
            ".reference, ",
            $o,
            ".last_error, ",
            $o,
            ".effect_key, ",
            $o,
            ".order_key IS NOT NULL AS ordered, clock_timestamp() AS clock"
        )
    };
}

pub(super) use columns;

/// The next of an order key whose predecessor has finished; the one who looks in vain is put off for long.
const CALL_NEXT: &str = "
UPDATE idem.outbox o SET due_at = least(o.due_at, clock_timestamp())
  FROM (SELECT (SELECT n.id FROM idem.outbox n
                 WHERE n.effect = f.effect AND n.scope = f.scope AND n.order_key = f.order_key
                   AND n.order_no > f.order_no AND n.state IN ('pending', 'accepted', 'review')
                 ORDER BY n.order_no LIMIT 1) AS id
          FROM idem.outbox f WHERE f.id = ANY($1)) AS next
 WHERE o.id = next.id AND o.attempts = 0 AND o.state = 'pending'";

pub(super) async fn change(handle: &mut PgHandle, id: i64, decide: Decide<'_>) -> Result<bool, sqlx::Error> {
    let found = sqlx::query(concat!(
        "SELECT ",
        columns!("o"),
        ", o.version, coalesce(o.lease_until > clock_timestamp(), false) AS leased
                   FROM idem.outbox o WHERE o.id = $1 FOR UPDATE"
    ))
    .bind(id)
    .persistent(handle.persistent)
    .fetch_optional(&mut **handle)
    .await?;
    let Some(found) = found else { return Ok(false) };
    let current = Current {
        now: time(&found, "clock")?,
        row: row(&found)?,
        version: found.try_get("version")?,
        effect_key: EffectKey::stored(found.try_get("effect_key")?),
        ordered: found.try_get("ordered")?,
        leased: found.try_get("leased")?,
    };
    let Change { row, effect_key, note } = decide(&current);
    if !write_note(handle, id, note).await? {
        return Ok(true);
    }
    let Some(row) = row else { return Ok(true) };
    sqlx::query(
                "UPDATE idem.outbox
                    SET state = $2, maybe_sent = $3, window_closed = $4, attempts = $5, crashes = $6,
                        first_attempt_at = $7, due_at = $8, reference = $9, last_error = $10,
                        effect_key = coalesce($11, effect_key), version = version + 1,
                        lease_token = NULL, lease_until = NULL,
                        finished_at = CASE WHEN $2 IN ('delivered', 'rejected', 'abandoned') THEN clock_timestamp() END
                  WHERE id = $1",
            )
            .bind(id)
            .bind(row.state.as_str())
            .bind(row.maybe_sent)
            .bind(row.window_closed)
            .bind(row.attempts as i32)
            .bind(row.crashes as i32)
            .bind(row.first_attempt_at.map(micros))
            .bind(micros(row.due_at))
            .bind(&row.reference)
            .bind(&row.last_error)
            .bind(effect_key.map(String::from))
            .persistent(handle.persistent)
            .execute(&mut **handle)
            .await?;
    if current.ordered && row.state.is_finished() {
        call_next(handle, vec![id]).await?;
    }
    Ok(true)
}

pub(super) async fn call_next(handle: &mut PgHandle, finished: Vec<i64>) -> Result<(), sqlx::Error> {
    if finished.is_empty() {
        return Ok(());
    }
    sqlx::query(CALL_NEXT).bind(finished).persistent(handle.persistent).execute(&mut **handle).await.map(drop)
}

/// False if it was written before.
async fn write_note(handle: &mut PgHandle, id: i64, note: Note) -> Result<bool, sqlx::Error> {
    match note {
        Note::Late { token, result, detail } => {
            let written = sqlx::query(
                "UPDATE idem.outbox_attempt SET ended_at = clock_timestamp(), result = $3, detail = $4
                  WHERE outbox_id = $1 AND lease_token = $2 AND (ended_at IS NULL OR result = 'crashed')",
            )
            .bind(id)
            .bind(token)
            .bind(result)
            .bind(detail)
            .persistent(handle.persistent)
            .execute(&mut **handle)
            .await?;
            Ok(written.rows_affected() == 1)
        }
        Note::Decision { version, decision, by, note, won } => {
            sqlx::query(
                "INSERT INTO idem.review_log (outbox_id, version, decision, by, note, won)
                 VALUES ($1, $2, $3, $4, $5, $6)",
            )
            .bind(id)
            .bind(version)
            .bind(decision)
            .bind(by)
            .bind(note)
            .bind(won)
            .persistent(handle.persistent)
            .execute(&mut **handle)
            .await?;
            Ok(won)
        }
    }
}

pub(super) fn row(found: &PgRow) -> Result<Row, sqlx::Error> {
    Ok(Row {
        state: State::stored(found.try_get("state")?),
        maybe_sent: found.try_get("maybe_sent")?,
        window_closed: found.try_get("window_closed")?,
        attempts: count(found, "attempts")?,
        crashes: count(found, "crashes")?,
        first_attempt_at: optional_time(found, "first_attempt_at")?,
        last_deadline: optional_time(found, "last_deadline")?,
        due_at: time(found, "due_at")?,
        reference: found.try_get("reference")?,
        last_error: found.try_get("last_error")?,
    })
}

pub(super) fn count(row: &PgRow, column: &str) -> Result<u32, sqlx::Error> {
    row.try_get::<i32, _>(column).map(|count| count.try_into().unwrap_or_default())
}

pub(super) fn time(row: &PgRow, column: &str) -> Result<SystemTime, sqlx::Error> {
    row.try_get::<Micros, _>(column).map(|Micros(at)| from_micros(at))
}

pub(super) fn optional_time(row: &PgRow, column: &str) -> Result<Option<SystemTime>, sqlx::Error> {
    row.try_get::<Option<Micros>, _>(column).map(|at| at.map(|Micros(at)| from_micros(at)))
}

pub(super) fn micros(at: SystemTime) -> Micros {
    Micros(to_micros(at))
}

pub(super) fn each<T, U>(items: &[T], part: impl Fn(&T) -> U) -> Vec<U> {
    items.iter().map(part).collect()
}

pub(super) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: duration_micros(duration) }
}
