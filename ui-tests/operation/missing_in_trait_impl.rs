use idem_runtime::idempotent;
use idem_runtime::{Outcome, Store};
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

trait Approves {
    async fn approve(
        store: &dyn Store<Tx = MyTx>,
        caller: &Caller,
        cmd: Approve,
    ) -> Result<Outcome<Approved>, ApproveError>;
}

struct Service;

impl Approves for Service {
    #[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
    async fn approve(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
        tx.apply("approved");
        Ok(Approved { invoice: cmd.invoice })
    }
}

fn main() {}
