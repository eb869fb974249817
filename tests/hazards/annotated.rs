//! The attribute on a real database: what it generates does what the storage trait promises.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use idem_runtime::{Error, Identity, Outcome, Override, Scope, Store as _, Verified, idempotent};
use idem_testkit::cancel::at_every_poll;
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::db::{Db, INBOX, Store, Tx};
use super::race::effect;
use crate::handler::Fail;

#[derive(Clone, Scope)]
struct Tenant(String);

struct Caller {
    tenant: Tenant,
}

fn caller(tenant: &str) -> Caller {
    Caller { tenant: Tenant(tenant.to_owned()) }
}

#[derive(Clone)]
struct Approve {
    operation_key: String,
    invoice: String,
    amount: i64,
    note: String,
}

fn approve_100(key: &str) -> Approve {
    Approve { operation_key: key.to_owned(), invoice: "INV-1".to_owned(), amount: 100, note: String::new() }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Approved {
    invoice: String,
    remaining: Option<i64>,
}

#[idempotent(
    operation = "invoice.approve",
    key = "{cmd.operation_key}",
    scope = "{caller.tenant}",
    fingerprint(cmd { operation_key: _, invoice, amount, note: _ }),
)]
async fn approve(tx: &mut Tx, caller: &Caller, mut cmd: Approve) -> Result<Approved, Fail> {
    effect(tx, &cmd.operation_key).await?;
    match cmd.note.as_str() {
        "fail" => return Err(Fail::Told),
        "rollback" => {
            sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await?;
        }
        "panic" => panic!("told to"),
        _ => {}
    }
    // C20: neither a change nor a move of the argument changes what was claimed.
    cmd.operation_key.push_str("-changed");
    cmd.amount += 1;
    let invoice = cmd.invoice;
    Ok(Approved { invoice, remaining: Some(cmd.amount) })
}

async fn effects(db: &Db, key: &str) -> i64 {
    db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_deliveries_at_once_apply_it_once() {
    // C1, C16, C20
    let db = Db::fresh().await;
    let store = db.store().await;
    let barrier = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for n in 0..50 {
        let (store, barrier) = (store.clone(), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            // A waived field is no difference (C23).
            let cmd = Approve { note: format!("attempt {n}"), ..approve_100("k") };
            approve(&store, &caller("acme"), cmd).await
        });
    }
    let outcomes: Vec<Outcome<Approved>> =
        tasks.join_all().await.into_iter().map(|o| o.expect("no error leaks out")).collect();
    assert_eq!(outcomes.iter().filter(|o| o.is_replay()).count(), 49);
    let expected = Approved { invoice: "INV-1".to_owned(), remaining: Some(101) };
    assert!(outcomes.into_iter().all(|o| o.into_inner() == expected));
    assert_eq!(effects(&db, "k").await, 1);
    let identity = Identity::new("invoice.approve", &Verified::vouch("acme"), "k").expect("valid");
    assert!(store.find(&identity).await.expect("asked").is_some(), "under the given operation (C17)");
}

#[tokio::test]
async fn a_material_change_is_a_mismatch_and_another_tenant_is_another_record() {
    // C17, C24, C25
    let db = Db::fresh().await;
    let store = db.store().await;
    assert!(!approve(&store, &caller("acme"), approve_100("k")).await.expect("applied").is_replay());
    let other = Approve { amount: 101, ..approve_100("k") };
    let error = approve(&store, &caller("acme"), other.clone()).await.expect_err("another request").idem();
    assert!(matches!(error, Error::Mismatch { .. }) && !error.is_retryable());
    assert!(!approve(&store, &caller("else"), other).await.expect("applied").is_replay());
    assert_eq!(effects(&db, "k").await, 2);
}

#[tokio::test]
async fn an_error_and_a_panic_leave_nothing() {
    // C12
    let db = Db::fresh().await;
    let store = db.store().await;
    let told = |note: &str| Approve { note: note.to_owned(), ..approve_100("k") };
    assert!(matches!(approve(&store, &caller("acme"), told("fail")).await, Err(Fail::Told)));
    let error = approve(&store, &caller("acme"), told("rollback")).await.expect_err("no success").idem();
    assert!(matches!(error, Error::TransactionEnded { .. }), "{error:?}");
    let caller = caller("acme");
    let panicking = approve(&store, &caller, told("panic"));
    std::panic::AssertUnwindSafe(panicking).catch_unwind().await.expect_err("goes on");
    assert!(!approve(&store, &caller, told("")).await.expect("applied").is_replay());
    assert_eq!(effects(&db, "k").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_at_every_poll_it_has_happened_or_has_not() {
    // C9
    let db = Db::fresh().await;
    let store = db.store().await;
    let make_store = store.clone();
    let handler =
        async move |n: usize| approve(&make_store, &caller("acme"), approve_100(&format!("k{n}"))).await;
    at_every_poll(handler, async |n, _| {
        let key = format!("k{n}");
        approve(&store, &caller("acme"), approve_100(&key)).await.expect("applied or replayed");
        assert_eq!(effects(&db, &key).await, 1);
    })
    .await;
    db.assert_no_open_transaction().await;
}

struct Event {
    source: String,
    id: String,
    time: Option<SystemTime>,
    rate: f64,
}

fn event(source: &str, id: &str) -> Event {
    Event { source: source.to_owned(), id: id.to_owned(), time: None, rate: 1.0 }
}

#[idempotent(
    operation = "event.apply",
    key = "{event.source}/{event.id}",
    scope = constant("events"),
    fingerprint(event.rate),
    retain = "1h",
    remember = "2h",
    occurred_at = event.time,
)]
async fn on_event(tx: &mut Tx, event: &Event) -> Result<(), Fail> {
    effect(tx, "event").await
}

