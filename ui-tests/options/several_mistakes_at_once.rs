use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

#[idempotent(key = "{cmb.operation_key}", scope = "acme", retian = "30d", older = never)]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
