use idem_runtime::Effect;

#[derive(Effect)]
#[effect(name = "bits")]
union Bits {
    float: f64,
    integer: u64,
}

fn main() {}
