/// Approves an invoice.
pub async fn approve(
    store: &dyn ::idem_runtime::Store<Tx = PgTx>,
    caller: &Caller,
    cmd: Approve,
) -> Result<::idem_runtime::Outcome<Approved>, ApproveError> {
    ::idem_runtime::__private::inventory::submit! {
        ::idem_runtime::OperationInfo::__new("invoice.approve",
        ::idem_runtime::Retain::Forever, ::idem_runtime::Retain::Forever,
        ::idem_runtime::Older::Refuse, (::idem_runtime::__private::file!(),
        ::idem_runtime::__private::line!(), ::idem_runtime::__private::column!(),
        ::idem_runtime::__private::module_path!()))
    }
    let __handler = ::idem_runtime::__private::handler::<
        PgTx,
        Result<Approved, ApproveError>,
        Result<::idem_runtime::Outcome<Approved>, ApproveError>,
        _,
        _,
    >();
    let __scope = ::idem_runtime::__private::Template::new(
            "invoice.approve",
            "scope",
            "",
        )
        .scope(&caller.tenant)
        .finish();
    let __key = ::idem_runtime::__private::Template::new("invoice.approve", "key", "/")
        .key(&cmd.source)
        .literal("/")
        .key(&cmd.id)
        .finish();
    let __fingerprint = {
        ::idem_runtime::__private::Material::new("invoice.approve")
            .field("amount", &cmd.amount)
            .field("currency", &cmd.currency)
            .finish()
    };
    let __claim = ::idem_runtime::__private::claim(
        "invoice.approve",
        __scope,
        __key,
        __fingerprint,
    );
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
                let __never: Result<Approved, ApproveError> = loop {};
                return __never;
            }
            sqlx::query("UPDATE invoice SET state = 'approved' WHERE id = $1")
                .bind(cmd.id)
                .execute(&mut **tx)
                .await?;
            Ok(Approved { invoice: cmd.id })
        })
        .await;
    __handler.finish(store, __run, __result).await
}
