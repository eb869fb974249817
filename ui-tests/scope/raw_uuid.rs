use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, MyTx};

#[idempotent(key = cmd.operation_key, scope = tenant, fingerprint(cmd.amount))]
async fn approve(tx: &mut MyTx, tenant: uuid::Uuid, cmd: Approve) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
