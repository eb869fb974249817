//! Every option, in every form.

use std::time::{Duration, SystemTime};

use idem_runtime as renamed;
use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller, MyTx};

pub struct Event {
    pub id: (u64, String),
    pub r#type: String,
    pub time: Option<SystemTime>,
    pub data: Approve,
}

#[idempotent(
    operation = "event.seen",
    key = "{event.id.0}/{event.r#type}",
    scope = "{caller.tenant}",
    fingerprint(event.data, kind = event.r#type.to_uppercase(), event.id.1),
    retain = "36h",
    remember = "30d",
    occurred_at = event.time,
    older = refuse,
    concurrent = wait,
)]
pub async fn every_option(tx: &mut MyTx, caller: &Caller, event: Event) -> Result<(), ApproveError> {
    tx.apply(&event.r#type);
    Ok(())
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd), retain = "30d", older = run, concurrent = reject)]
pub async fn run_when_older(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount), retain = "30d", remember = forever, occurred_at = SystemTime::UNIX_EPOCH + Duration::from_secs(at))]
pub async fn expressions(tx: &mut MyTx, caller: &Caller, cmd: Approve, at: u64) -> Result<(), ApproveError> {
    tx.apply("approved");
    Ok(())
}

#[idempotent(
    key = cmd.note.as_ref().ok_or(ApproveError::Refused("no note"))?,
    scope = idem_runtime::Verified::check(&caller.tenant.0, |t| t.len() > 1).map_err(|_| ApproveError::Refused("not yours"))?,
    fingerprint(amount = cmd.amount.checked_mul(2).ok_or(ApproveError::Refused("too much"))?),
)]
pub async fn question_marks(tx: &mut MyTx, caller: &Caller, cmd: Approve) -> Result<(), ApproveError> {
    tx.apply("approved");
    Ok(())
}

#[idempotent(crate = renamed, key = -id, scope = global, fingerprint(double = id + id, id))]
pub async fn renamed_runtime(tx: &mut MyTx, id: i64) -> Result<i64, ApproveError> {
    tx.apply("done");
    Ok(id)
}

#[derive(renamed::Scope)]
#[scope(crate = renamed)]
pub struct Account<T: std::fmt::Display> {
    number: T,
}

impl<T: std::fmt::Display> Account<T> {
    pub fn authorized(number: T) -> Self {
        Self { number }
    }
}

#[idempotent(key = id, scope = "{account}/{caller.tenant}", fingerprint(none))]
pub async fn composed_scope(
    tx: &mut MyTx,
    account: Account<u32>,
    caller: &Caller,
    id: u64,
) -> Result<u64, ApproveError> {
    tx.apply("done");
    Ok(id)
}
