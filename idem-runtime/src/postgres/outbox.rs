//! The outbox on Postgres. Each call is one transaction of one or two statements over all its rows.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Database, Postgres, Row as _};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::Notify;
use uuid::Uuid;

use super::change::{call_next, columns, count, each, interval, micros, row, time};
use super::check::check_outbox;
use super::connection::{PgHandle, server_error};
use super::{PgStore, change, store_error};
use crate::Error;
use crate::outbox::queue::{
    Attempt, AttemptTerms, BLOCKED, Batch, Decide, Evidence, Lease, Leased, Queue, Settled, Started,
};
use crate::outbox::{EffectKey, EffectStatus, Filter, Item, Logged, Tried};

type Manager = <Postgres as Database>::TransactionManager;

/// A row whose predecessors of its order key are not finished is put off; what is looked at is bounded all the same.
const LEASE: &str = concat!(
    "WITH due AS MATERIALIZED (
        SELECT o.id,
               o.lease_token IS NOT NULL AND EXISTS (
                   SELECT FROM idem.outbox_attempt a WHERE a.outbox_id = o.id AND a.ended_at IS NULL) AS crashed,
               o.order_key IS NOT NULL AND EXISTS (
                   SELECT FROM idem.outbox b
                    WHERE b.effect = o.effect AND b.scope = o.scope AND b.order_key = o.order_key
                      AND b.order_no < o.order_no AND b.state IN ('pending', 'accepted', 'review')) AS blocked
          FROM idem.outbox o
         WHERE o.effect = $1 AND o.state IN ('pending', 'accepted') AND o.due_at <= now()
           AND (o.lease_until IS NULL OR o.lease_until < now())
         ORDER BY o.due_at LIMIT $2
           FOR UPDATE SKIP LOCKED)
    UPDATE idem.outbox o
       SET lease_token = CASE WHEN due.blocked THEN o.lease_token ELSE $3 END,
           lease_until = CASE WHEN due.blocked THEN o.lease_until ELSE clock_timestamp() + $4 END,
           due_at = CASE WHEN due.blocked THEN clock_timestamp() + $5 * (1 + random() / 5) ELSE o.due_at END
      FROM due
     WHERE o.id = due.id
 RETURNING ",
    columns!("o"),
    ", o.payload, o.content_type, o.created_at, due.crashed, due.blocked"
);

/// The database's clock decides whether it may still be made.
const ATTEMPT: &str = "
WITH asked AS (
    SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::timestamptz[]) AS asked (id, token, before)),
started AS (
    UPDATE idem.outbox o
       SET attempts = o.attempts + 1,
           first_attempt_at = coalesce(o.first_attempt_at, clock_timestamp()),
           last_deadline = greatest(o.last_deadline, clock_timestamp() + $4),
           lease_until = clock_timestamp() + $5,
           version = o.version + 1
      FROM asked
     WHERE o.id = asked.id AND o.lease_token = asked.token AND o.lease_until > clock_timestamp()
       AND (asked.before IS NULL OR clock_timestamp() < asked.before)
 RETURNING o.id, o.lease_token, o.attempts, o.first_attempt_at, o.last_deadline),
written AS (
    INSERT INTO idem.outbox_attempt (outbox_id, lease_token, attempt, started_at, deadline)
    SELECT id, lease_token, attempts, clock_timestamp(), clock_timestamp() + $4 FROM started)
SELECT id, attempts, first_attempt_at, last_deadline FROM started";

const SETTLE: &str = "
WITH told AS (
    SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::boolean[], $5::boolean[], $6::int[], $7::int[],
                         $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[],
                         $13::text[], $14::text[])
        AS told (id, token, state, maybe_sent, window_closed, attempts, crashes, first_attempt_at, last_deadline,
                 due_at, reference, last_error, result, detail)),
settled AS (
    UPDATE idem.outbox o
       SET state = told.state, maybe_sent = told.maybe_sent, window_closed = told.window_closed,
           attempts = told.attempts, crashes = told.crashes, first_attempt_at = told.first_attempt_at,
           last_deadline = told.last_deadline, due_at = told.due_at, reference = told.reference,
           last_error = told.last_error, lease_token = NULL, lease_until = NULL, version = o.version + 1,
           finished_at = CASE WHEN told.state IN ('delivered', 'rejected', 'abandoned') THEN clock_timestamp() END
      FROM told
     WHERE o.id = told.id AND o.lease_token = told.token
 RETURNING o.id, told.token, told.result, told.detail),
