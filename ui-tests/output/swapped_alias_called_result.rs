use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

mod swapped {
    pub type Result<E, V> = std::result::Result<V, E>;
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> swapped::Result<ApproveError, Approved> {
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
