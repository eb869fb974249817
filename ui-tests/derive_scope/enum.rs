use idem_runtime::Scope;

#[derive(Scope)]
enum TenantId {
    Internal,
    External(String),
}

fn main() {}
