//! Every signature that `#[idempotent]` supports. That it compiles without a warning is the test; what the handlers
//! do is in `tests`.
#![deny(warnings, clippy::pedantic)]
#![allow(missing_docs, clippy::missing_errors_doc)]

use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

#[idempotent(
    operation = "invoice.approve",
    key = "{cmd.operation_key}",
    scope = "{caller.tenant}",
    fingerprint(cmd { operation_key: _, invoice, amount, note: _ }),
)]
pub async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    tx.apply(&format!("approved {}", cmd.invoice));
    Ok(Approved { invoice: cmd.invoice })
}
