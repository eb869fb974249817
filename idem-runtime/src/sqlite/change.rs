//! What the worker and people do to one row, and the parts that this has in common with the queue.

use std::time::SystemTime;

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::connection::SqliteHandle;
use super::record::now;
use crate::outbox::queue::{Change, Current, Decide, Evidence, Note, Settled};
use crate::outbox::{EffectKey, Row, State};
use crate::time::{from_micros, to_micros};

/// The part of a row that [`row`] reads.
macro_rules! columns {
    () => {
        concat!(
            "o.id, o.state, o.maybe_sent, o.window_closed, o.attempts, o.crashes, o.first_attempt_at, o.last_deadline,
             o.due_at, o.reference, o.last_error, o.effect_key, o.order_key IS NOT NULL AS ordered, ",
            now!(),
            " AS clock"
        )
    };
}

pub(super) use columns;

/// The next of an order key whose predecessor has finished; the one who looks in vain is put off for long.
pub(super) const CALL_NEXT: &str = concat!(
    "UPDATE idem_outbox SET due_at = min(due_at, ",
    now!(),
    ")
      WHERE attempts = 0 AND state = 'pending' AND id = (
            SELECT n.id FROM idem_outbox f JOIN idem_outbox n
                ON n.effect = f.effect AND n.scope = f.scope AND n.order_key = f.order_key AND n.order_no > f.order_no
             WHERE f.id = ?1 AND n.state IN ('pending', 'accepted', 'review') ORDER BY n.order_no LIMIT 1)"
);

pub(super) async fn change(
    handle: &mut SqliteHandle,
    id: i64,
    decide: Decide<'_>,
) -> Result<bool, sqlx::Error> {
    let found = sqlx::query(concat!(
        "SELECT ",
        columns!(),
        ", o.version, coalesce(o.lease_until > ",
        now!(),
        ", 0) AS leased FROM idem_outbox o WHERE o.id = ?1"
    ))
    .bind(id)
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
    sqlx::query(concat!(
        "UPDATE idem_outbox
                    SET state = ?2, maybe_sent = ?3, window_closed = ?4, attempts = ?5, crashes = ?6,
                        first_attempt_at = ?7, due_at = ?8, reference = ?9, last_error = ?10,
                        effect_key = coalesce(?11, effect_key), version = version + 1,
                        lease_token = NULL, lease_until = NULL,
                        finished_at = CASE WHEN ?2 IN ('delivered', 'rejected', 'abandoned') THEN ",
        now!(),
        " END
                  WHERE id = ?1"
    ))
    .bind(id)
    .bind(row.state.as_str())
    .bind(row.maybe_sent)
    .bind(row.window_closed)
    .bind(row.attempts)
    .bind(row.crashes)
    .bind(row.first_attempt_at.map(to_micros))
    .bind(to_micros(row.due_at))
    .bind(&row.reference)
    .bind(&row.last_error)
    .bind(effect_key.map(String::from))
    .execute(&mut **handle)
    .await?;
    if current.ordered && row.state.is_finished() {
        sqlx::query(CALL_NEXT).bind(id).execute(&mut **handle).await?;
    }
    Ok(true)
}

pub(super) async fn write_evidence(handle: &mut SqliteHandle, settled: &Settled) -> Result<(), sqlx::Error> {
    match &settled.evidence {
        Evidence::None => Ok(()),
        Evidence::Attempt { result, detail } => sqlx::query(concat!(
            "UPDATE idem_outbox_attempt SET ended_at = ",
            now!(),
            ", result = ?3, detail = ?4 WHERE outbox_id = ?1 AND lease_token = ?2 AND ended_at IS NULL"
        ))
        .bind(settled.id)
        .bind(settled.token)
        .bind(*result)
        .bind(detail)
        .execute(&mut **handle)
        .await
        .map(drop),
        Evidence::Crashed => sqlx::query(concat!(
            "UPDATE idem_outbox_attempt SET ended_at = ",
            now!(),
            ", result = 'crashed' WHERE outbox_id = ?1 AND ended_at IS NULL"
        ))
        .bind(settled.id)
        .execute(&mut **handle)
        .await
        .map(drop),
        Evidence::Asked { at, result, detail } => sqlx::query(concat!(
            "INSERT INTO idem_outbox_attempt
                (outbox_id, lease_token, attempt, started_at, deadline, ended_at, result, detail)
             VALUES (?1, ?2, ?3, ?4, ?4, ",
            now!(),
            ", ?5, ?6)"
        ))
        .bind(settled.id)
        .bind(settled.token)
        .bind(settled.row.attempts)
        .bind(to_micros(*at))
        .bind(*result)
        .bind(detail)
        .execute(&mut **handle)
        .await
        .map(drop),
    }
}

/// False if it was written before.
async fn write_note(handle: &mut SqliteHandle, id: i64, note: Note) -> Result<bool, sqlx::Error> {
    match note {
        Note::Late { token, result, detail } => {
            let written = sqlx::query(concat!(
                "UPDATE idem_outbox_attempt SET ended_at = ",
                now!(),
                ", result = ?3, detail = ?4
                  WHERE outbox_id = ?1 AND lease_token = ?2 AND (ended_at IS NULL OR result = 'crashed')"
            ))
            .bind(id)
            .bind(token)
            .bind(result)
            .bind(detail)
            .execute(&mut **handle)
            .await?;
            Ok(written.rows_affected() == 1)
        }
        Note::Decision { version, decision, by, note, won } => {
            sqlx::query(concat!(
                "INSERT INTO idem_review_log (outbox_id, version, decision, by, note, won, at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ",
                now!(),
                ")"
            ))
            .bind(id)
            .bind(version)
            .bind(decision)
            .bind(by)
            .bind(note)
            .bind(won)
            .execute(&mut **handle)
            .await?;
            Ok(won)
        }
    }
}

pub(super) fn row(found: &SqliteRow) -> Result<Row, sqlx::Error> {
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

pub(super) fn count(row: &SqliteRow, column: &str) -> Result<u32, sqlx::Error> {
    row.try_get(column)
}

pub(super) fn time(row: &SqliteRow, column: &str) -> Result<SystemTime, sqlx::Error> {
    row.try_get(column).map(from_micros)
}

pub(super) fn optional_time(row: &SqliteRow, column: &str) -> Result<Option<SystemTime>, sqlx::Error> {
    row.try_get::<Option<i64>, _>(column).map(|at| at.map(from_micros))
}
