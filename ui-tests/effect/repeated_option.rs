use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email", order = "{self.invoice}", order = "{self.to}")]
struct EmailReceipt {
    invoice: i64,
    to: String,
}

fn main() {}
