use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Caller, MyTx};

struct Receipt {
    invoice: i64,
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Receipt, ApproveError> {
    tx.apply("approved");
    Ok(Receipt { invoice: cmd.invoice })
}

fn main() {}
