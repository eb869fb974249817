use idem_runtime::idempotent;
use idem_ui_tests::{ApproveError, Approved, Caller, MyTx};

#[allow(dead_code)]
enum Request {
    Approve { amount: i64 },
    Refuse,
}

#[idempotent(key = caller.tenant.0, scope = caller.tenant, fingerprint(cmd { amount }))]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Request) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    Ok(Approved { invoice: 7 })
}

fn main() {}
