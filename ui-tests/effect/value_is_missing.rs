use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name, order)]
struct EmailReceipt {
    invoice: i64,
    to: String,
}

fn main() {}
