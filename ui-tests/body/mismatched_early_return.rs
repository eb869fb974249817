use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

fn checked(cmd: &Approve) -> Result<i64, ApproveError> {
    Ok(cmd.amount)
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    if cmd.amount == 0 {
        return checked(&cmd);
    }
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
