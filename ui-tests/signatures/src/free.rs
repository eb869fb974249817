//! Free functions: parameters of every kind.

use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;

use idem_runtime::{Scope, Transaction, Verified, idempotent};
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};
use serde::Serialize;

/// As a web framework's extractor.
pub struct Json<T>(pub T);

#[idempotent(
    key = "{cmd.operation_key}",
    scope = "{caller.tenant}",
    fingerprint(cmd { operation_key: _, invoice, amount, note: _ }),
)]
pub async fn template_and_pattern(
    tx: &mut MyTx,
    caller: &Caller,
    cmd: Approve,
) -> Result<Approved, ApproveError> {
    if cmd.amount == 0 {
        return Err(ApproveError::Refused("nothing to approve"));
    }
    tx.apply(&format!("approved {}", cmd.invoice));
    Ok(Approved { invoice: cmd.invoice })
}

#[idempotent(key = id, scope = global, fingerprint(none))]
pub async fn no_other_parameter_is_used(tx: &mut MyTx, id: u64) -> Result<(), ApproveError> {
    tx.apply("done");
    Ok(())
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(Approve { operation_key: _, invoice, amount, note } = cmd))]
pub async fn pattern_parameters(
    tx: &mut MyTx,
    Json(cmd): Json<Approve>,
    (caller, _): (Caller, u8),
    _: String,
) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd { operation_key: _, invoice, amount, note: _ }))]
pub async fn mutable_parameters(
    mut tx: &mut MyTx,
    caller: &Caller,
    mut cmd: Approve,
    counter: &mut u32,
) -> Result<Approved, ApproveError> {
    cmd.invoice += 1;
    cmd.operation_key.clear();
    *counter += 1;
    for effect in ["first", "second"] {
        tx.apply(effect);
        tx = reborrowed(tx);
    }
    Ok(Approved { invoice: cmd.invoice })
}

fn reborrowed(tx: &mut MyTx) -> &mut MyTx {
    tx
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd { operation_key: _, invoice, amount, note: _ }))]
pub async fn mutable_reference(
    tx: &mut MyTx,
    caller: &Caller,
    cmd: &mut Approve,
) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    cmd.note = None;
    Ok(Approved { invoice: cmd.invoice })
}

#[idempotent(key = id, scope = caller.tenant, fingerprint(label))]
pub async fn named_lifetimes<'a, 'b: 'a>(
    tx: &mut MyTx,
    caller: &'b Caller,
    id: &'a str,
    label: &'a str,
) -> Result<String, ApproveError> {
    tx.apply(label);
    std::future::ready(()).await;
    Ok(format!("{id}{label}"))
}

#[idempotent(key = "{source}/{id}", scope = scope, fingerprint(body))]
pub async fn generics<S, B>(
    tx: &mut MyTx,
    scope: &S,
    source: impl Display + Send + Sync,
    id: u64,
    body: B,
) -> Result<u64, ApproveError>
where
    S: Scope + Sync + ?Sized,
    B: Serialize + Send + Sync + Clone,
{
    tx.apply(&source.to_string());
    let _ = body.clone();
    Ok(id)
}

#[idempotent(key = id, scope = global, fingerprint(id))]
pub async fn any_transaction<T: Transaction, const N: usize>(
    tx: &mut T,
    id: u64,
) -> Result<usize, ApproveError> {
    let _: &mut T = tx;
    Ok(N)
}

/// Its parameters are `Send` and not `Sync`: captured by reference they would take `Send` from the future.
#[idempotent(key = id.get(), scope = constant("billing"), fingerprint(value = id.get()))]
pub async fn send_but_not_sync(tx: &mut MyTx, id: Cell<u64>) -> Result<u64, ApproveError> {
    tx.apply("counted");
    std::future::ready(()).await;
    id.set(id.get() + 1);
    Ok(id.get())
}

/// C20: the body may consume what the key was made of.
#[idempotent(
    key = "{cmd.operation_key}/{cmd.invoice}",
    scope = Verified::vouch(&*tenant),
    fingerprint(Inner { operation_key: _, invoice, amount, note: _ } = *cmd, whole = cmd),
)]
pub async fn consumed(tx: &mut MyTx, tenant: Arc<str>, cmd: Box<Inner>) -> Result<String, ApproveError> {
    let Inner { operation_key, .. } = *cmd;
    drop(tenant);
    tx.apply(&operation_key);
    Ok(operation_key)
}

/// Behind a pointer, so that the pattern names its type.
#[derive(Serialize)]
pub struct Inner {
    pub operation_key: String,
    pub invoice: i64,
    pub amount: i64,
    pub note: Option<String>,
}
