use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email", oder = "{self.invoice}")]
struct EmailReceipt {
    invoice: i64,
    to: String,
}

fn main() {}
