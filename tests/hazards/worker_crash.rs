//! Workers that die in the middle of a delivery (C35), as real processes.

use std::process::{Command, Stdio};
use std::time::Duration;

use idem_runtime::outbox::{Filter, KeyWindow, Policy, Review, Worker};
use idem_testkit::process::{self, Victim};
use idem_testkit::wait::{self, eventually};

use super::db::{Db, OUTBOX, Tx, open, seconds};
use crate::handler::{claim, run};
use crate::provider::{Mail, Scripted, delivered, mail, quick};

const DATABASE: &str = "IDEM_TESTS_DATABASE";
const MARK: &str = "IDEM_TESTS_MARK";
const PATIENCE: Duration = Duration::from_secs(30);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime")
}

/// Delivers everything but "deadly", which it marks and never ends.
async fn deliver_until_killed() {
    let store = open(&std::env::var(DATABASE).expect("given by the test")).await;
    let mark = std::env::var(MARK).expect("given by the test");
    let provider = Scripted::new(KeyWindow::Forever, move |call| {
        let mark = mark.clone();
        async move {
            if &call.payload[..] == br#"{"to":"deadly"}"# {
                std::fs::write(&mark, "called").expect("written");
                std::future::pending::<()>().await;
            }
            delivered()
        }
    });
    let policy = Policy { call_timeout: Duration::from_secs(600), ..quick() };
    Worker::new(store)
        .provider::<Mail>(provider)
        .policy(policy)
        .run(std::future::pending())
        .await
        .expect("runs");
}

#[test]
fn an_effect_in_whose_delivery_three_processes_die_goes_to_review_and_the_others_go_out() {
    // C35
    const NAME: &str = "an_effect_in_whose_delivery_three_processes_die_goes_to_review_and_the_others_go_out";
    let runtime = runtime();
    if process::role().is_some() {
        return runtime.block_on(deliver_until_killed());
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = runtime.block_on(async {
        let db = Db::fresh().await;
        let store = db.store().await;
        let body = run(&store, claim("k"), async |tx: &mut Tx| {
            tx.stage(mail("deadly")).await?;
            for n in 0..20 {
                tx.stage(mail(&n.to_string())).await?;
            }
            Ok(())
        });
        body.await.expect("runs");
        db
    });
    for death in 1..=3 {
        let mark = folder.path().join(death.to_string());
        let module = module_path!().split_once("::").expect("inside the test binary").1;
        let mut command: Command =
            process::this_test(&format!("{module}::{NAME}"), "worker").expect("own path");
        command.env(DATABASE, db.url()).env(MARK, &mark).stdout(Stdio::null());
        let mut worker = Victim::spawn(&mut command).expect("started");
        wait::until(PATIENCE, || mark.exists().then_some(())).expect("it is called");
        runtime.block_on(eventually("the others go out", PATIENCE, async || {
            db.in_state("delivered").await == 20
        }));
        worker.kill9().expect("killed");
        // Its lease runs out.
        let over = format!(
            "UPDATE {OUTBOX} SET lease_until = lease_until - {} WHERE state = 'pending'",
            seconds(86_400)
        );
        runtime.block_on(db.execute(&over));
    }
    runtime.block_on(async {
        let store = db.store().await;
        let provider = Scripted::reliable();
        super::worker::work_until::<Mail>(&store, provider.clone(), async || {
            db.in_state("review").await == 1
        })
        .await;
        assert!(provider.calls().is_empty(), "not sent a fourth time");
        let review = Review::new(&store);
        let item = review.list(&Filter::default()).await.expect("listed").pop().expect("the one");
        assert_eq!((item.crashes, item.attempts, item.maybe_sent), (3, 3, true));
        let tried = review.show(item.id).await.expect("shown").expect("there").tried;
        assert!(tried.iter().all(|tried| tried.result.as_deref() == Some("crashed")), "{tried:?}");
        drop((store, db));
    });
}

#[test]
fn a_process_that_dies_before_it_wrote_an_attempt_counts_for_nothing() {
    // C35: leased and not begun.
    let runtime = runtime();
    runtime.block_on(async {
        let db = Db::fresh().await;
        let store = db.store().await;
        let body = run(&store, claim("k"), async |tx: &mut Tx| {
            tx.stage(mail("a")).await?;
            Ok(())
        });
        body.await.expect("runs");
        let leased = super::db::some_lease();
        db.execute(&format!("UPDATE {OUTBOX} SET lease_token = {leased}, lease_until = due_at")).await;
        let provider = Scripted::reliable();
        super::worker::work_until::<Mail>(&store, provider.clone(), async || {
            db.in_state("delivered").await == 1
        })
        .await;
        assert_eq!(provider.calls()[0].attempt, 1);
        assert_eq!(db.count(&format!("SELECT count(*) FROM {OUTBOX} WHERE crashes = 0")).await, 1);
    });
}
