//! A program in which two handlers have one operation. It is a binary of its own, since no store works in it.

use idem_runtime::{Error, SqliteStore, SqliteTx, idempotent};

#[idempotent(operation = "doubled", key = key, scope = global, fingerprint(none))]
async fn first(tx: &mut SqliteTx, key: u32) -> Result<(), Error> {
    let _ = tx.identity();
    Ok(())
}

mod elsewhere {
    use super::*;

    #[idempotent(operation = "doubled", key = key, scope = global, fingerprint(none))]
    pub(super) async fn second(tx: &mut SqliteTx, key: u32) -> Result<(), Error> {
        let _ = tx.identity();
        Ok(())
    }
}

#[tokio::test]
async fn a_doubled_operation_is_found_before_the_first_claim_and_by_the_check() {
    assert_eq!(idem_runtime::operations().filter(|o| o.name == "doubled").count(), 2);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = SqliteStore::open(dir.path().join("x.sqlite3")).await.expect("opened");
    store.migrate().await.expect("migrated");
    for error in [
        store.check().await.expect_err("doubled"),
        first(&store, 1).await.expect_err("doubled"),
        elsewhere::second(&store, 1).await.expect_err("doubled"),
    ] {
        let Error::DuplicateOperation { first, second } = &error else { panic!("{error:?}") };
        assert!(first.line < second.line && first.file.ends_with("main.rs"));
        let message = error.to_string();
        assert!(message.contains(&format!("main.rs:{}", first.line)), "{message}");
        assert!(message.contains(&format!("main.rs:{}", second.line)), "{message}");
        assert!(!error.is_retryable());
    }
}
