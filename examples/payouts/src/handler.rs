//! What you would write in your own program: the handler, and the effect that it stages. The row, the record of the
//! order and the staged effect are one transaction; the money moves after it, by the worker.

use idem_runtime::{Effect, SqliteTx, Verified, idempotent};
use serde::{Deserialize, Serialize};

/// An order as it is delivered, at least once.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) account: String,
    pub(crate) amount_minor: i64,
    /// Of the delivery and not of the order.
    pub(crate) delivery: u32,
}

/// What the provider is to carry out.
#[derive(Debug, Serialize, Deserialize, Effect)]
#[effect(name = "bank.payout")]
pub(crate) struct PayoutOrder {
    pub(crate) order: String,
    pub(crate) account: String,
    pub(crate) amount_minor: i64,
}

/// The outcome, which a second delivery gets again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ordered {
    /// What the provider knows the payout by.
    pub(crate) effect_key: String,
}

/// Why nothing was ordered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PayoutError {
    /// What the store has to say.
    #[error(transparent)]
    Idem(#[from] idem_runtime::Error),
    /// A statement of the handler failed, and the whole run was rolled back.
    #[error("a statement of the handler failed")]
    Sql(#[from] sqlx::Error),
}

/// The handler's own table. No key in it forbids a second row for an order: if a body ever ran twice, it would show.
pub(crate) const TABLE: &str = "
    CREATE TABLE payout (
        order_id text NOT NULL,
        account text NOT NULL,
        amount_minor bigint NOT NULL,
        effect_key text NOT NULL
    )";

/// Orders the payout. The same id with another account or amount is refused as a mismatch.
#[idempotent(
    operation = "payout.order",
    scope = shop,
    key = order.id,
    fingerprint(order { id: _, account, amount_minor, delivery: _ }),
)]
pub(crate) async fn order_payout(
    tx: &mut SqliteTx,
    shop: &Verified<String>,
    order: &Order,
) -> Result<Ordered, PayoutError> {
    let payout = PayoutOrder {
        order: order.id.clone(),
        account: order.account.clone(),
        amount_minor: order.amount_minor,
    };
    let effect_key = tx.stage(payout).await?.to_string();
    sqlx::query("INSERT INTO payout (order_id, account, amount_minor, effect_key) VALUES ($1, $2, $3, $4)")
        .bind(&order.id)
        .bind(&order.account)
        .bind(order.amount_minor)
        .bind(&effect_key)
        .execute(&mut **tx)
        .await?;
    Ok(Ordered { effect_key })
}
