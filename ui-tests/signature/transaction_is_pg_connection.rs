use idem_runtime::idempotent;
use idem_ui_tests::{Approve, ApproveError, Approved, Caller};

#[idempotent(key = cmd.operation_key, scope = caller.tenant, fingerprint(cmd.amount))]
async fn approve(
    tx: &mut sqlx::PgConnection,
    caller: &Caller,
    cmd: Approve,
) -> Result<Approved, ApproveError> {
    sqlx::query("SELECT 1").execute(&mut *tx).await.map_err(|_| ApproveError::Refused("database"))?;
    Ok(Approved { invoice: cmd.invoice })
}

fn main() {}
