/// Approves an invoice.
#[idempotent(
    operation = "invoice.approve",
    key = "{cmd.source}/{cmd.id}",
    scope = "{caller.tenant}",
    fingerprint(cmd.amount, cmd.currency)
)]
pub async fn approve(tx: &mut PgTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
    sqlx::query("UPDATE invoice SET state = 'approved' WHERE id = $1").bind(cmd.id).execute(&mut **tx).await?;
    Ok(Approved { invoice: cmd.id })
}
