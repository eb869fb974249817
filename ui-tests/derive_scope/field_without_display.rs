use idem_runtime::Scope;

#[derive(Scope)]
struct TenantId(Vec<u8>);

fn main() {}
