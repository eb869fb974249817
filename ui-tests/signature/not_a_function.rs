use idem_runtime::idempotent;

#[idempotent(key = id, scope = global, fingerprint(none))]
struct Approve {
    id: String,
}

fn main() {
    let _ = Approve { id: String::new() };
}
