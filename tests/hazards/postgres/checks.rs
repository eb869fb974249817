//! Connections that do not come about, the start-up check, and which errors a retry may mend.

use std::time::{Duration, Instant};

use idem_runtime::{Error, PgStore};
use idem_testkit::postgres::Postgres;

use super::db::{Db, pool};
use super::race::apply;
use crate::handler::{claim, run};

#[tokio::test(flavor = "multi_thread")]
async fn rights_and_the_unique_key_are_checked() {
    let db = Db::fresh().await;
    let role = format!("limited_{}", uuid::Uuid::new_v4().simple());
    db.execute(&format!("CREATE ROLE {role} LOGIN; GRANT CONNECT ON DATABASE {} TO {role}", database(&db)))
        .await;
    let url = {
        let rest = db.url().split_once('@').expect("a user in the url").1;
        format!("postgres://{role}@{rest}")
    };
    let store = PgStore::new(pool(&url, 1));
    let grants =
        ["USAGE ON SCHEMA idem", "SELECT ON idem.migration", "SELECT, INSERT, UPDATE, DELETE ON idem.inbox"];
    for grant in grants {
        let error = store.check().await.expect_err("no rights").to_string();
        assert!(error.contains(grant), "{error}");
        db.execute(&format!("GRANT {grant} TO {role}")).await;
    }
    store.check().await.expect("enough rights");
    for right in ["SELECT", "INSERT", "UPDATE"] {
        db.execute(&format!("REVOKE {right} ON idem.inbox FROM {role}")).await;
        let error = store.check().await.expect_err(right).to_string();
        assert!(error.contains("ON idem.inbox"), "{error}");
        db.execute(&format!("GRANT {right} ON idem.inbox TO {role}")).await;
    }
    run(&store, claim("k"), async |_| Ok(())).await.expect("runs");
    let error = store.migrate().await;
    error.expect("nothing to do, with the rights that a handler has");
    // Whoever sends effects needs more than whoever handles.
    let worker = || idem_runtime::outbox::Worker::new(&store).run(async {});
    let error = worker().await.expect_err("no rights").to_string();
    db.execute(&error[error.find("GRANT").expect("the statement")..]).await;
    worker().await.expect("enough rights");
    db.execute("ALTER TABLE idem.inbox DROP CONSTRAINT inbox_pkey").await;
    let error = db.store().await.check().await.expect_err("no key").to_string();
    assert!(error.contains("ADD PRIMARY KEY (operation, scope, key)"), "{error}");
    db.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

fn database(db: &Db) -> String {
    db.url().rsplit('/').next().expect("a name").split('?').next().expect("a name").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_a_typed_error_that_can_be_retried() {
    let refused = PgStore::connect("postgres://nobody@127.0.0.1:1/none").await.expect_err("refused");
    assert!(matches!(refused, Error::Store { retryable: true, .. }), "{refused:?}");
    let invalid = PgStore::connect("mysql://nobody@127.0.0.1/none").await.expect_err("no such url");
    assert!(!invalid.is_retryable(), "{invalid:?}");
    // A store on a pool that is not connected yet.
    let lazy = PgStore::new(pool("postgres://nobody@127.0.0.1:1/none", 1))
        .with_claim_wait(Duration::from_millis(300));
    let error = run(&lazy, claim("k"), async |_| Ok(())).await.expect_err("refused").idem();
    assert!(error.is_retryable() && error.to_string().contains("refused"), "{error:?}");
    // One whose connections are all in use is busy.
    let db = Db::fresh().await;
    let store = db.store_of(1).with_claim_wait(Duration::from_millis(300));
    store.check().await.expect("ready");
    let _in_use = store.pool().acquire().await.expect("the only one");
    let error = run(&store, claim("k"), async |_| Ok(())).await.expect_err("in use").idem();
    assert!(matches!(error, Error::Busy { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_a_typed_error_within_the_connect_timeout() {
    // It accepts the connection, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = silent.local_addr().expect("bound").port();
    let started = Instant::now();
    let error =
        PgStore::connect(&format!("postgres://nobody@127.0.0.1:{port}/none")).await.expect_err("no answer");
    assert!(error.is_retryable() && error.to_string().contains("127.0.0.1"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_a_typed_error_that_can_be_retried() {
    let server = Postgres::builder().fsync(false).start().expect("a server of its own");
    let error =
        PgStore::connect(&server.password_url("wrong", "postgres")).await.expect_err("wrong password");
    assert!(error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("password"), "{error}");
    PgStore::connect(&server.password_url("correct", "postgres")).await.expect("the right one");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_does_not_decide_who_runs_is_no_unique_key() {
    let db = Db::fresh().await;
    db.execute("ALTER TABLE idem.inbox DROP CONSTRAINT inbox_pkey").await;
    for index in [
        "CREATE INDEX other ON idem.inbox (operation, scope, key)",
        "CREATE UNIQUE INDEX other ON idem.inbox (operation, scope)",
        "CREATE UNIQUE INDEX other ON idem.inbox (operation, scope, key, claim_token)",
        "CREATE UNIQUE INDEX other ON idem.inbox (operation, scope, key) WHERE expires_at IS NULL",
        "ALTER TABLE idem.inbox ADD CONSTRAINT other UNIQUE (operation, scope, key) DEFERRABLE",
        "CREATE UNIQUE INDEX other ON idem.inbox (operation, scope, key);
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idem.other'::regclass",
    ] {
        db.execute(index).await;
        let error = db.store().await.check().await.expect_err(index).to_string();
        assert!(error.contains("ADD PRIMARY KEY (operation, scope, key)"), "{index}: {error}");
        db.execute("ALTER TABLE idem.inbox DROP CONSTRAINT IF EXISTS other; DROP INDEX IF EXISTS idem.other")
            .await;
    }
    db.execute("CREATE UNIQUE INDEX other ON idem.inbox (key, operation, scope)").await;
    db.store().await.check().await.expect("any order of the columns will do");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_leaves_no_warning_in_the_servers_log() {
    let server = Postgres::builder().fsync(false).start().expect("a server of its own");
    let store = PgStore::new(pool(&server.url("postgres"), 1));
    store.migrate().await.expect("migrated");
    for replay in [false, true] {
        assert_eq!(run(&store, claim("k"), async |_| Ok(())).await.expect("runs").is_replay(), replay);
    }
    store.pool().close().await;
    let log = server.log();
    assert!(!log.contains("WARNING"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_succeed_later_is_retryable_and_nothing_else_is() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE TABLE raised (code text);
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN RAISE EXCEPTION USING ERRCODE = (SELECT code FROM raised); END';
         CREATE TRIGGER fail BEFORE INSERT ON idem.inbox FOR EACH ROW EXECUTE FUNCTION fail()",
    )
    .await;
    let store = db.store().await;
    for (code, expected) in [
        ("08006", true),
        ("28000", true),
        ("53100", true),
        ("57P03", true),
        ("58030", true),
        ("55P03", true),
        ("25006", true),
        ("23514", false),
        ("42501", false),
        ("XX001", false),
    ] {
        db.execute(&format!("DELETE FROM raised; INSERT INTO raised VALUES ('{code}')")).await;
        let error = run(&store, claim(code), async |_| Ok(())).await.expect_err(code).idem();
        assert!(matches!(error, Error::Store { retryable, .. } if retryable == expected), "{error:?}");
    }
}

/// An inbox that a crash empties.
#[tokio::test(flavor = "multi_thread")]
async fn an_unlogged_inbox_is_refused() {
    let db = Db::fresh().await;
    db.execute("ALTER TABLE idem.inbox SET UNLOGGED").await;
    let r = db.store().await.check().await;
    assert!(r.is_err(), "records vanish in a crash, effects do not");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_that_is_no_key_is_refused() {
    for index in [
        "CREATE UNIQUE INDEX ON idem.inbox (operation, scope) INCLUDE (key)",
        "CREATE UNIQUE INDEX ON idem.inbox (operation, scope, key, lower(key))",
    ] {
        let db = Db::fresh().await;
        db.execute("ALTER TABLE idem.inbox DROP CONSTRAINT inbox_pkey").await;
        db.execute(index).await;
        let r = db.store().await.check().await;
        let claimed = apply(&db.store().await, "k").await;
        assert!(r.is_err(), "{index}: {claimed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_without_the_right_to_it_says_which_right() {
    let db = Db::bare().await;
    db.execute("DROP ROLE IF EXISTS \"idem \"\"plain\"; CREATE ROLE \"idem \"\"plain\"").await;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).after_connect(|conn, _| {
        Box::pin(async { sqlx::raw_sql("SET ROLE \"idem \"\"plain\"").execute(conn).await.map(drop) })
    });
    let plain = PgStore::new(pool.connect_lazy(db.url()).expect("a valid url"));
    for (have, grant) in [
        ("SELECT", "GRANT CREATE ON DATABASE"),
        ("CREATE SCHEMA idem", "GRANT USAGE, CREATE ON SCHEMA idem TO \"idem \"\"plain\""),
        (
            "CREATE TABLE idem.migration (
                version int PRIMARY KEY, min_compatible int NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
            "GRANT SELECT, INSERT ON idem.migration",
        ),
    ] {
        db.execute(have).await;
        let error = plain.migrate().await.expect_err("refused");
        assert!(matches!(error, Error::Schema { .. }) && error.to_string().contains(grant), "{error}");
        let grant = error.to_string();
        db.execute(&grant[grant.find("GRANT").expect("the statement")..]).await;
    }
    plain.migrate().await.expect("what it said to run was enough");
    db.execute("DROP OWNED BY \"idem \"\"plain\"; DROP ROLE \"idem \"\"plain\"").await;
}
