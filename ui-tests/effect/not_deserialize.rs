use idem_runtime::Effect;
use serde::Serialize;

#[derive(Serialize, Effect)]
#[effect(name = "receipt.email")]
struct EmailReceipt {
    invoice: i64,
    to: String,
}

fn main() {}
