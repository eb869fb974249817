#[idempotent(
    crate = crate::vendor::idem,
    key = event.id.ok_or(Reject::NoId)?,
    scope = constant("ledger"),
    fingerprint(none),
    retain = "30d",
    older = run
)]
async fn post(mut tx: &mut SqliteTx, Json(event): Json<Event>) -> Fallible<Reject, Posted> {
    tx = ledger::post(tx, event).await?;
    Ok(Posted)
}
