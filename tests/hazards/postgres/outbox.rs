//! What only Postgres can do to the outbox.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::PgStore;
use idem_runtime::outbox::{KeyWindow, Worker};
use idem_testkit::postgres::Postgres;
use idem_testkit::wait::eventually;
use tokio::sync::oneshot;

use super::db::{Db, Tx, pool};
use super::worker::{Running, work_until};
use crate::handler::{claim, run};
use crate::provider::{Mail, Scripted, delivered, mail, quick};

const PATIENCE: Duration = Duration::from_secs(60);

async fn stage(store: &PgStore, key: &str) {
    let body = run(store, claim(key), async |tx: &mut Tx| {
        tx.stage(mail(key)).await?;
        Ok(())
    });
    body.await.expect("runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_provider_hangs_no_session_of_the_worker_is_in_a_transaction() {
    // C39
    let db = Db::fresh().await;
    let store = db.store().await;
    for n in 0..4 {
        stage(&store, &n.to_string()).await;
    }
    let (hanging, held) = Scripted::held(KeyWindow::Forever, delivered);
    let worker = Running::start(Worker::new(&store).provider::<Mail>(hanging).policy(quick()));
    held.until_called(4).await;
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                   AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '200 ms'";
    for _ in 0..20 {
        assert_eq!(db.count(idle).await, 0);
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    held.go();
    worker.stop().await;
    assert_eq!(db.in_state("delivered").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_open_transaction_staged_before_another_that_committed_is_delivered_too() {
    // C40
    let db = Db::fresh().await;
    let store = db.store().await;
    let ((started, is_staged), (go, go_on)) = (oneshot::channel(), oneshot::channel::<()>());
    let open = tokio::spawn({
        let store = store.clone();
        async move {
            run(&store, claim("first"), async |tx: &mut Tx| {
                tx.stage(mail("first")).await?;
                started.send(()).expect("the test waits");
                go_on.await.expect("the test decides");
                Ok(())
            })
            .await
        }
    });
    is_staged.await.expect("staged");
    stage(&store, "second").await;
    let provider = Scripted::reliable();
    let worker = Running::start(Worker::new(db.store().await).provider::<Mail>(provider).policy(quick()));
    eventually("the second is delivered", PATIENCE, async || db.in_state("delivered").await == 1).await;
    go.send(()).expect("it waits");
    open.await.expect("no panic").expect("committed");
    eventually("the first is delivered", PATIENCE, async || db.in_state("delivered").await == 2).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_outlives_a_restart_of_the_database() {
    // C42
    let server = Arc::new(Postgres::builder().start().expect("a server of its own"));
    let store = PgStore::new(pool(&server.url("postgres"), 4));
    store.migrate().await.expect("migrated");
    let provider = Scripted::reliable();
    let worker = Running::start(Worker::new(&store).provider::<Mail>(provider.clone()).policy(quick()));
    for round in 0..3 {
        // It is at work when the first one is delivered.
        if round > 0 {
            let server = server.clone();
            let restarted = tokio::task::spawn_blocking(move || server.restart_immediate());
            restarted.await.expect("no panic").expect("up again");
        }
        let other = PgStore::new(pool(&server.url("postgres"), 1));
        stage(&other, &round.to_string()).await;
        eventually("it is delivered", PATIENCE, async || provider.calls().len() > round).await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outbox_works_where_statements_have_no_name() {
    let db = Db::fresh().await;
    let options: sqlx::postgres::PgConnectOptions = db.url().parse().expect("valid");
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(2);
    let store = PgStore::new(pool.connect_lazy_with(options.statement_cache_capacity(0)));
    for key in ["a", "b"] {
        let body = run(&store, claim(key), async |tx: &mut Tx| {
            tx.stage(mail(key)).await?;
            Ok(())
        });
        body.await.expect("runs");
    }
    work_until::<Mail>(&store, Scripted::reliable(), async || db.in_state("delivered").await == 2).await;
    let named: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''")
        .persistent(false)
        .fetch_one(store.pool())
        .await
        .expect("asked");
    assert_eq!(named, 0);
}
