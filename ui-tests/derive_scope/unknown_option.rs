use idem_runtime::Scope;

#[derive(Scope)]
#[scope(krate = idem_runtime)]
struct TenantId(String);

fn main() {}
