//! Real processes that are killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use idem_testkit::process::{self, Moments, Victim};

use super::db::{Db, Store, Tx, open};
use super::race::effect;
use crate::handler::{Fail, claim, run};

const DATABASE: &str = "IDEM_TESTS_DATABASE";
const DELIVERIES: usize = 1_000;

/// The test `name` of this file as a child, on this database.
fn child(name: &str, role: &str, database: &str) -> Command {
    let module = module_path!().split_once("::").expect("inside the test binary").1;
    let mut command = process::this_test(&format!("{module}::{name}"), role).expect("own path");
    command.env(DATABASE, database).stdout(Stdio::null());
    command
}

async fn given() -> Store {
    open(&std::env::var(DATABASE).expect("given by the test")).await
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime")
}

#[test]
fn two_processes_killed_at_random_apply_each_of_a_thousand_deliveries_once() {
    // C7
    const NAME: &str = "two_processes_killed_at_random_apply_each_of_a_thousand_deliveries_once";
    let runtime = runtime();
    if let Some(role) = process::role() {
        return runtime.block_on(consume(&role));
    }
    let db = runtime.block_on(Db::fresh());
    let consumers = ["forward", "backward"].map(|role| {
        let seed = u64::from(std::process::id()) + role.len() as u64;
        // Until their end they are restarted; the moments are those of a process that starts and works.
        let moments: Vec<_> = Moments::seeded(seed, Duration::from_millis(600)).take(8).collect();
        let url = db.url().to_owned();
        std::thread::spawn(move || {
            let again = || Ok(child(NAME, role, &url));
            process::killed_and_restarted(again, moments, Duration::from_secs(120)).map(|kills| (seed, kills))
        })
    });
    for consumer in consumers {
        let (seed, kills) = consumer.join().expect("no panic").expect("it ends at last");
        assert!(kills > 0, "seed {seed}");
    }
    runtime.block_on(async {
        let effects = db.count("SELECT count(*) FROM effect").await;
        let keys = db.count("SELECT count(DISTINCT key) FROM effect").await;
        assert_eq!((effects, keys), (DELIVERIES as i64, DELIVERIES as i64));
        db.assert_no_open_transaction().await;
        drop(db);
    });
}

/// Every delivery, in this process's order, until each has its answer.
async fn consume(role: &str) {
    let store = given().await;
    let mut deliveries: Vec<usize> = (0..DELIVERIES).collect();
    if role == "backward" {
        deliveries.reverse();
    }
    for n in deliveries {
        let key = format!("k{n}");
        loop {
            match run(&store, claim(&key), async |tx: &mut Tx| effect(tx, &key).await).await {
                Ok(_) => break,
                Err(Fail::Idem(error)) if error.is_retryable() => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

#[test]
fn a_process_killed_in_the_body_leaves_nothing_and_the_next_delivery_runs_at_once() {
    // C8
    const NAME: &str = "a_process_killed_in_the_body_leaves_nothing_and_the_next_delivery_runs_at_once";
    let runtime = runtime();
    if process::role().is_some() {
        return runtime.block_on(hang_in_the_body());
    }
    let db = runtime.block_on(Db::fresh());
    let mut victim = Victim::spawn(child(NAME, "victim", db.url()).stderr(Stdio::piped())).expect("started");
    let lines = BufReader::new(victim.child().stderr.take().expect("piped")).lines();
    let said = lines.map_while(Result::ok).any(|line| line.contains("in the body"));
    assert!(said, "the child says that it is in the body");
    victim.kill9().expect("killed");
    runtime.block_on(async {
        let store = db.store().await;
        let next = run(&store, claim("k"), async |tx: &mut Tx| effect(tx, "k").await);
        let next = tokio::time::timeout(Duration::from_secs(8), next).await.expect("at once");
        assert!(!next.expect("runs").is_replay());
        assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
        drop((store, db));
    });
}

async fn hang_in_the_body() {
    let store = given().await;
    let body = run::<_, (), _>(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        writeln!(std::io::stderr(), "in the body").expect("the test reads");
        std::future::pending().await
    });
    body.await.expect("never");
}
