use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Deserialize, Serialize, Effect)]
#[effect(name = "receipt.email")]
struct EmailReceipt {
    invoice: std::cell::Cell<i64>,
}

fn main() {}