ended AS (
    UPDATE idem.outbox_attempt a
       SET ended_at = clock_timestamp(), result = settled.result, detail = settled.detail
      FROM settled
     WHERE a.outbox_id = settled.id AND a.lease_token = settled.token AND a.ended_at IS NULL
       AND settled.result IS NOT NULL)
SELECT id FROM settled";

#[async_trait]
impl Queue for PgStore {
    async fn ready(&self) -> Result<(), Error> {
        self.check().await?;
        check_outbox(PgHandle::new(self.connection().await?, self.persistent)).await
    }

    fn staged(&self) -> Arc<Notify> {
        Arc::clone(&self.core.staged)
    }

    async fn lease(&self, lease: &Lease<'_>) -> Result<Batch, Error> {
        let (token, limit) = (lease.token, i64::try_from(lease.limit).unwrap_or(i64::MAX));
        let looked_at = self
            .in_transaction(async |handle| {
                sqlx::query(LEASE)
                    .bind(lease.effect)
                    .bind(limit)
                    .bind(token)
                    .bind(interval(lease.lasts))
                    .bind(interval(BLOCKED))
                    .persistent(handle.persistent)
                    .fetch_all(&mut **handle)
                    .await
            })
            .await?;
        let mut batch =
            Batch { now: SystemTime::now(), rows: Vec::new(), full: looked_at.len() == lease.limit };
        for found in &looked_at {
            let read = || -> Result<_, sqlx::Error> {
                let blocked: bool = found.try_get("blocked")?;
                let leased = Leased {
                    id: found.try_get("id")?,
                    token,
                    row: row(found)?,
                    effect_key: EffectKey::stored(found.try_get("effect_key")?),
                    payload: found.try_get::<Vec<u8>, _>("payload")?.into(),
                    content_type: found.try_get("content_type")?,
                    created_at: time(found, "created_at")?,
                    ordered: found.try_get("ordered")?,
                    crashed: found.try_get("crashed")?,
                };
                Ok((time(found, "clock")?, (!blocked).then_some(leased)))
            };
            let (now, leased) = read().map_err(|e| store_error(None, e))?;
            batch.now = now;
            batch.rows.extend(leased);
        }
        // `UPDATE` gives them in no order.
        batch.rows.sort_by_key(|leased| (leased.row.due_at, leased.id));
        Ok(batch)
    }

    async fn attempt(&self, terms: &AttemptTerms, attempts: &[Attempt]) -> Result<Vec<Started>, Error> {
        let started = self
            .in_transaction(async |handle| {
                sqlx::query(ATTEMPT)
                    .bind(each(attempts, |attempt| attempt.id))
                    .bind(each(attempts, |attempt| attempt.token))
                    .bind(each(attempts, |attempt| attempt.before.map(micros)))
                    .bind(interval(terms.call_timeout))
                    .bind(interval(terms.lease))
                    .persistent(handle.persistent)
                    .fetch_all(&mut **handle)
                    .await
            })
            .await?;
        let read = |row: &PgRow| {
            Ok(Started {
                id: row.try_get("id")?,
                attempts: count(row, "attempts")?,
                first_attempt_at: time(row, "first_attempt_at")?,
                last_deadline: time(row, "last_deadline")?,
            })
        };
        started.iter().map(read).collect::<Result<_, _>>().map_err(|e| store_error(None, e))
    }

