//! The outbox on SQLite. Each call is one transaction of the only writer, row by row: no other process is at the rows
//! meanwhile. What is asked often and seldom finds something is asked of a reader first.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use tokio::sync::Notify;
use uuid::Uuid;

use super::connection::SqliteHandle;
use super::record::now;
use super::{SqliteStore, store_error};
use crate::Error;
use crate::outbox::queue::{
    Attempt, AttemptTerms, BLOCKED, Batch, Change, Current, Decide, Evidence, Lease, Leased, Note, Queue,
    Settled, Started,
};
use crate::outbox::{EffectKey, EffectStatus, Filter, Item, Logged, Row, State, Tried};
use crate::time::{duration_micros, from_micros, to_micros};
use crate::tx::sealed::Sealed as _;

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

/// What may be leased.
macro_rules! due {
    () => {
        concat!(
            "FROM idem_outbox o WHERE o.effect = ?1 AND o.state IN ('pending', 'accepted') AND o.due_at <= ",
            now!(),
            " AND (o.lease_until IS NULL OR o.lease_until < ",
            now!(),
            ")"
        )
    };
}

const IS_DUE: &str = concat!("SELECT EXISTS (SELECT 1 ", due!(), ")");

const DUE: &str = concat!(
    "SELECT ",
    columns!(),
    ", o.payload, o.content_type, o.created_at,
       o.lease_token IS NOT NULL AND EXISTS (
           SELECT 1 FROM idem_outbox_attempt a WHERE a.outbox_id = o.id AND a.ended_at IS NULL) AS crashed,
       o.order_key IS NOT NULL AND EXISTS (
           SELECT 1 FROM idem_outbox b
            WHERE b.effect = o.effect AND b.scope = o.scope AND b.order_key = o.order_key
              AND b.order_no < o.order_no AND b.state IN ('pending', 'accepted', 'review')) AS blocked ",
    due!(),
    " ORDER BY o.due_at, o.id LIMIT ?2"
);

const LEASE: &str =
    concat!("UPDATE idem_outbox SET lease_token = ?2, lease_until = ", now!(), " + ?3 WHERE id = ?1");

const PUT_OFF: &str = concat!("UPDATE idem_outbox SET due_at = ", now!(), " + ?2 WHERE id = ?1");

