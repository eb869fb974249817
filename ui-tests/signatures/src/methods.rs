//! Methods: every receiver, associated functions, and functions of traits.

use std::sync::Arc;

use idem_runtime::{Outcome, Store, idempotent};
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx, TenantId};

#[derive(Clone)]
pub struct Service {
    pub name: String,
    pub tenant: TenantId,
    pub calls: u32,
}

impl Service {
    #[idempotent(operation = "service.by_ref", key = "{self.name}/{cmd.operation_key}", scope = self.tenant, fingerprint(cmd.amount, self.name))]
    pub async fn by_ref(&self, tx: &mut MyTx, cmd: Approve) -> Result<Approved, ApproveError> {
        tx.apply(&self.name);
        Ok(Approved { invoice: cmd.invoice })
    }

    #[idempotent(operation = "service.by_mut", key = cmd.operation_key, scope = self.tenant, fingerprint(cmd.amount))]
    pub async fn by_mut(&mut self, tx: &mut MyTx, cmd: Approve) -> Result<u32, ApproveError> {
        self.calls += 1;
        tx.apply(&cmd.operation_key);
        Ok(self.calls)
    }

    #[idempotent(operation = "service.by_value", key = cmd.operation_key, scope = self.tenant, fingerprint(cmd.amount))]
    pub async fn by_value(mut self, tx: &mut MyTx, cmd: Approve) -> Result<String, ApproveError> {
        self.name.push('!');
        tx.apply(&cmd.operation_key);
        Ok(self.name)
    }

    #[idempotent(operation = "service.by_arc", key = cmd.operation_key, scope = self.tenant, fingerprint(cmd.amount))]
    pub async fn by_arc(self: Arc<Self>, tx: &mut MyTx, cmd: Approve) -> Result<String, ApproveError> {
        tx.apply(&cmd.operation_key);
        Ok(self.name.clone())
    }

    #[idempotent(operation = "service.associated", key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
    pub async fn associated(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
        tx.apply(&cmd.operation_key);
        Ok(Approved { invoice: cmd.invoice })
    }
}

/// The trait declares the generated signature; this one says that its futures are `Send`.
pub trait Approves {
    fn approve(
        &self,
        store: &dyn Store<Tx = MyTx>,
        caller: &Caller,
        cmd: Approve,
    ) -> impl Future<Output = Result<Outcome<Approved>, ApproveError>> + Send;
}

impl Approves for Service {
    #[idempotent(operation = "approves.approve", key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
    async fn approve(&self, tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
        tx.apply(&self.name);
        Ok(Approved { invoice: cmd.invoice })
    }
}

#[allow(async_fn_in_trait)]
pub trait Cancels<Id> {
    async fn cancel(
        store: &dyn Store<Tx = MyTx>,
        caller: &Caller,
        id: Id,
    ) -> Result<Outcome<()>, ApproveError>;
}

impl<Id: std::fmt::Display> Cancels<Id> for Service {
    #[idempotent(operation = "cancels.cancel", key = "{id}", scope = "{caller.tenant}", fingerprint(none))]
    async fn cancel(tx: &mut MyTx, caller: &Caller, id: Id) -> Result<(), ApproveError> {
        tx.apply(&id.to_string());
        Ok(())
    }
}

/// A trait for `dyn`: its method calls the handler.
#[async_trait::async_trait]
pub trait DynApproves: Send + Sync {
    async fn approve_dyn(
        &self,
        store: &dyn Store<Tx = MyTx>,
        cmd: Approve,
    ) -> Result<Outcome<Approved>, ApproveError>;
}

#[async_trait::async_trait]
impl DynApproves for Service {
    async fn approve_dyn(
        &self,
        store: &dyn Store<Tx = MyTx>,
        cmd: Approve,
    ) -> Result<Outcome<Approved>, ApproveError> {
        self.by_ref(store, cmd).await
    }
}
