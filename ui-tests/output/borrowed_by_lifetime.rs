use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Caller, MyTx};

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve<'a>(
    tx: &mut MyTx,
    caller: &Caller,
    cmd: Approve,
    name: &'a str,
) -> Result<std::borrow::Cow<'a, str>, ApproveError> {
    tx.apply("approved");
    Ok(name.into())
}

fn main() {}
