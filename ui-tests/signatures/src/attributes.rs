//! Beside other attributes, inside `macro_rules!`, and inside other functions.

use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MemoryStore, MyTx};

/// Documented above.
#[must_use = "an approval that failed must be told"]
#[cfg_attr(all(), doc = "And conditionally.")]
#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
#[allow(clippy::unused_async)]
#[cfg_attr(all(), doc = "Documented below.")]
/// Documented below.
pub async fn documented(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    #![allow(unused_mut)]
    let mut invoice = cmd.invoice;
    tx.apply("approved");
    Ok(Approved { invoice })
}

#[cfg_attr(all(), idempotent(key = id, scope = global, fingerprint(none)))]
pub async fn conditional(tx: &mut MyTx, id: u64) -> Result<u64, ApproveError> {
    tx.apply("done");
    Ok(id)
}

/// The span is around the body alone: no replay, no claim, no commit.
#[tracing::instrument(skip_all, err)]
#[idempotent(key = id, scope = global, fingerprint(none))]
pub async fn instrumented_above(tx: &mut MyTx, id: u64) -> Result<u64, ApproveError> {
    std::future::ready(()).await;
    tracing::info!("in the body");
    tx.apply("done");
    Ok(id)
}

/// The span is around everything, and its fields see the store.
#[idempotent(key = id, scope = global, fingerprint(none))]
#[tracing::instrument(skip_all, err)]
pub async fn instrumented_below(tx: &mut MyTx, id: u64) -> Result<u64, ApproveError> {
    tracing::info!("in the body");
    tx.apply("done");
    Ok(id)
}

/// Without `skip_all` the store is a field too.
#[idempotent(key = id, scope = global, fingerprint(none))]
#[tracing::instrument]
pub async fn instrumented_with_fields(tx: &mut MyTx, id: u64) -> Result<u64, ApproveError> {
    tx.apply("done");
    Ok(id)
}

macro_rules! handlers {
    ($($name:ident, $tx:ident, $cmd:ident, $type:ty, $key:expr, $scope:literal, $result:ty, $body:block;)*) => {$(
        #[idempotent(key = $key, scope = $scope, fingerprint($cmd.amount))]
        pub async fn $name($tx: &mut MyTx, caller: &Caller, $cmd: $type) -> $result $body
    )*};
}
handlers! {
    in_macro, tx, cmd, Approve, cmd.operation_key, "{caller.tenant}", Result<Approved, ApproveError>, {
        tx.apply("approved");
        Ok(Approved { invoice: cmd.invoice })
    };
    in_macro_by_reference, tx, cmd, &Approve, cmd.operation_key, "{caller.tenant}", anyhow::Result<()>, {
        tx.apply("approved");
        if cmd.amount == 0 {
            anyhow::bail!("nothing to approve");
        }
        Ok(())
    };
}

macro_rules! own_names {
    ($name:ident, $operation:literal) => {
        #[idempotent(crate = $crate::runtime, operation = $operation, key = "{id}", scope = global, fingerprint(id))]
        pub async fn $name(tx: &mut MyTx, id: u64) -> Result<u64, ApproveError> {
            tx.apply($operation);
            Ok(id)
        }
    };
}
own_names!(first_of_two, "own.first");
own_names!(second_of_two, "own.second");

/// A handler may stand inside a function.
pub async fn local(store: &MemoryStore, id: u64) -> Result<bool, ApproveError> {
    #[idempotent(key = id, scope = global, fingerprint(none))]
    async fn inner(tx: &mut MyTx, id: u64) -> Result<(), ApproveError> {
        tx.apply("inner");
        Ok(())
    }
    Ok(inner(store, id).await?.is_replay())
}
