use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email")]
#[effect(name = "receipt.mail")]
struct EmailReceipt {
    invoice: i64,
    to: String,
}

fn main() {}
