use idem_runtime::Effect;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "index", order = "{self.id}")]
enum Index {
    Put { id: i64 },
    Delete { id: i64 },
}

fn main() {}
