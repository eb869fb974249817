use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "", ordr = "{self.invoice}", order = "{invoice}", crate = 7)]
struct EmailReceipt {
    #[effect(skip)]
    invoice: i64,
    to: String,
}

fn main() {}
