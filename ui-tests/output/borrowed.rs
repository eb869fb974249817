use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Caller, MyTx};

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve, name: &str) -> Result<&str, ApproveError> {
    tx.apply("approved");
    Ok(name)
}

fn main() {}
