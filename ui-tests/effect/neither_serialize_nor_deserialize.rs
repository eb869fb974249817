use idem_runtime::Effect;

#[derive(Effect)]
#[effect(name = "receipt.email")]
struct EmailReceipt {
    invoice: i64,
    to: String,
}

fn main() {}
