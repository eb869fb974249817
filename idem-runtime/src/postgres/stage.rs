//! Writing a row of the outbox, in the transaction of a run.

use super::connection::PgHandle;
use crate::outbox::Staged;

const STAGE: &str = "
INSERT INTO idem.outbox (effect, content_type, payload, effect_key, operation, scope, key, due_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, now())
ON CONFLICT (effect_key) DO NOTHING";

/// The number comes from a row that stays locked until the commit, so that numbers are in the order of commits.
const STAGE_IN_ORDER: &str = "
WITH head AS (
    INSERT INTO idem.order_head (effect, scope, order_key, last) VALUES ($1, $6, $8, 1)
    ON CONFLICT (effect, scope, order_key) DO UPDATE SET last = order_head.last + 1
    RETURNING last)
INSERT INTO idem.outbox
    (effect, content_type, payload, effect_key, operation, scope, key, due_at, order_key, order_no)
SELECT $1, $2, $3, $4, $5, $6, $7, now(), $8, last FROM head
ON CONFLICT (effect_key) DO NOTHING";

pub(super) async fn stage(handle: &mut PgHandle, staged: Staged<'_>) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(if staged.order_key.is_some() { STAGE_IN_ORDER } else { STAGE })
        .bind(staged.effect)
        .bind(staged.content_type)
        .bind(staged.payload)
        .bind(staged.effect_key.as_str())
        .bind(staged.identity.operation())
        .bind(staged.identity.scope())
        .bind(staged.identity.key());
    let query = match staged.order_key {
        Some(order_key) => query.bind(order_key),
        None => query,
    };
    let written = query.persistent(handle.persistent).execute(&mut **handle).await?;
    Ok(written.rows_affected() == 1)
}
