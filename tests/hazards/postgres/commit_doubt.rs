//! A `COMMIT` whose answer does not come (C10, C10b). The proxy cuts, or goes silent, at each message of the wire in
//! turn. Whatever the caller is told must be true, and a retry with the key must end in exactly one effect.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_runtime::{Claim, Error, Older, PgStore, Retain, Store as _};
use idem_testkit::proxy::{Proxy, Trigger};

use super::db::{Db, INBOX, Tx, pool};
use super::race::effect;
use crate::handler::{Fail, claim, identity, run};

const SETTLE: Duration = Duration::from_millis(400);

struct Line {
    db: Db,
    proxy: Proxy,
}

impl Line {
    async fn new() -> Self {
        let db = Db::fresh().await;
        let proxy = Proxy::in_front_of(db.url()).expect("a proxy");
        Self { db, proxy }
    }

    /// A store behind the proxy, with its connection open and its statements prepared.
    async fn warm(&self, connections: u32) -> PgStore {
        let url = self.proxy.url(self.db.url()).expect("a url");
        let store = PgStore::new(pool(&url, connections))
            .with_settle_timeout(SETTLE)
            .with_idle_timeout(Duration::from_secs(1));
        run(&store, claim("warm"), async |tx| effect(tx, "warm").await).await.expect("runs");
        store
    }

    async fn effects(&self, key: &str) -> i64 {
        self.db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await
    }

