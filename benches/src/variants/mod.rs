//! What is compared, on each database: the body in a bare transaction, the same pattern by hand, and the macro. All
//! run the very same body, one UPDATE and one INSERT, on equally configured connections.
//!
//! The version by hand is what a good engineer writes with sqlx's ordinary interface for the same promises: claim by an
//! insert that waits in bounded time, a body with the session's own timeouts, a key that a vanished client frees, an
//! outcome that reads back and is stored only in the run that claimed, commit; and it goes on when its caller goes away,
//! so that no transaction is left open; prepared statements, no round trip too many. It still lacks single flight and a
//! settled commit.
//!
//! The minimal version leaves out the bounds, the checks at the end and what happens to a cancelled call: once, the same
//! answer and the same request, as long as nothing goes wrong.

mod carried;
pub mod postgres;
pub mod sqlite;

use std::future::Future;

use anyhow::{Result, ensure};
use idem_runtime::Outcome;
use sha2::{Digest, Sha256};

use crate::request::{Payment, Receipt};

/// How long records are kept, by hand too.
pub const RETAIN_SECONDS: i64 = 30 * 86_400;

/// The operation's name in the records by hand, as the macro writes one too.
pub const OPERATION: &str = "payment.book";

/// The same service in its versions, on one database.
pub trait Variants: Clone + Send + Sync + 'static {
    /// The body in a transaction, and nothing else.
    fn bare(&self, payment: Payment) -> impl Future<Output = Result<Receipt>> + Send;

    /// The pattern by hand, without what bounds and checks it; for fresh keys alone.
    fn minimal(&self, payment: Payment) -> impl Future<Output = Result<Receipt>> + Send;

    /// The pattern by hand.
    fn by_hand(&self, payment: Payment) -> impl Future<Output = Result<Outcome<Receipt>>> + Send;

    /// The macro, with `()` as outcome.
    fn annotated_unit(&self, payment: Payment) -> impl Future<Output = Result<Outcome<()>>> + Send;

    /// The macro, with a struct as outcome.
    fn annotated(&self, payment: Payment) -> impl Future<Output = Result<Outcome<Receipt>>> + Send;

    /// Waits until all connections are back where they came from: what a call leaves to be done after its answer
    /// must not fall into the next block.
    fn settled(&self) -> impl Future<Output = ()> + Send;

    /// How many payments are booked.
    fn booked(&self) -> impl Future<Output = Result<i64>> + Send;
}

/// The outcome as JSON that reads back.
fn outcome_by_hand(receipt: &Receipt) -> Result<String> {
    let text = serde_json::to_string(receipt)?;
    ensure!(serde_json::from_str::<Receipt>(&text)? == *receipt, "the outcome reads back as another one");
    Ok(text)
}

/// The digest of the material fields, by hand: enough for values whose JSON always looks the same.
fn digest_by_hand(payment: &Payment) -> Result<Vec<u8>> {
    let material = (payment.account, payment.amount, &payment.currency, &payment.destination);
    Ok(Sha256::digest(serde_json::to_vec(&material)?).to_vec())
}
