use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
struct EmailReceipt {
    invoice: i64,
    to: String,
}

fn staged<E: Effect>() {}

fn main() {
    staged::<EmailReceipt>();
}