    /// What the caller was told holds, and a retry of another process ends in `expected` effects.
    async fn assert_true(&self, key: &str, told: Result<bool, Error>, expected: i64) {
        self.proxy.heal();
        let other = self.db.store().await.with_claim_wait(Duration::from_secs(30));
        let claim = || takeable(key);
        match &told {
            Ok(_) => assert_eq!(self.effects(key).await, expected, "told that it is committed"),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        let retry = run(&other, claim(), async |tx| effect(tx, key).await).await.expect("a retry ends");
        assert!(told.is_err() || retry.is_replay(), "told that it is committed");
        assert_eq!(self.effects(key).await, expected);
        // A line that is silent keeps its sessions until it is given up.
        self.proxy.cut_all();
        self.db.assert_no_open_transaction().await;
    }
}

/// The same record is taken over once it has expired.
fn takeable(key: &str) -> Claim {
    claim(key).with_retain(Retain::For(Duration::from_secs(3_600))).with_older(Older::Run)
}

async fn apply(store: &PgStore, key: &str) -> Result<bool, Error> {
    apply_then(store, key, || {}).await
}

/// `arm` is called at the end of the body.
async fn apply_then(store: &PgStore, key: &str, arm: impl FnOnce()) -> Result<bool, Error> {
    let body = async |tx: &mut Tx| {
        effect(tx, key).await?;
        arm();
        Ok(())
    };
    let outcome = run(store, takeable(key), body);
    match tokio::time::timeout(Duration::from_secs(40), outcome).await.expect("in bounded time") {
        Ok(outcome) => Ok(!outcome.is_replay()),
        Err(Fail::Idem(error)) => Err(error),
        // The line broke inside the body.
        Err(Fail::Sql(error)) => Err(Error::store(None, true, error)),
        Err(Fail::Told) => unreachable!("nobody told it to"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Break {
    Reset,
    Close,
    Silence,
}

impl Break {
    fn arm(self, proxy: &Proxy, trigger: Trigger) {
        match self {
            Self::Reset => proxy.cut_on(trigger),
            Self::Close => proxy.close_on(trigger),
            Self::Silence => proxy.silence_on(trigger),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_breaks_at_each_message_in_turn() {
    let line = Line::new().await;
    for how in [Break::Reset, Break::Close] {
        for number in 1.. {
            let key = format!("{how:?}-{number}");
            let store = line.warm(1).await;
            how.arm(&line.proxy, Trigger::message(number));
            let told = apply(&store, &key).await;
            let fired = line.proxy.fired();
            line.assert_true(&key, told, 1).await;
            if !fired {
                assert!(number > 10, "there are more messages than {number}");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_goes_silent_at_each_message_in_turn() {
    // Most of the time is spent in waiting for answers that do not come: several at once.
    const AT_ONCE: usize = 12;
    for first in (1..).step_by(AT_ONCE) {
        let fired = (first..first + AT_ONCE).map(goes_silent_at);
        if futures_util::future::join_all(fired).await.contains(&false) {
            assert!(first > 10, "there are more messages");
            break;
        }
    }
}

/// Whether there was such a message.
async fn goes_silent_at(number: usize) -> bool {
    let line = Line::new().await;
    let store = line.warm(1).await.with_claim_wait(Duration::from_millis(300));
    line.proxy.silence_on(Trigger::message(number));
    let told = tokio::time::timeout(Duration::from_secs(4), apply(&store, "k")).await;
    let fired = line.proxy.fired();
    // Half of an extended query may have arrived, and a server in the middle of one has no idle timeout: the key is
    // free when the line is given up.
    drop(store);
    line.proxy.cut_all();
    // Without an answer the body was still waiting, and was cancelled.
    let told = told.unwrap_or_else(|_| Err(Error::store(None, true, "cancelled")));
    line.assert_true("k", told, 1).await;
    fired
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_happened_is_a_success_though_its_answer_was_lost() {
    // With a pool of 1: the broken connection gives its place to the one that settles.
    let line = Line::new().await;
    for how in [Break::Reset, Break::Close, Break::Silence] {
        let key = format!("{how:?}");
        let store = line.warm(1).await;
        let arm = || how.arm(&line.proxy, Trigger::answered_statement("COMMIT"));
        assert!(apply_then(&store, &key, arm).await.expect("it happened, and that was found out"));
        assert!(line.proxy.fired());
        line.assert_true(&key, Ok(true), 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_an_error_and_a_retry_runs() {
    let line = Line::new().await;
    for how in [Break::Reset, Break::Close, Break::Silence] {
        let key = format!("{how:?}");
        let store = line.warm(1).await;
        let arm = || how.arm(&line.proxy, Trigger::before_statement("COMMIT"));
        let error = apply_then(&store, &key, arm).await.expect_err("it did not happen");
        assert!(line.proxy.fired());
        assert!(error.is_retryable(), "{error:?}");
        line.assert_true(&key, Err(error), 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_in_doubt_is_settled_too() {
    let line = Line::new().await;
    for (n, trigger) in [(1, Trigger::answered_statement("COMMIT")), (0, Trigger::before_statement("COMMIT"))]
    {
        let key = format!("k{n}");
        let store = line.warm(1).await;
        assert!(apply(&store, &key).await.expect("runs"));
        line.db
            .execute(&format!("UPDATE {INBOX} SET expires_at = now() - interval '1 s' WHERE key = '{key}'"))
            .await;
        let told = apply_then(&store, &key, || line.proxy.cut_on(trigger)).await;
        assert!(line.proxy.fired());
        assert_eq!(told.is_ok(), n == 1, "{told:?}");
        line.assert_true(&key, told, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_claim_meanwhile_is_not_taken_for_ours() {
    let line = Line::new().await;
    let store = line.warm(1).await;
    // It waits on the key, and gets it when the first connection is cut, before or while ours is settled.
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let stranger = tokio::spawn({
        let store = line.db.store().await;
        async move {
            is_ready.await.expect("told");
            run(&store, takeable("k"), async |tx| effect(tx, "k").await).await
        }
    });
    let told = run(&store, takeable("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        ready.send(()).expect("the stranger waits");
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                        AND datname = current_database()";
        idem_testkit::wait::eventually(
            "the stranger waits for the key",
            Duration::from_secs(20),
            async || line.db.count(waiting).await == 1,
        )
        .await;
        line.proxy.cut_on(Trigger::before_statement("COMMIT"));
        Ok(())
    });
    let told = told.await.expect_err("the stranger has it").idem();
    assert!(line.proxy.fired() && told.is_retryable(), "{told:?}");
    assert!(!stranger.await.expect("no panic").expect("runs").is_replay());
    line.assert_true("k", Err(told), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_at_all_is_unconfirmed_and_a_retry_gives_the_outcome() {
    // C10b: also the connections that would settle it are silent.
    for silent_at in ["BEGIN", "INSERT INTO idem.inbox"] {
        let line = Line::new().await;
        let store = line.warm(2).await;
        let store = store.with_claim_wait(Duration::from_millis(300));
        let started = std::time::Instant::now();
        let told = run(&store, takeable("k"), async |tx: &mut Tx| {
            effect(tx, "k").await?;
            line.proxy.silence_on(Trigger::answered_statement("COMMIT"));
            line.proxy.silence_on(Trigger::before_statement(silent_at).every_connection());
            Ok(7)
        });
        let told = tokio::time::timeout(Duration::from_secs(20), told).await.expect("in bounded time");
        let error = told.expect_err("nothing is known").idem();
        assert!(matches!(error, Error::Unconfirmed { .. }) && error.is_retryable(), "{error:?}");
        assert!(error.to_string().contains("retry with the same key"));
        assert!(started.elapsed() < 10 * SETTLE, "{:?}", started.elapsed());
        line.proxy.heal();
        let retry =
            run(&line.db.store().await, takeable("k"), async |_| Ok(8)).await.expect("it is known now");
        assert!(retry.is_replay() && retry.into_inner() == 7);
        assert_eq!(line.effects("k").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_ended_while_it_commits_is_in_doubt_and_settled() {
    // The error answer of a dying session does not say whether its transaction has committed.
    let line = Line::new().await;
    let store = line.warm(2).await;
    line.db
        .execute(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER die AFTER INSERT ON named DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION die()",
        )
        .await;
    let told = run(&store, claim("k"), async |tx: &mut Tx| {
        sqlx::query("INSERT INTO named (name) VALUES ('k')").execute(&mut **tx).await?;
        Ok(())
    });
    let error = told.await.expect_err("the trigger ends the session before it commits").idem();
    assert!(matches!(error, Error::Store { retryable: true, .. }), "{error:?}");
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_an_answer_ends_soon_after_the_claim_wait() {
    let line = Line::new().await;
    for statement in ["BEGIN", "INSERT INTO idem.inbox"] {
        let store = line.warm(1).await.with_claim_wait(Duration::from_millis(300));
        line.proxy.silence_on(Trigger::before_statement(statement));
        let told = tokio::time::timeout(Duration::from_secs(8), apply(&store, "k")).await;
        let error = told.expect("in time").expect_err("no answer");
        assert!(line.proxy.fired() && error.is_retryable(), "{error:?}");
        // Its connection is not given to the next one, though it may still come to life.
        line.proxy.heal();
        let next = store.with_claim_wait(Duration::from_secs(10));
        assert!(apply(&next, statement).await.expect("on another connection"));
        line.proxy.cut_all();
    }
    line.assert_true("k", Err(Error::store(None, true, "no answer")), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_without_an_answer_does_not_hold_up_the_users_error() {
    let line = Line::new().await;
    let store = line.warm(1).await;
    let failed = run::<_, (), _>(&store, takeable("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        line.proxy.silence_on(Trigger::before_statement("ROLLBACK"));
        Err(Fail::Told)
    });
    let told = tokio::time::timeout(Duration::from_secs(8), failed).await.expect("in time");
    assert!(line.proxy.fired() && matches!(told, Err(Fail::Told)), "{told:?}");
    line.proxy.cut_all();
    line.assert_true("k", Err(Error::store(None, true, "the body failed")), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_still_goes_on_is_waited_for() {
    // C10: the line is gone while the server is still at the deferred work of the `COMMIT`. Whoever only reads then
    // finds no record.
    let line = Line::new().await;
    line.db
        .execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON named DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION slow()",
        )
        .await;
    for how in [Break::Reset, Break::Close] {
        let key = format!("{how:?}");
        let store = line.warm(1).await.with_settle_timeout(Duration::from_secs(20));
        let told = run(&store, takeable(&key), async |tx: &mut Tx| {
            effect(tx, &key).await?;
            sqlx::query("INSERT INTO named (name) VALUES ($1)").bind(key.clone()).execute(&mut **tx).await?;
            how.arm(&line.proxy, Trigger::forwarded_statement("COMMIT"));
            Ok(())
        });
        assert!(!told.await.expect("it happens, and that is found out").is_replay());
        assert!(line.proxy.fired());
        line.assert_true(&key, Ok(true), 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_the_first_connection_is_asked_again() {
    // C10: as one that is starting again.
    let line = Line::new().await;
    let store = line.warm(1).await.with_settle_timeout(Duration::from_secs(20));
    let told = run(&store, takeable("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        line.proxy.cut_on(Trigger::answered_statement("COMMIT"));
        line.proxy.cut_on(Trigger::before_statement("BEGIN"));
        Ok(())
    });
    assert!(!told.await.expect("it happened, and that was found out").is_replay());
    assert!(line.proxy.fired());
    line.assert_true("k", Ok(true), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_ended_after_it_committed_is_a_success() {
    let db = Db::fresh().await;
    let (_, server) = db.url().split_once('@').expect("a user in the url");
    let (server, _) = server.split_once('/').expect("a database in the url");
    let line = dying_at_the_commit(server.parse().expect("an address"));
    let url = format!("{}?sslmode=disable", db.url().replace(server, &line.to_string()));
    let store = PgStore::new(pool(&url, 1));
    let told = run(&store, claim("k"), async |tx: &mut Tx| effect(tx, "k").await).await;
    assert!(!told.expect("it happened, and that was found out").is_replay());
    assert!(run(&store, claim("k"), async |_| Ok(())).await.expect("replays").is_replay());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
}

/// A line to `server` on which the answer to `COMMIT` is that the session is being ended.
fn dying_at_the_commit(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("accepted");
            let server = TcpStream::connect(server).expect("connected");
            let committing = Arc::new(AtomicBool::new(false));
            let question = (
                client.try_clone().expect("a handle"),
                server.try_clone().expect("a handle"),
                Arc::clone(&committing),
            );
            std::thread::spawn(move || ask(question.0, question.1, &question.2));
            std::thread::spawn(move || answer(server, client, &committing));
        }
    });
    address
}

fn ask(mut client: TcpStream, mut server: TcpStream, committing: &AtomicBool) {
    let mut question = vec![0; 1 << 16];
    while let Ok(length @ 1..) = client.read(&mut question) {
        let question = &question[..length];
        if question.windows(6).any(|word| word == b"COMMIT") {
            committing.store(true, Ordering::SeqCst);
        }
        if server.write_all(question).is_err() {
            break;
        }
    }
    _ = server.shutdown(Shutdown::Both);
}

fn answer(mut server: TcpStream, mut client: TcpStream, committing: &AtomicBool) {
    let (mut head, mut completed) = ([0; 5], 0);
    while server.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length - 4];
        if server.read_exact(&mut body).is_err() {
            break;
        }
        completed += usize::from(head[0] == b'C' && committing.load(Ordering::SeqCst));
        if completed == 1 {
            let fatal = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0";
            let length = u32::try_from(fatal.len() + 4).expect("short").to_be_bytes();
            _ = client.write_all(&[&b"E"[..], &length, fatal].concat());
            break;
        }
        if client.write_all(&[&head[..], &body].concat()).is_err() {
            break;
        }
    }
    _ = client.shutdown(Shutdown::Both);
    _ = server.shutdown(Shutdown::Both);
}
