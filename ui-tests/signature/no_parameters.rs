use idem_runtime::idempotent;
use idem_ui_tests::ApproveError;

#[idempotent(key = 1, scope = global, fingerprint(none))]
async fn approve() -> Result<(), ApproveError> {
    Ok(())
}

fn main() {}
