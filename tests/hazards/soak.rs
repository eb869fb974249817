//! All of it together, for longer: handlers stage, workers are killed, the database is restarted, and the provider fails
//! in every way. At the end the books must agree. `cargo xtask soak` runs it at full size.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use idem_runtime::PgStore;
use idem_runtime::outbox::{HttpProvider, KeyWindow, Policy, Worker};
use idem_testkit::postgres::Postgres;
use idem_testkit::process::{self, Moments, Victim};
use idem_testkit::provider::{Answer, Behaviour, CountingProvider, mix};
use idem_testkit::wait::eventually;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::db::{Tx, open, pool};
use crate::handler::{Fail, claim, run};
use crate::provider::{Mail, mail};

const DATABASE: &str = "IDEM_TESTS_DATABASE";
const PROVIDER: &str = "IDEM_TESTS_PROVIDER";
const PROVIDER_BY_KEY: &str = "IDEM_TESTS_PROVIDER_BY_KEY";

const WORKERS: u64 = 3;
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
const LONGEST_FLIGHT: Duration = Duration::from_secs(2);
/// How late the provider may act on a request whose client has gone: well within the flight.
const LATE: Duration = Duration::from_millis(500);

struct Size {
    handlers: usize,
    /// How many handlers are running at once, each with this pause after it.
    tasks: usize,
    pause: Duration,
    kills_of_each_worker: usize,
    longest_life: Duration,
    restarts: usize,
    /// How long it may take, after the load, until nothing is to be done.
    patience: Duration,
}

impl Size {
    /// `SOAK=full`, else one that every run of the tests can bear.
    fn from_environment() -> Self {
        match std::env::var("SOAK").as_deref() {
            Ok("full") => Self {
                handlers: 20_000,
                tasks: 16,
                pause: Duration::from_millis(20),
                kills_of_each_worker: 20,
                longest_life: Duration::from_secs(6),
                restarts: 2,
                patience: Duration::from_secs(900),
            },
            _ => Self {
                handlers: 300,
                tasks: 8,
                pause: Duration::from_millis(100),
                kills_of_each_worker: 3,
                longest_life: Duration::from_secs(2),
                restarts: 1,
                patience: Duration::from_secs(120),
            },
        }
    }
}

/// The same moments and the same behaviours for the same `SOAK_SEED`, though not the same interleaving.
fn seed() -> u64 {
    match std::env::var("SOAK_SEED") {
        Ok(seed) => seed.parse().expect("SOAK_SEED is a number"),
        Err(_) => u64::from(std::process::id()),
    }
}

#[test]
fn soak() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(async {
        if process::role().is_some() {
            work().await;
        } else {
            let seed = seed();
            say(format_args!("seed {seed}"));
            soak_at(&Size::from_environment(), seed).await;
        }
    });
}

