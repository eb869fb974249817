impl<P: Prices> Billing<P> {
    #[tracing::instrument(skip_all)]
    async fn bill<'a>(
        &self,
        store: &dyn ::idem_runtime::Store<Tx = PgTx>,
        order: &'a Order,
    ) -> anyhow::Result<::idem_runtime::Outcome<Bill>>
    where
        P: 'a,
    {
        ::idem_runtime::__private::inventory::submit! {
            ::idem_runtime::OperationInfo::__new("order.bill",
            ::idem_runtime::Retain::For(::idem_runtime::__private::Duration::from_secs(604800u64)),
            ::idem_runtime::Retain::For(::idem_runtime::__private::Duration::from_secs(2592000u64)),
            ::idem_runtime::Older::Refuse, (::idem_runtime::__private::file!(),
            ::idem_runtime::__private::line!(), ::idem_runtime::__private::column!(),
            ::idem_runtime::__private::module_path!()))
        }
        let __handler = ::idem_runtime::__private::handler::<
            PgTx,
            anyhow::Result<Bill>,
            anyhow::Result<::idem_runtime::Outcome<Bill>>,
            _,
            _,
        >();
        let __scope = ::idem_runtime::__private::scope(&self.tenant);
        let __key = ::idem_runtime::__private::key(&order.id);
        let __fingerprint = {
            let Order {
                id: _,
                lines: __field_0_lines,
                total: __field_0_total,
                note: _,
            } = &order;
            ::idem_runtime::__private::Material::new("order.bill")
                .field("lines", __field_0_lines)
                .field("total", __field_0_total)
                .finish()
        };
        let __occurred_at = ::idem_runtime::__private::occurred_at(&order.placed_at);
        let __claim = ::idem_runtime::__private::claim(
                "order.bill",
                __scope,
                __key,
                __fingerprint,
            )
            .map(|__claim| {
                __claim
                    .with_retain(
                        ::idem_runtime::Retain::For(
                            ::idem_runtime::__private::Duration::from_secs(604800u64),
                        ),
                    )
                    .with_remember(
                        ::idem_runtime::Retain::For(
                            ::idem_runtime::__private::Duration::from_secs(2592000u64),
                        ),
                    )
                    .with_occurred_at(__occurred_at)
                    .with_concurrent(::idem_runtime::Concurrent::Reject)
            });
        let mut __run = match __handler.start(store, __claim).await {
            ::idem_runtime::__private::Start::Fresh(__run) => __run,
            ::idem_runtime::__private::Start::Answer(__answer) => return __answer,
        };
        let (tx, __inside) = ::idem_runtime::__private::Run::enter(&mut __run);
        let __result = __inside
            .run(async move {
                #[allow(
                    unreachable_code,
                    clippy::diverging_sub_expression,
                    clippy::empty_loop,
                    clippy::let_and_return,
                    clippy::needless_return
                )]
                if false {
                    let __never: anyhow::Result<Bill> = loop {};
                    return __never;
                }
                let price = self.prices.of(order)?;
                if price == 0 {
                    return Ok(Bill::nothing());
                }
                tx.stage(SendBill { order: order.id, price }).await?;
                Ok(Bill { price })
            })
            .await;
        __handler.finish(store, __run, __result).await
    }
}