/// The database's clock decides whether it may still be made.
const ATTEMPT: &str = concat!(
    "UPDATE idem_outbox
        SET attempts = attempts + 1, first_attempt_at = coalesce(first_attempt_at, ",
    now!(),
    "), last_deadline = max(coalesce(last_deadline, 0), ",
    now!(),
    " + ?4), lease_until = ",
    now!(),
    " + ?5, version = version + 1
      WHERE id = ?1 AND lease_token = ?2 AND lease_until > ",
    now!(),
    " AND (?3 IS NULL OR ",
    now!(),
    " < ?3)
  RETURNING id, attempts, first_attempt_at, last_deadline, ",
    now!(),
    " AS clock"
);

const SETTLE: &str = concat!(
    "UPDATE idem_outbox
        SET state = ?3, maybe_sent = ?4, window_closed = ?5, attempts = ?6, crashes = ?7, first_attempt_at = ?8,
            last_deadline = ?9, due_at = ?10, reference = ?11, last_error = ?12, lease_token = NULL, lease_until = NULL,
            version = version + 1,
            finished_at = CASE WHEN ?3 IN ('delivered', 'rejected', 'abandoned') THEN ",
    now!(),
    " END
      WHERE id = ?1 AND lease_token = ?2"
);

/// The next of an order key whose predecessor has finished; the one who looks in vain is put off for long.
const CALL_NEXT: &str = concat!(
    "UPDATE idem_outbox SET due_at = min(due_at, ",
    now!(),
    ")
      WHERE attempts = 0 AND state = 'pending' AND id = (
            SELECT n.id FROM idem_outbox f JOIN idem_outbox n
                ON n.effect = f.effect AND n.scope = f.scope AND n.order_key = f.order_key AND n.order_no > f.order_no
             WHERE f.id = ?1 AND n.state IN ('pending', 'accepted', 'review') ORDER BY n.order_no LIMIT 1)"
);

#[async_trait]
impl Queue for SqliteStore {
    async fn ready(&self) -> Result<(), Error> {
        self.check().await
    }

    fn staged(&self) -> Arc<Notify> {
        Arc::clone(&self.core.staged)
    }

    async fn lease(&self, lease: &Lease<'_>) -> Result<Batch, Error> {
        let is_due = sqlx::query_scalar::<_, bool>(IS_DUE).bind(lease.effect).fetch_one(&self.readers);
        let mut batch = Batch { now: SystemTime::now(), rows: Vec::new(), full: false };
        if !is_due.await.map_err(|e| store_error(None, e))? {
            return Ok(batch);
        }
        let (token, limit) = (lease.token, i64::try_from(lease.limit).unwrap_or(i64::MAX));
        self.in_transaction(async |handle| {
            let looked_at = sqlx::query(DUE).bind(lease.effect).bind(limit).fetch_all(&mut **handle).await?;
            batch.full = looked_at.len() == lease.limit;
            for found in &looked_at {
                batch.now = time(found, "clock")?;
                let id: i64 = found.try_get("id")?;
                if found.try_get("blocked")? {
                    let wait = duration_micros(BLOCKED);
                    sqlx::query(PUT_OFF).bind(id).bind(wait).execute(&mut **handle).await?;
                    continue;
                }
                let lasts = duration_micros(lease.lasts);
                sqlx::query(LEASE).bind(id).bind(token).bind(lasts).execute(&mut **handle).await?;
                batch.rows.push(Leased {
                    id,
                    token,
                    row: row(found)?,
                    effect_key: EffectKey::stored(found.try_get("effect_key")?),
                    payload: found.try_get::<Vec<u8>, _>("payload")?.into(),
                    content_type: found.try_get("content_type")?,
                    created_at: time(found, "created_at")?,
                    ordered: found.try_get("ordered")?,
                    crashed: found.try_get("crashed")?,
                });
            }
            Ok(())
        })
        .await?;
        Ok(batch)
    }

    async fn attempt(&self, terms: &AttemptTerms, attempts: &[Attempt]) -> Result<Vec<Started>, Error> {
        let (timeout, lease) = (duration_micros(terms.call_timeout), duration_micros(terms.lease));
        self.in_transaction(async |handle| {
            let mut started = Vec::with_capacity(attempts.len());
            for attempt in attempts {
                let written = sqlx::query(ATTEMPT)
                    .bind(attempt.id)
                    .bind(attempt.token)
                    .bind(attempt.before.map(to_micros))
                    .bind(timeout)
                    .bind(lease)
                    .fetch_optional(&mut **handle)
                    .await?;
                let Some(written) = written else { continue };
                let attempts = count(&written, "attempts")?;
                sqlx::query(
                    "INSERT INTO idem_outbox_attempt (outbox_id, lease_token, attempt, started_at, deadline)
                     VALUES (?1, ?2, ?3, ?4, ?4 + ?5)",
                )
                .bind(attempt.id)
                .bind(attempt.token)
                .bind(attempts)
                .bind(written.try_get::<i64, _>("clock")?)
                .bind(timeout)
                .execute(&mut **handle)
                .await?;
                started.push(Started {
                    id: attempt.id,
                    attempts,
                    first_attempt_at: time(&written, "first_attempt_at")?,
                    last_deadline: time(&written, "last_deadline")?,
                });
            }
            Ok(started)
        })
        .await
    }

    async fn settle(&self, settled: &[Settled]) -> Result<Vec<i64>, Error> {
        self.in_transaction(async |handle| {
            let mut ours = Vec::with_capacity(settled.len());
            for it in settled {
                let written = sqlx::query(SETTLE)
                    .bind(it.id)
                    .bind(it.token)
                    .bind(it.row.state.as_str())
                    .bind(it.row.maybe_sent)
                    .bind(it.row.window_closed)
                    .bind(it.row.attempts)
                    .bind(it.row.crashes)
                    .bind(it.row.first_attempt_at.map(to_micros))
                    .bind(it.row.last_deadline.map(to_micros))
                    .bind(to_micros(it.row.due_at))
                    .bind(&it.row.reference)
                    .bind(&it.row.last_error)
                    .execute(&mut **handle)
                    .await?;
                if written.rows_affected() == 0 {
                    continue;
                }
                ours.push(it.id);
                write_evidence(handle, it).await?;
                if it.ordered && it.row.state.is_finished() {
                    sqlx::query(CALL_NEXT).bind(it.id).execute(&mut **handle).await?;
                }
            }
            Ok(ours)
        })
        .await
    }

    async fn change(&self, id: i64, decide: Decide<'_>) -> Result<bool, Error> {
        self.in_transaction(async |handle| {
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
        })
        .await
    }

    async fn seen(&self, effect: &str, worker: Uuid, paused: Option<(Duration, &str)>) -> Result<(), Error> {
        self.in_transaction(async |handle| {
            sqlx::query(concat!(
                "INSERT INTO idem_provider (effect, worker, seen_at, paused_until, error) VALUES (?1, ?2, ",
                now!(),
                ", ",
                now!(),
                " + ?3, ?4)
                 ON CONFLICT (effect, worker) DO UPDATE
                    SET seen_at = excluded.seen_at, paused_until = excluded.paused_until, error = excluded.error"
            ))
            .bind(effect)
            .bind(worker)
            .bind(paused.map(|(wait, _)| duration_micros(wait)))
            .bind(paused.map(|(_, error)| error))
            .execute(&mut **handle)
            .await
            .map(drop)
        })
        .await
    }

    async fn gone(&self, worker: Uuid) -> Result<(), Error> {
        self.in_transaction(async |handle| {
            let gone = sqlx::query("DELETE FROM idem_provider WHERE worker = ?1").bind(worker);
            gone.execute(&mut **handle).await.map(drop)
        })
        .await
    }

    async fn status(&self) -> Result<Vec<EffectStatus>, Error> {
        super::review::status(&self.readers).await.map_err(|e| store_error(None, e))
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Item>, Error> {
        super::review::list(&self.readers, filter).await.map_err(|e| store_error(None, e))
    }

    async fn show(&self, id: i64) -> Result<Option<(Item, Vec<Tried>, Vec<Logged>)>, Error> {
        super::review::show(&self.readers, id).await.map_err(|e| store_error(None, e))
    }
}

impl SqliteStore {
    /// Runs statements in one transaction of the writer, for which it waits as a claim does.
    async fn in_transaction<T>(
        &self,
        statements: impl AsyncFnOnce(&mut SqliteHandle) -> Result<T, sqlx::Error>,
    ) -> Result<T, Error> {
        let deadline = self.core.deadline();
        let mut handle = tokio::time::timeout_at(deadline, self.writer.acquire())
            .await
            .unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::Error::other("a body has the only writer"))))
            .map_err(|e| store_error(None, e))?;
        handle.begin(deadline).await.map_err(|e| store_error(None, e))?;
        let value = match statements(&mut handle).await {
            Ok(value) => value,
            Err(error) => {
                if let Err(rollback) = sqlx::Sqlite::roll_back(handle).await {
                    tracing::debug!(%rollback, "the writer connection was replaced instead of rolled back");
                }
                return Err(store_error(None, error));
            }
        };
        handle.commit().await.map_err(|e| store_error(None, e))?;
        Ok(value)
    }
}

async fn write_evidence(handle: &mut SqliteHandle, settled: &Settled) -> Result<(), sqlx::Error> {
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

fn row(found: &SqliteRow) -> Result<Row, sqlx::Error> {
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
