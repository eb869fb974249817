//! The outbox on SQLite as people see it, on a reader.

use sqlx::Row as _;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteRow;

use super::change::{count, optional_time, time};
use super::record::now;
use crate::outbox::{EffectKey, EffectStatus, Filter, Item, Logged, State, Tried};

const STATUS: &str = concat!(
    "SELECT e.effect,
            coalesce(pending, 0) AS pending, coalesce(accepted, 0) AS accepted, coalesce(review, 0) AS review,
            coalesce(delivered, 0) AS delivered, coalesce(rejected, 0) AS rejected,
            coalesce(abandoned, 0) AS abandoned, oldest_due, coalesce(workers, 0) AS workers, paused_until, error
       FROM (SELECT effect FROM idem_outbox UNION SELECT effect FROM idem_provider) e
       LEFT JOIN (SELECT effect, count(*) FILTER (WHERE state = 'pending') AS pending,
                         count(*) FILTER (WHERE state = 'accepted') AS accepted,
                         count(*) FILTER (WHERE state = 'review') AS review,
                         count(*) FILTER (WHERE state = 'delivered') AS delivered,
                         count(*) FILTER (WHERE state = 'rejected') AS rejected,
                         count(*) FILTER (WHERE state = 'abandoned') AS abandoned,
                         min(due_at) FILTER (WHERE state IN ('pending', 'accepted') AND due_at <= ",
    now!(),
    ") AS oldest_due
                    FROM idem_outbox GROUP BY effect) o USING (effect)
       LEFT JOIN (SELECT effect, count(*) AS workers,
                         max(CASE WHEN paused_until > ",
    now!(),
    " THEN paused_until END) AS paused_until, error
                    FROM idem_provider WHERE seen_at > ",
    now!(),
    " - 60000000 GROUP BY effect) p USING (effect)
      WHERE o.effect IS NOT NULL OR p.effect IS NOT NULL
      ORDER BY 1"
);

const ITEM: &str =
    "id, effect, effect_key, operation, scope, key, state, version, maybe_sent, attempts, crashes, reference,
    last_error, created_at, due_at, content_type, payload FROM idem_outbox";

pub(super) async fn status(readers: &SqlitePool) -> Result<Vec<EffectStatus>, sqlx::Error> {
    let read = |row: &SqliteRow| -> Result<_, sqlx::Error> {
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
    sqlx::query(STATUS).fetch_all(readers).await?.iter().map(read).collect()
}

pub(super) async fn list(readers: &SqlitePool, filter: &Filter) -> Result<Vec<Item>, sqlx::Error> {
    let found = sqlx::query(sqlx::AssertSqlSafe(format!(
        "SELECT {ITEM} WHERE state = ?1 AND id > ?2 AND (?3 IS NULL OR effect = ?3) ORDER BY id LIMIT ?4"
    )))
    .bind(filter.state.as_str())
    .bind(filter.after)
    .bind(&filter.effect)
    .bind(filter.limit);
    found.fetch_all(readers).await?.iter().map(item).collect()
}

pub(super) async fn show(
    readers: &SqlitePool,
    id: i64,
) -> Result<Option<(Item, Vec<Tried>, Vec<Logged>)>, sqlx::Error> {
    // One snapshot.
    let mut tx = readers.begin().await?;
    let found = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {ITEM} WHERE id = ?1"))).bind(id);
    let Some(found) = found.fetch_optional(&mut *tx).await? else { return Ok(None) };
    let attempts = sqlx::query(
        "SELECT attempt, started_at, deadline, ended_at, result, detail FROM idem_outbox_attempt
          WHERE outbox_id = ?1 ORDER BY started_at",
    );
    let attempts = attempts.bind(id).fetch_all(&mut *tx).await?;
    let log = sqlx::query(
        "SELECT version, decision, by, note, at, won FROM idem_review_log WHERE outbox_id = ?1 ORDER BY id",
    );
    let log = log.bind(id).fetch_all(&mut *tx).await?;
    let tried = attempts.iter().map(tried).collect::<Result<_, _>>()?;
    let decisions = log.iter().map(logged).collect::<Result<_, _>>()?;
    Ok(Some((item(&found)?, tried, decisions)))
}

fn item(row: &SqliteRow) -> Result<Item, sqlx::Error> {
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

fn tried(row: &SqliteRow) -> Result<Tried, sqlx::Error> {
    Ok(Tried {
        attempt: count(row, "attempt")?,
        started_at: time(row, "started_at")?,
        deadline: time(row, "deadline")?,
        ended_at: optional_time(row, "ended_at")?,
        result: row.try_get("result")?,
        detail: row.try_get("detail")?,
    })
}

fn logged(row: &SqliteRow) -> Result<Logged, sqlx::Error> {
    Ok(Logged {
        version: row.try_get("version")?,
        decision: row.try_get("decision")?,
        by: row.try_get("by")?,
        note: row.try_get("note")?,
        at: time(row, "at")?,
        won: row.try_get("won")?,
    })
}
