use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "index")]
enum Index {
    #[effect(name = "index.put")]
    Put(i64),
    Refresh,
}

fn main() {}
