use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

#[idempotent(key = to.operation_key, scope = caller.tenant, fingerprint(from.invoice, to.invoice))]
async fn approve(
    tx: &mut MyTx,
    caller: &Caller,
    from: Approve,
    to: Approve,
) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    Ok(Approved { invoice: from.invoice })
}

fn main() {}
