use idem_runtime::Effect;
use serde::Deserialize;

#[derive(Deserialize, Effect)]
#[effect(name = "receipt.email")]
struct EmailReceipt {
    invoice: i64,
    to: String,
}

fn main() {}
