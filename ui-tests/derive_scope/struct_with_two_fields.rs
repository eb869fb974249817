use idem_runtime::Scope;

#[derive(Scope)]
struct TenantId {
    region: String,
    name: String,
}

fn main() {}
