async fn post(
    store: &dyn crate::vendor::idem::Store<Tx = SqliteTx>,
    Json(event): Json<Event>,
) -> <Fallible<
    Reject,
    Posted,
> as crate::vendor::idem::__private::HandlerResult>::Wrapped {
    #[allow(unused_imports)]
    use post_needs_the_option_operation_in_an_impl_block as _;
    crate::vendor::idem::__private::inventory::submit! {
        crate ::vendor::idem::OperationInfo::__new("post", crate
        ::vendor::idem::Retain::For(crate
        ::vendor::idem::__private::Duration::from_secs(2592000u64)), crate
        ::vendor::idem::Retain::For(crate
        ::vendor::idem::__private::Duration::from_secs(2592000u64)), crate
        ::vendor::idem::Older::Run, (crate ::vendor::idem::__private::file!(), crate
        ::vendor::idem::__private::line!(), crate ::vendor::idem::__private::column!(),
        crate ::vendor::idem::__private::module_path!()))
    }
    let __handler = crate::vendor::idem::__private::handler::<
        SqliteTx,
        Fallible<Reject, Posted>,
        _,
        _,
        _,
    >();
    let __scope = crate::vendor::idem::__private::constant("ledger");
    let __key = crate::vendor::idem::__private::key(&event.id.ok_or(Reject::NoId)?);
    let __fingerprint = crate::vendor::idem::__private::Result::Ok(
        crate::vendor::idem::__private::Option::None,
    );
    let __claim = crate::vendor::idem::__private::claim(
            "post",
            __scope,
            __key,
            __fingerprint,
        )
        .map(|__claim| {
            __claim
                .with_retain(
                    crate::vendor::idem::Retain::For(
                        crate::vendor::idem::__private::Duration::from_secs(2592000u64),
                    ),
                )
                .with_older(crate::vendor::idem::Older::Run)
        });
    let mut __run = match __handler.start(store, __claim).await {
        crate::vendor::idem::__private::Start::Fresh(__run) => __run,
        crate::vendor::idem::__private::Start::Answer(__answer) => return __answer,
    };
    let (mut tx, __inside) = crate::vendor::idem::__private::Run::enter(&mut __run);
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
                let __never: Fallible<Reject, Posted> = loop {};
                return __never;
            }
            tx = ledger::post(tx, event).await?;
            Ok(Posted)
        })
        .await;
    __handler.finish(store, __run, __result).await
}
#[doc(hidden)]
#[allow(non_upper_case_globals, dead_code)]
const post_needs_the_option_operation_in_an_impl_block: () = ();
