use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    drop(cmd);
    Ok(Approved { invoice: cmd.note.map_or(0, |note| note.len() as i64) })
}

fn main() {}
