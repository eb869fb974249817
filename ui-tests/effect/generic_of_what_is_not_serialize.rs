use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Deserialize, Serialize, Effect)]
#[effect(name = "notice")]
struct Notice<T> {
    about: T,
}

struct Invoice;

fn staged<E: Effect>() {}

fn main() {
    staged::<Notice<i64>>();
    staged::<Notice<Invoice>>();
}
