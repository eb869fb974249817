//! Writing a row of the outbox, in the transaction of a run.

use super::connection::SqliteHandle;
use super::record::now;
use crate::outbox::Staged;

const STAGE: &str = concat!(
    "INSERT INTO idem_outbox
        (effect, content_type, payload, effect_key, operation, scope, key, created_at, due_at, order_key, order_no)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ",
    now!(),
    ", ",
    now!(),
    ", ?8, ?9)
     ON CONFLICT (effect_key) DO NOTHING"
);

/// There is one writer, so that numbers are in the order of commits.
const NUMBER: &str = "
INSERT INTO idem_order_head (effect, scope, order_key, last) VALUES (?1, ?2, ?3, 1)
ON CONFLICT (effect, scope, order_key) DO UPDATE SET last = last + 1
RETURNING last";

pub(super) async fn stage(handle: &mut SqliteHandle, staged: Staged<'_>) -> Result<bool, sqlx::Error> {
    let mut number = None::<i64>;
    if let Some(order_key) = &staged.order_key {
        let query =
            sqlx::query_scalar(NUMBER).bind(staged.effect).bind(staged.identity.scope()).bind(order_key);
        number = Some(query.fetch_one(&mut **handle).await?);
    }
    let written = sqlx::query(STAGE)
        .bind(staged.effect)
        .bind(staged.content_type)
        .bind(staged.payload)
        .bind(staged.effect_key.as_str())
        .bind(staged.identity.operation())
        .bind(staged.identity.scope())
        .bind(staged.identity.key())
        .bind(staged.order_key)
        .bind(number)
        .execute(&mut **handle)
        .await?;
    Ok(written.rows_affected() == 1)
}
