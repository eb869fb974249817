use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller};

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
