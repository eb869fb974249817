use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

fn assert_send(_: impl Send) {}

fn caller(store: &idem_ui_tests::MemoryStore, caller: &Caller, cmd: Approve) {
    assert_send(approve(store, caller, cmd));
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    let shared = std::rc::Rc::new(cmd.invoice);
    tx.apply("approved");
    std::future::ready(()).await;
    Ok(Approved { invoice: *shared })
}

fn main() {}