async fn soak_at(size: &Size, seed: u64) {
    let begun = Instant::now();
    let server = Arc::new(Postgres::builder().start().expect("a server of its own"));
    let url = server.url("postgres");
    let store = open(&url).await;
    store.migrate().await.expect("migrated");
    let provider = CountingProvider::start().await.expect("a provider starts");
    provider.behave(mix(seed, failures()));

    let mut stops = Vec::new();
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let (stop, stopped) = mpsc::channel::<()>();
        stops.push(stop);
        let moments = Moments::seeded(seed.wrapping_add(1 + number), size.longest_life);
        let moments: Vec<_> = moments.take(size.kills_of_each_worker).collect();
        let command = worker_command(&url, &provider);
        workers.push(std::thread::spawn(move || kill_and_restart(command, moments, &stopped)));
    }
    let done = Arc::new(AtomicUsize::new(0));
    let load = load(&PgStore::new(pool(&url, 8)), size, &done);
    let thresholds = Moments::seeded(seed, Duration::from_secs(1)).take(size.restarts);
    for (nth, fraction) in thresholds.enumerate() {
        let part = (nth as f64 + fraction.as_secs_f64()) / size.restarts as f64;
        let enough = (part * size.handlers as f64) as usize;
        eventually("the load goes on", size.patience, async || done.load(Ordering::SeqCst) >= enough).await;
        // One worker is told that its credentials are wrong, and pauses.
        provider.next([Behaviour::refuse(401)]);
        let server = Arc::clone(&server);
        let restarted = tokio::task::spawn_blocking(move || server.restart_immediate());
        restarted.await.expect("no panic").expect("up again");
    }
    let staged: HashSet<String> = load.join_all().await.into_iter().flatten().collect();
    say(format_args!("{} handlers after {:.1?}", size.handlers, begun.elapsed()));

    // Connections from before a restart are dead.
    let admin = pool(&url, 2);
    let is_settled = tokio::time::timeout(
        size.patience,
        eventually("nothing is to be done", size.patience * 2, async || {
            let open = "SELECT NOT EXISTS (SELECT FROM idem.outbox WHERE state IN ('pending', 'accepted'))";
            sqlx::query_scalar(open).fetch_one(&admin).await.expect("asked")
        }),
    );
    let is_settled = is_settled.await.is_ok();
    drop(stops);
    let kills: usize = workers.into_iter().map(|worker| worker.join().expect("it stops in order")).sum();

    let rows: Vec<(String, String, i32)> =
        sqlx::query_as("SELECT effect_key, state, crashes FROM idem.outbox")
            .fetch_all(&admin)
            .await
            .expect("asked");
    let crashed = rows.iter().filter(|(_, _, crashes)| *crashes > 0).count();
    let states: HashMap<String, String> = rows.into_iter().map(|(key, state, _)| (key, state)).collect();
    let books = Books { staged, states, done: provider.acts().into_iter().map(|act| act.key).collect() };
    say(format_args!(
        "{books}; {kills} kills, {} restarts, {crashed} effects whose worker died during a call; {} requests, \
         {} questions; {:.1?}",
        size.restarts,
        provider.requests().len(),
        provider.questions().len(),
        begun.elapsed(),
    ));
    assert!(kills > 0, "no worker was killed: seed {seed}");
    books.assert_that_they_agree(seed);
    assert_eq!(provider.done_twice(), Vec::<String>::new(), "seed {seed}");
    assert!(is_settled, "something is still to be done after {:?}: seed {seed}", size.patience);
}

/// Four of five requests go well. Missing is what no caller can make good: acting, and answering that it is refused.
fn failures() -> Vec<(u32, Behaviour)> {
    vec![
        (800, Behaviour::Act),
        (20, Behaviour::ResetBefore),
        (20, Behaviour::ResetAfter),
        (20, Behaviour::refuse(503)),
        (20, Behaviour::act_then(500)),
        (20, Behaviour::too_many(1)),
        (20, Behaviour::refuse(422)),
        (25, Behaviour::Accept { act_after: Some(LATE) }),
        (10, Behaviour::HangBefore),
        (10, Behaviour::HangAfter),
        (10, Behaviour::ActAfterGone(LATE)),
        (10, Behaviour::ActThen(Answer::status(200).body("{\"reference\":\"r\"}").broken_off())),
        (5, Behaviour::refuse(409)),
        (5, Behaviour::refuse(404)),
        (5, Behaviour::act_then(404)),
    ]
}

/// Runs the handlers, each until it has its answer: the keys of what they have staged.
fn load(store: &PgStore, size: &Size, done: &Arc<AtomicUsize>) -> JoinSet<Vec<String>> {
    let mut tasks = JoinSet::new();
    for task in 0..size.tasks {
        let (store, done, pause) = (store.clone(), Arc::clone(done), size.pause);
        let numbers = (task..size.handlers).step_by(size.tasks);
        tasks.spawn(async move {
            let mut staged = Vec::new();
            for number in numbers {
                staged.extend(handle(&store, number, pause).await);
                done.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(pause).await;
            }
            staged
        });
    }
    tasks
}