#[tokio::test]
async fn keys_of_several_parts_never_meet() {
    // C18, C19
    let db = Db::fresh().await;
    let store = db.store().await;
    for (source, id) in [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("é/", "c"), ("é", "/c"), ("a", "B/c")]
    {
        let outcome = on_event(&store, &event(source, id)).await.expect("applied");
        assert!(!outcome.is_replay(), "{source} {id}");
        assert!(on_event(&store, &event(source, id)).await.expect("replayed").is_replay());
    }
    for (source, id) in [("", "c"), ("a", "")] {
        let error = on_event(&store, &event(source, id)).await.expect_err("empty").idem();
        assert!(matches!(error, Error::InvalidIdentity { part: "key", .. }), "{error:?}");
    }
    assert_eq!(effects(&db, "event").await, 6);
}

#[tokio::test]
async fn what_is_not_valid_touches_nothing() {
    // C26
    let db = Db::fresh().await;
    let store = db.store().await;
    let nan = Event { rate: f64::NAN, ..event("s", "k") };
    let error = on_event(&store, &nan).await.expect_err("no fingerprint").idem();
    assert!(matches!(error, Error::InvalidFingerprint { ref label, .. } if label == "rate"), "{error:?}");
    let long = event("s", &"x".repeat(1025));
    assert!(matches!(
        on_event(&store, &long).await.expect_err("too long").idem(),
        Error::InvalidIdentity { .. }
    ));
    assert_eq!(db.count(&format!("SELECT count(*) FROM {INBOX}")).await, 0);
    assert!(!on_event(&store, &event("s", "k")).await.expect("the key is unused").is_replay());
}

#[tokio::test]
async fn an_old_event_is_refused_until_a_person_lets_it_through() {
    // C29, C30: the service was off, and the record is gone before and after the first sweep.
    let db = Db::fresh().await;
    let store = db.store().await;
    let old = Event { time: Some(SystemTime::now() - Duration::from_secs(3 * 3_600)), ..event("s", "k") };
    let error = on_event(&store, &old).await.expect_err("beyond the horizon").idem();
    assert!(matches!(error, Error::BeyondHorizon { .. }), "{error:?}");
    let person = store.overriding(Override::new("ticket", "ops").beyond_horizon());
    assert!(!on_event(&person, &old).await.expect("applied").is_replay());
    assert!(on_event(&store, &old).await.expect("replayed").is_replay());
    let fresh = Event { time: Some(SystemTime::now()), ..event("s", "k2") };
    assert!(!on_event(&store, &fresh).await.expect("applied").is_replay());
}

struct Counter {
    store: Store,
}

impl Counter {
    #[idempotent(operation = "count.once", key = n, scope = global, fingerprint(none), concurrent = reject)]
    async fn count(&self, tx: &mut Tx, n: u32) -> Result<u32, Fail> {
        effect(tx, "count").await?;
        // C21: inside itself it would wait for its own end.
        match Box::pin(self.count(&self.store, n)).await {
            Err(Fail::Idem(Error::Nested { .. })) => Ok(n),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_method_that_calls_itself_with_its_own_key_is_nested() {
    let db = Db::fresh().await;
    let counter = Counter { store: db.store().await };
    for replay in [false, true] {
        let outcome = Box::pin(counter.count(&counter.store, 7)).await.expect("applied");
        assert_eq!((outcome.is_replay(), outcome.into_inner()), (replay, 7));
    }
    assert_eq!(effects(&db, "count").await, 1);
}

#[idempotent(operation = "odd.answer", key = n, scope = global, fingerprint(none))]
async fn odd(tx: &mut Tx, n: u32, answer: Option<Option<u8>>) -> Result<Option<Option<u8>>, Fail> {
    effect(tx, "odd").await?;
    Ok(answer)
}

#[tokio::test]
async fn an_answer_that_would_not_read_back_leaves_nothing() {
    // C13
    let db = Db::fresh().await;
    let store = db.store().await;
    let error = odd(&store, 7, Some(None)).await.expect_err("JSON has no such value").idem();
    assert!(matches!(error, Error::OutcomeRejected { .. }), "{error:?}");
    assert_eq!(effects(&db, "odd").await, 0);
    assert_eq!(db.count(&format!("SELECT count(*) FROM {INBOX}")).await, 0);
    for replay in [false, true] {
        assert_eq!(odd(&store, 7, Some(Some(1))).await.expect("applied").is_replay(), replay);
    }
    assert_eq!(effects(&db, "odd").await, 1);
}
