//! A database that is not ready is found before the first claim, and the error says what to run.

use idem_runtime::{Error, SchemaProblem, Store as _};

use super::db::{Db, INBOX, MIGRATION, OUTBOX, Store, Tx};
use crate::handler::{claim, identity, run};
use crate::provider::mail;

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
    assert_eq!(db.count(&format!("SELECT count(*) FROM {MIGRATION}")).await, 2, "one for each version");
}

#[tokio::test]
async fn a_database_of_the_first_version_is_upgraded_and_keeps_its_records() {
    let db = Db::fresh().await;
    run(&db.store().await, claim("k"), async |_| Ok(())).await.expect("runs");
    let prefix = OUTBOX.trim_end_matches("outbox");
    for table in ["outbox_attempt", "outbox", "order_head", "review_log", "provider"] {
        db.execute(&format!("DROP TABLE {prefix}{table}")).await;
    }
    db.execute(&format!("DELETE FROM {MIGRATION} WHERE version = 2")).await;
    let store = db.store().await;
    assert_eq!(problem(&store).await, SchemaProblem::TooOld { found: 1, needed: 2 });
    store.migrate().await.expect("upgraded");
    assert!(run(&store, claim("k"), async |_| Ok(())).await.expect("recorded").is_replay());
    let staged = run(&store, claim("l"), async |tx: &mut Tx| {
        tx.stage(mail("a")).await?;
        Ok(())
    });
    staged.await.expect("staged");
}

#[tokio::test]
async fn an_older_schema_and_one_too_new_are_refused_and_an_additive_newer_one_is_not() {
    let db = Db::fresh().await;
    db.execute(&format!("INSERT INTO {MIGRATION} (version, min_compatible) VALUES (3, 1)")).await;
    db.execute(&format!("ALTER TABLE {INBOX} ADD COLUMN later text")).await;
    let store = db.store().await;
    run(&store, claim("k"), async |_| Ok(())).await.expect("a rolling deploy goes on");
    store.migrate().await.expect("left alone");
    db.execute(&format!("UPDATE {MIGRATION} SET min_compatible = 3 WHERE version = 3")).await;
    let found = problem(&db.store().await).await;
    assert_eq!(found, SchemaProblem::TooNew { min_compatible: 3, supported: 2 });
    db.execute(&format!("DELETE FROM {MIGRATION}")).await;
    assert_eq!(problem(&db.store().await).await, SchemaProblem::TooOld { found: 0, needed: 2 });
}
