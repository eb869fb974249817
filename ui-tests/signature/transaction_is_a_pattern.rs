use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(MyTx { .. }: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