/// One handler, which stages one or two effects. Every tenth fails at first, and must leave nothing.
async fn handle(store: &PgStore, number: usize, pause: Duration) -> Vec<String> {
    let key = format!("h{number}");
    let mut fails = number.is_multiple_of(10);
    loop {
        let tried = run(store, claim(&key), async |tx: &mut Tx| {
            let mut keys = Vec::new();
            for nth in 0..=number % 2 + usize::from(fails) {
                keys.push(tx.stage(mail(&format!("{key}-{nth}"))).await?.to_string());
            }
            if fails { Err(Fail::Told) } else { Ok(keys) }
        });
        match tried.await {
            Ok(outcome) => return outcome.into_inner(),
            Err(Fail::Told) => fails = false,
            Err(Fail::Idem(error)) => {
                assert!(error.is_retryable(), "{error:?}");
                tokio::time::sleep(pause).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn worker_command(database: &str, provider: &CountingProvider) -> Command {
    let module = module_path!().split_once("::").expect("inside the test binary").1;
    let mut command = process::this_test(&format!("{module}::soak"), "worker").expect("own path");
    command
        .env(DATABASE, database)
        .env(PROVIDER, provider.url())
        .env(PROVIDER_BY_KEY, provider.url_by_key())
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    command
}

/// Kills a worker at each of the moments of its life, then lets it run until it is to stop. How many were killed.
fn kill_and_restart(mut command: Command, moments: Vec<Duration>, stopped: &mpsc::Receiver<()>) -> usize {
    let mut kills = 0;
    for moment in moments {
        let mut worker = Victim::spawn(&mut command).expect("started");
        assert_eq!(worker.ended_within(moment), None, "a worker ends only if it is told to");
        worker.kill9().expect("killed");
        kills += 1;
    }
    let mut worker = Victim::spawn(&mut command).expect("started");
    // It answers when the other end is dropped.
    _ = stopped.recv();
    drop(worker.child().stdin.take());
    let ended = worker.ended_within(Duration::from_secs(30));
    assert!(ended.is_some_and(|status| status.success()), "it ended so: {ended:?}");
    kills
}

/// A worker, until its standard input ends.
async fn work() {
    let given = |name| std::env::var(name).expect("given by the test");
    let (stop, stopping) = watch::channel(false);
    std::thread::spawn(move || {
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.send_replace(true);
    });
    let provider = HttpProvider::builder(given(PROVIDER))
        .reconcile_by_key(given(PROVIDER_BY_KEY))
        .reference_at("/reference")
        .key_window(KeyWindow::Forever)
        .longest_flight(LONGEST_FLIGHT)
        .ask_after(LATE)
        .allow_private_targets()
        .build()
        .expect("a valid provider");
    let policy = Policy {
        call_timeout: CALL_TIMEOUT,
        shortest_backoff: Duration::from_millis(100),
        longest_backoff: Duration::from_secs(2),
        poll_interval: Duration::from_millis(200),
        ..Policy::default()
    };
    let store = open(&given(DATABASE)).await;
    loop {
        let mut stopping = stopping.clone();
        let worker = Worker::new(&store).provider::<Mail>(provider.clone()).policy(policy.clone());
        let stopped = async move { _ = stopping.wait_for(|stop| *stop).await };
        match worker.run(stopped).await {
            Ok(()) => return,
            // Started while the database was away.
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What was staged, what the outbox says of it, and what the provider did; all by effect key.
struct Books {
    staged: HashSet<String>,
    states: HashMap<String, String>,
    done: HashSet<String>,
}

impl Books {
    fn count(&self, state: &str) -> usize {
        self.states.values().filter(|it| *it == state).count()
    }

    fn pending(&self) -> usize {
        self.count("pending") + self.count("accepted")
    }

    fn assert_that_they_agree(&self, seed: u64) {
        let in_outbox: HashSet<String> = self.states.keys().cloned().collect();
        assert_eq!(self.staged, in_outbox, "what was committed is there, and nothing else: seed {seed}");
        let [delivered, rejected, review, abandoned] =
            ["delivered", "rejected", "review", "abandoned"].map(|state| self.count(state));
        assert_eq!(self.staged.len(), delivered + rejected + review + self.pending() + abandoned);
        assert!(delivered <= self.done.len(), "seed {seed}");
        assert!(self.done.len() <= delivered + review + self.pending(), "seed {seed}");
        for key in &self.done {
            let state = self.states.get(key).map(String::as_str);
            let may_be_done = matches!(state, Some("delivered" | "review" | "pending" | "accepted"));
            assert!(may_be_done, "{key} was done and is {state:?}: seed {seed}");
        }
        for (key, state) in &self.states {
            assert!(state != "delivered" || self.done.contains(key), "{key} was not done: seed {seed}");
        }
    }
}

impl Display for Books {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "staged {} = delivered {} + rejected {} + review {} + pending {} + abandoned {}; done by the provider {}",
            self.staged.len(),
            self.count("delivered"),
            self.count("rejected"),
            self.count("review"),
            self.pending(),
            self.count("abandoned"),
            self.done.len(),
        )
    }
}

fn say(text: impl Display) {
    writeln!(std::io::stderr(), "soak: {text}").expect("standard error is open");
}
