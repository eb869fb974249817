//! The outbox on SQLite. Each call is one transaction of the only writer, row by row: no other process is at the rows
//! meanwhile. What is asked often and seldom finds something is asked of a reader first.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sqlx::Row as _;
use tokio::sync::Notify;
use uuid::Uuid;

use super::change::{CALL_NEXT, columns, count, row, time, write_evidence};
use super::connection::SqliteHandle;
use super::record::now;
use super::{SqliteStore, change, store_error};
use crate::Error;
use crate::outbox::queue::{
    Attempt, AttemptTerms, BLOCKED, Batch, Decide, Lease, Leased, Queue, Settled, Started,
};
use crate::outbox::{EffectKey, EffectStatus, Filter, Item, Logged, Tried};
use crate::time::{duration_micros, to_micros};
use crate::tx::sealed::Sealed as _;

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
        self.in_transaction(async |handle| change::change(handle, id, decide).await).await
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
