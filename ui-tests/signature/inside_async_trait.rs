use idem_runtime::idempotent;
use idem_runtime::{Outcome, Store};
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

#[async_trait::async_trait]
trait Approves {
    async fn approve(
        &self,
        store: &dyn Store<Tx = MyTx>,
        caller: &Caller,
        cmd: Approve,
    ) -> Result<Outcome<Approved>, ApproveError>;
}

struct Service;

#[async_trait::async_trait]
impl Approves for Service {
    #[idempotent(operation = "invoice.approve", key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
    async fn approve(&self, tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
        tx.apply("approved");
        Ok(Approved { invoice: cmd.invoice })
    }
}

fn main() {}
