/// Sent after the commit.
#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email", order = "{self.invoice}")]
pub struct EmailReceipt {
    invoice: i64,
    to: String,
}

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "payout", order = "{self.0.bank}/{self.0.r#type}", crate = crate::renamed)]
struct Payout<A, M = Eur>(A, Vec<A::Id>, PhantomData<M>)
where
    A: Account;

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "search.index")]
enum Index {
    Put { id: u64 },
    Delete(u64),
    Refresh,
}
