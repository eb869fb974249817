//! The outbox on Postgres as people see it.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::change::{count, optional_time, time};
use super::store_error;
use crate::Error;
use crate::outbox::{EffectKey, EffectStatus, Filter, Item, Logged, State, Tried};

const STATUS: &str = "
SELECT coalesce(o.effect, p.effect) AS effect,
       coalesce(pending, 0) AS pending, coalesce(accepted, 0) AS accepted, coalesce(review, 0) AS review,
       coalesce(delivered, 0) AS delivered, coalesce(rejected, 0) AS rejected, coalesce(abandoned, 0) AS abandoned,
       oldest_due, coalesce(workers, 0) AS workers, paused_until, error
  FROM (SELECT effect, count(*) FILTER (WHERE state = 'pending') AS pending,
               count(*) FILTER (WHERE state = 'accepted') AS accepted, count(*) FILTER (WHERE state = 'review') AS review,
               count(*) FILTER (WHERE state = 'delivered') AS delivered,
               count(*) FILTER (WHERE state = 'rejected') AS rejected,
               count(*) FILTER (WHERE state = 'abandoned') AS abandoned,
               min(due_at) FILTER (WHERE state IN ('pending', 'accepted') AND due_at <= now()) AS oldest_due
          FROM idem.outbox GROUP BY effect) o
  FULL JOIN (SELECT effect, count(*) AS workers, max(paused_until) FILTER (WHERE paused_until > now()) AS paused_until,
                    (array_agg(error ORDER BY paused_until DESC NULLS LAST))[1] AS error
               FROM idem.provider WHERE seen_at > now() - interval '1 minute' GROUP BY effect) p USING (effect)
 ORDER BY 1";

const ITEM: &str =
    "id, effect, effect_key, operation, scope, key, state, version, maybe_sent, attempts, crashes, reference,
    last_error, created_at, due_at, content_type, payload FROM idem.outbox";

pub(super) async fn status(store: &PgStore) -> Result<Vec<EffectStatus>, Error> {
    let found = store
        .in_transaction(async |handle| {
            sqlx::query(STATUS).persistent(handle.persistent).fetch_all(&mut **handle).await
        })
        .await?;
    let read = |row: &PgRow| -> Result<_, sqlx::Error> {
        let count = |state: &str| row.try_get::<i64, _>(state).map(i64::unsigned_abs);
        let paused = optional_time(row, "paused_until")?;
        Ok(EffectStatus {
            effect: row.try_get("effect")?,
            pending: count("pending")?,
            accepted: count("accepted")?,
            review: count("review")?,
            delivered: count("delivered")?,
            rejected: count("rejected")?,
            abandoned: count("abandoned")?,
            oldest_due: optional_time(row, "oldest_due")?,
            workers: count("workers")?,
            paused: paused.zip(row.try_get("error")?),
        })
    };
    found.iter().map(read).collect::<Result<_, _>>().map_err(|e| store_error(None, e))
}

pub(super) async fn list(store: &PgStore, filter: &Filter) -> Result<Vec<Item>, Error> {
    let found = store
        .in_transaction(async |handle| {
            sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {ITEM} WHERE state = $1 AND id > $2 AND ($3::text IS NULL OR effect = $3) ORDER BY id LIMIT $4"
            )))
            .bind(filter.state.as_str())
            .bind(filter.after)
            .bind(&filter.effect)
            .bind(i64::from(filter.limit))
            .persistent(handle.persistent)
            .fetch_all(&mut **handle)
            .await
        })
        .await?;
    found.iter().map(item).collect::<Result<_, _>>().map_err(|e| store_error(None, e))
}

pub(super) async fn show(store: &PgStore, id: i64) -> Result<Option<(Item, Vec<Tried>, Vec<Logged>)>, Error> {
    let (found, attempts, log) = store
        .in_transaction(async |handle| {
            let found = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {ITEM} WHERE id = $1"))).bind(id);
            let found = found.persistent(handle.persistent).fetch_optional(&mut **handle).await?;
            let attempts = sqlx::query(
                "SELECT attempt, started_at, deadline, ended_at, result, detail FROM idem.outbox_attempt
                  WHERE outbox_id = $1 ORDER BY started_at",
            );
            let attempts = attempts.bind(id).persistent(handle.persistent).fetch_all(&mut **handle).await?;
            let log = sqlx::query(
                "SELECT version, decision, by, note, at, won FROM idem.review_log WHERE outbox_id = $1 ORDER BY id",
            );
            let log = log.bind(id).persistent(handle.persistent).fetch_all(&mut **handle).await?;
            Ok((found, attempts, log))
        })
        .await?;
    let Some(found) = found else { return Ok(None) };
    let read = || -> Result<_, sqlx::Error> {
        let tried = attempts.iter().map(tried).collect::<Result<_, _>>()?;
        let decisions = log.iter().map(logged).collect::<Result<_, _>>()?;
        Ok(Some((item(&found)?, tried, decisions)))
    };
    read().map_err(|e| store_error(None, e))
}

fn item(row: &PgRow) -> Result<Item, sqlx::Error> {
    Ok(Item {
        id: row.try_get("id")?,
        effect: row.try_get("effect")?,
        effect_key: EffectKey::stored(row.try_get("effect_key")?),
        operation: row.try_get("operation")?,
        scope: row.try_get("scope")?,
        key: row.try_get("key")?,
        state: State::stored(row.try_get("state")?),
        version: row.try_get("version")?,
        maybe_sent: row.try_get("maybe_sent")?,
        attempts: count(row, "attempts")?,
        crashes: count(row, "crashes")?,
        reference: row.try_get("reference")?,
        last_error: row.try_get("last_error")?,
        created_at: time(row, "created_at")?,
        due_at: time(row, "due_at")?,
        content_type: row.try_get("content_type")?,
        payload: row.try_get::<Vec<u8>, _>("payload")?.into(),
    })
}

fn tried(row: &PgRow) -> Result<Tried, sqlx::Error> {
    Ok(Tried {
        attempt: count(row, "attempt")?,
        started_at: time(row, "started_at")?,
        deadline: time(row, "deadline")?,
        ended_at: optional_time(row, "ended_at")?,
        result: row.try_get("result")?,
        detail: row.try_get("detail")?,
    })
}

fn logged(row: &PgRow) -> Result<Logged, sqlx::Error> {
    Ok(Logged {
        version: row.try_get("version")?,
        decision: row.try_get("decision")?,
        by: row.try_get("by")?,
        note: row.try_get("note")?,
        at: time(row, "at")?,
        won: row.try_get("won")?,
    })
}
