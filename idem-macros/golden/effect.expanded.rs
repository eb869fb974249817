/// Sent after the commit.
#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email", order = "{self.invoice}")]
pub struct EmailReceipt {
    invoice: i64,
    to: String,
}
#[automatically_derived]
impl ::idem_runtime::Effect for EmailReceipt {
    const NAME: &'static ::idem_runtime::__private::Str = "receipt.email";
    fn order_key(
        &self,
    ) -> ::idem_runtime::__private::Option<::idem_runtime::__private::String> {
        ::idem_runtime::__private::Template::new("receipt.email", "order", "")
            .order(&self.invoice)
            .order_key()
    }
}
#[derive(Serialize, Deserialize, Effect)]
#[effect(
    name = "payout",
    order = "{self.0.bank}/{self.0.r#type}",
    crate = crate::renamed
)]
struct Payout<A, M = Eur>(
    A,
    Vec<A::Id>,
    PhantomData<M>,
)
where
    A: Account;
#[automatically_derived]
impl<A, M> crate::renamed::Effect for Payout<A, M>
where
    A: Account,
    A: crate::renamed::__private::Payload,
    A::Id: crate::renamed::__private::Payload,
    M: crate::renamed::__private::Send + crate::renamed::__private::Sync + 'static,
{
    const NAME: &'static crate::renamed::__private::Str = "payout";
    fn order_key(
        &self,
    ) -> crate::renamed::__private::Option<crate::renamed::__private::String> {
        crate::renamed::__private::Template::new("payout", "order", "/")
            .order(&self.0.bank)
            .literal("/")
            .order(&self.0.r#type)
            .order_key()
    }
}
#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "search.index")]
enum Index {
    Put { id: u64 },
    Delete(u64),
    Refresh,
}
#[automatically_derived]
impl ::idem_runtime::Effect for Index {
    const NAME: &'static ::idem_runtime::__private::Str = "search.index";
}
