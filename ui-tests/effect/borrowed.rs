use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email")]
struct EmailReceipt<'a> {
    invoice: i64,
    to: &'a str,
}

fn main() {}
