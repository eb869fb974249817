use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email")]
struct EmailReceipt {
    #[effect(order)]
    invoice: i64,
    to: String,
}

fn main() {}
