use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

async fn caller(store: &idem_ui_tests::MemoryStore, caller: &Caller, cmd: Approve) -> bool {
    approve(store, caller, cmd).await.is_ok_and(|outcome| outcome.is_replay())
}

#[idempotent(scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
