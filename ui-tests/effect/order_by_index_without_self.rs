use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email", order = "{0}")]
struct EmailReceipt(i64);

fn main() {}
