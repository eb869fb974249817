//! The handler. It reads as if every event came exactly once, and the attribute makes that true: the two writes below
//! and the record of the event are one transaction.

use idem_runtime::{Verified, idempotent};

use super::Tx;
use crate::booking::{Booked, BookingError};
use crate::event::InvoicePaid;

/// Books a paid invoice: one row in the ledger, and the balance of the sender's account in that currency.
///
/// The same event again gives the stored outcome. The same id with another invoice, amount, currency or destination
/// is refused as a mismatch; note and trace may differ. A field that is added to [`InvoicePaid`] later does not
/// compile until somebody says here which of the two it is.
#[idempotent(
    operation = "invoice.paid",
    scope = source,
    key = event.id,
    fingerprint(event { id: _, invoice, amount_minor, currency, destination, note: _, trace: _ }),
)]
pub(crate) async fn invoice_paid(
    tx: &mut Tx,
    source: &Verified<String>,
    event: &InvoicePaid,
) -> Result<Booked, BookingError> {
    sqlx::query(
        "INSERT INTO ledger (source, event_id, invoice, amount_minor, currency, destination)
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(source.get())
    .bind(&event.id)
    .bind(&event.invoice)
    .bind(event.amount_minor)
    .bind(&event.currency)
    .bind(&event.destination)
    .execute(&mut **tx)
    .await?;

    let balance = sqlx::query_scalar(
        "INSERT INTO account (source, currency, balance) VALUES ($1, $2, $3)
         ON CONFLICT (source, currency) DO UPDATE SET balance = account.balance + excluded.balance
         RETURNING balance",
    )
    .bind(source.get())
    .bind(&event.currency)
    .bind(event.amount_minor)
    .fetch_one(&mut **tx)
    .await?;

    Ok(Booked { balance })
}
