use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller};

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(
    tx: &mut impl idem_runtime::Transaction,
    caller: &Caller,
    cmd: Approve,
) -> Result<Approved, ApproveError> {
    let _ = tx;
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
