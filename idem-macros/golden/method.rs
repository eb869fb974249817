impl<P: Prices> Billing<P> {
    #[idempotent(
        operation = "order.bill",
        key = order.id,
        scope = self.tenant,
        fingerprint(order { id: _, lines, total, note: _ }),
        retain = "7d",
        remember = "30d",
        occurred_at = order.placed_at,
        concurrent = reject
    )]
    #[tracing::instrument(skip_all)]
    async fn bill<'a>(&self, tx: &mut PgTx, order: &'a Order) -> anyhow::Result<Bill>
    where
        P: 'a,
    {
        let price = self.prices.of(order)?;
        if price == 0 {
            return Ok(Bill::nothing());
        }
        tx.stage(SendBill { order: order.id, price }).await?;
        Ok(Bill { price })
    }
}
