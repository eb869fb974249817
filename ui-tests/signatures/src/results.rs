//! Return types: `Result` by every name.

use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, MyTx};

pub type Swapped<E, V> = Result<V, E>;
pub type Fewer<V> = std::result::Result<V, ApproveError>;
pub type Without = Result<Approved, ApproveError>;

/// As `std::io::Result`: fewer arguments, and called `Result`.
pub mod io {
    pub type Result<V> = std::result::Result<V, idem_ui_tests::ApproveError>;
}

#[idempotent(key = cmd.operation_key, scope = global, fingerprint(cmd.amount))]
pub async fn any_error(tx: &mut MyTx, cmd: Approve) -> anyhow::Result<Approved> {
    anyhow::ensure!(cmd.amount > 0, "nothing to approve");
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

#[idempotent(key = cmd.operation_key, scope = global, fingerprint(cmd.amount))]
pub async fn swapped(tx: &mut MyTx, cmd: Approve) -> Swapped<ApproveError, Approved> {
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

#[idempotent(key = cmd.operation_key, scope = global, fingerprint(cmd.amount))]
pub async fn fewer(tx: &mut MyTx, cmd: Approve) -> Fewer<Vec<Approved>> {
    tx.apply("approved");
    Ok(vec![Approved { invoice: cmd.invoice }])
}

#[idempotent(key = cmd.operation_key, scope = global, fingerprint(cmd.amount))]
pub async fn without(tx: &mut MyTx, cmd: Approve) -> Without {
    tx.apply("approved");
    Ok(Approved { invoice: cmd.invoice })
}

#[idempotent(key = cmd.operation_key, scope = global, fingerprint(cmd.amount))]
pub async fn fewer_called_result(tx: &mut MyTx, cmd: Approve) -> io::Result<Option<u8>> {
    tx.apply(&cmd.operation_key);
    Ok(None)
}

#[idempotent(key = cmd.operation_key, scope = global, fingerprint(cmd.amount))]
pub async fn projected<T>(tx: &mut MyTx, cmd: Approve, value: T) -> Fewer<T>
where
    T: serde::Serialize + serde::de::DeserializeOwned + Send,
{
    tx.apply(&cmd.operation_key);
    Ok(value)
}

#[idempotent(key = cmd.operation_key, scope = global, fingerprint(cmd.amount))]
pub async fn nothing_but_an_error(tx: &mut MyTx, cmd: Approve) -> Result<(), ApproveError> {
    tx.apply(&cmd.operation_key);
    Err(ApproveError::Refused("always"))
}
