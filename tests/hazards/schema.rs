//! A database that is not ready is found before the first claim, and the error says what to run.

use idem_runtime::{Error, SchemaProblem, Store as _};

use super::db::{Db, INBOX, MIGRATION, Store};
use crate::handler::{claim, identity, run};

async fn problem(store: &Store) -> SchemaProblem {
    let by_claim = run(store, claim("k"), async |_| Ok(())).await.expect_err("not ready").idem();
    let by_check = store.check().await.expect_err("not ready");
    let (Error::Schema { problem: claimed }, Error::Schema { problem: checked }) = (by_claim, by_check)
    else {
        panic!("a problem of the schema was expected");
    };
    assert_eq!(claimed, checked);
    claimed
}

#[tokio::test]
async fn missing_tables_are_named_and_a_migration_mends_them_for_the_same_store() {
    let db = Db::bare().await;
    let store = db.store().await;
    let found = problem(&store).await;
    assert_eq!(found, SchemaProblem::Missing);
    assert!(found.to_string().contains("migrate()"));
    let missing = store.find(&identity("k")).await.expect_err("no tables");
    assert!(matches!(missing, Error::Schema { problem: SchemaProblem::Missing }), "{missing:?}");
    store.migrate().await.expect("migrated");
    store.check().await.expect("ready");
    run(&store, claim("k"), async |_| Ok(())).await.expect("runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_from_many_processes_at_once_are_one() {
    let db = Db::bare().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = db.store().await;
        tasks.spawn(async move { store.migrate().await });
    }
    for migrated in tasks.join_all().await {
        migrated.expect("migrated");
    }
    assert_eq!(db.count(&format!("SELECT count(*) FROM {MIGRATION}")).await, 1);
}

#[tokio::test]
async fn an_older_schema_and_one_too_new_are_refused_and_an_additive_newer_one_is_not() {
    let db = Db::fresh().await;
    db.execute(&format!("INSERT INTO {MIGRATION} (version, min_compatible) VALUES (2, 1)")).await;
    db.execute(&format!("ALTER TABLE {INBOX} ADD COLUMN later text")).await;
    let store = db.store().await;
    run(&store, claim("k"), async |_| Ok(())).await.expect("a rolling deploy goes on");
    store.migrate().await.expect("left alone");
    db.execute(&format!("UPDATE {MIGRATION} SET min_compatible = 2 WHERE version = 2")).await;
    let found = problem(&db.store().await).await;
    assert_eq!(found, SchemaProblem::TooNew { min_compatible: 2, supported: 1 });
    db.execute(&format!("DELETE FROM {MIGRATION}")).await;
    assert_eq!(problem(&db.store().await).await, SchemaProblem::TooOld { found: 0, needed: 1 });
}
