use idem_runtime::idempotent;
use idem_ui_tests::{ApproveError, Approved, Caller, MyTx};

#[idempotent(key = caller.tenant.0, scope = caller.tenant, fingerprint(cmd { amount }))]
async fn approve<T>(tx: &mut MyTx, caller: &Caller, cmd: T) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    Ok(Approved { invoice: 7 })
}

fn main() {}
