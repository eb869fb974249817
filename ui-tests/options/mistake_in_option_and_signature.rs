use idem_runtime::idempotent;
use idem_ui_tests::{Approve, Approved, Caller, MyTx};

#[idempotent(key = "{cmd.operation_key", scope = caller.tenant, fingerprint(cmd.amount))]
fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Approved {
    tx.apply("approved");
    Approved { invoice: cmd.invoice }
}

fn main() {}