    async fn settle(&self, settled: &[Settled]) -> Result<Vec<i64>, Error> {
        self.in_transaction(async |handle| {
            let told = |settled: &Settled| match &settled.evidence {
                Evidence::Attempt { result, detail } => (Some((*result).to_owned()), detail.clone()),
                _ => (None, None),
            };
            let ours: Vec<i64> = sqlx::query_scalar(SETTLE)
                .bind(each(settled, |it| it.id))
                .bind(each(settled, |it| it.token))
                .bind(each(settled, |it| it.row.state.as_str()))
                .bind(each(settled, |it| it.row.maybe_sent))
                .bind(each(settled, |it| it.row.window_closed))
                .bind(each(settled, |it| it.row.attempts as i32))
                .bind(each(settled, |it| it.row.crashes as i32))
                .bind(each(settled, |it| it.row.first_attempt_at.map(micros)))
                .bind(each(settled, |it| it.row.last_deadline.map(micros)))
                .bind(each(settled, |it| micros(it.row.due_at)))
                .bind(each(settled, |it| it.row.reference.clone()))
                .bind(each(settled, |it| it.row.last_error.clone()))
                .bind(each(settled, |it| told(it).0))
                .bind(each(settled, |it| told(it).1))
                .persistent(handle.persistent)
                .fetch_all(&mut **handle)
                .await?;
            let ours_with = |wanted: fn(&Settled) -> bool| {
                settled.iter().filter(move |it| wanted(it)).filter(|it| ours.contains(&it.id))
            };
            let crashed: Vec<i64> =
                ours_with(|it| matches!(it.evidence, Evidence::Crashed)).map(|it| it.id).collect();
            if !crashed.is_empty() {
                sqlx::query(
                    "UPDATE idem.outbox_attempt SET ended_at = clock_timestamp(), result = 'crashed'
                      WHERE outbox_id = ANY($1) AND ended_at IS NULL",
                )
                .bind(crashed)
                .persistent(handle.persistent)
                .execute(&mut **handle)
                .await?;
            }
            for it in ours_with(|it| matches!(it.evidence, Evidence::Asked { .. })) {
                let Evidence::Asked { at, result, detail } = &it.evidence else { continue };
                sqlx::query(
                    "INSERT INTO idem.outbox_attempt
                        (outbox_id, lease_token, attempt, started_at, deadline, ended_at, result, detail)
                     VALUES ($1, $2, $3, $4, $4, clock_timestamp(), $5, $6)",
                )
                .bind(it.id)
                .bind(it.token)
                .bind(it.row.attempts as i32)
                .bind(micros(*at))
                .bind(*result)
                .bind(detail)
                .persistent(handle.persistent)
                .execute(&mut **handle)
                .await?;
            }
            let finished: Vec<i64> =
                ours_with(|it| it.ordered && it.row.state.is_finished()).map(|it| it.id).collect();
            call_next(handle, finished).await?;
            Ok(ours)
        })
        .await
    }

    async fn change(&self, id: i64, decide: Decide<'_>) -> Result<bool, Error> {
        self.in_transaction(async |handle| change::change(handle, id, decide).await).await
    }

    async fn seen(&self, effect: &str, worker: Uuid, paused: Option<(Duration, &str)>) -> Result<(), Error> {
        self.in_transaction(async |handle| {
            sqlx::query(
                "INSERT INTO idem.provider (effect, worker, seen_at, paused_until, error)
                 VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3, $4)
                 ON CONFLICT (effect, worker) DO UPDATE
                    SET seen_at = excluded.seen_at, paused_until = excluded.paused_until, error = excluded.error",
            )
            .bind(effect)
            .bind(worker)
            .bind(paused.map(|(wait, _)| interval(wait)))
            .bind(paused.map(|(_, error)| error.to_owned()))
            .persistent(handle.persistent)
            .execute(&mut **handle)
            .await
            .map(drop)
        })
        .await
    }

    async fn gone(&self, worker: Uuid) -> Result<(), Error> {
        self.in_transaction(async |handle| {
            let gone = sqlx::query("DELETE FROM idem.provider WHERE worker = $1").bind(worker);
            gone.persistent(handle.persistent).execute(&mut **handle).await.map(drop)
        })
        .await
    }

    async fn status(&self) -> Result<Vec<EffectStatus>, Error> {
        super::review::status(self).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Item>, Error> {
        super::review::list(self, filter).await
    }

    async fn show(&self, id: i64) -> Result<Option<(Item, Vec<Tried>, Vec<Logged>)>, Error> {
        super::review::show(self, id).await
    }
}

impl PgStore {
    /// Runs statements in one transaction. Dropped in the middle, or after an error that is not the server's, the
    /// connection is closed.
    pub(super) async fn in_transaction<T>(
        &self,
        statements: impl AsyncFnOnce(&mut PgHandle) -> Result<T, sqlx::Error>,
    ) -> Result<T, Error> {
        let mut handle = PgHandle::new(self.connection().await?, self.persistent);
        let run = async {
            Manager::begin(&mut handle, None).await?;
            let value = statements(&mut handle).await?;
            Manager::commit(&mut handle).await?;
            Ok(value)
        };
        let result = run.await;
        if result.as_ref().err().is_none_or(|error| server_error(error).is_some()) {
            handle.give_back();
        }
        result.map_err(|e| store_error(None, e))
    }
}
