use idem_runtime::Effect;
use serde::Deserialize;

#[derive(Deserialize, Effect)]
#[effect(name = "notice")]
struct Notice<T> {
    about: T,
}

fn main() {}
