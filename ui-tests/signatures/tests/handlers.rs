//! What the handlers of every signature do: the body runs once, a redelivery gets the outcome, a failed run leaves
//! nothing.
#![deny(warnings)]

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use idem_runtime::{Error, Outcome, Retain, Store, idempotent, operations};
use idem_signatures::attributes::{self, *};
use idem_signatures::free::*;
use idem_signatures::methods::*;
use idem_signatures::options::*;
use idem_signatures::{is_send, results};
use idem_ui_tests::{ApproveError, Approved, MemoryStore, MyTx, TenantId, approve, caller};

/// Calls twice: applied, then replayed with the same value, and the effects are those of one run.
macro_rules! once {
    ($store:ident, $call:expr) => {{
        let before = $store.effects().len();
        let first = is_send($call).await.expect("the first run");
        let effects = $store.effects().len();
        assert!(!first.is_replay() && effects > before);
        let second = $call.await.expect("the redelivery");
        assert!(second.is_replay());
        assert_eq!($store.effects().len(), effects);
        assert_eq!(second.into_inner(), first.as_ref().map(Clone::clone).into_inner());
        first.into_inner()
    }};
}

fn service() -> Service {
    Service { name: "billing".into(), tenant: TenantId("acme".into()), calls: 0 }
}

#[tokio::test]
async fn free_functions_run_once() {
    let (store, me) = (MemoryStore::new(), caller("acme"));
    once!(store, template_and_pattern(&store, &me, approve("a")));
    once!(store, no_other_parameter_is_used(&store, 1));
    once!(store, pattern_parameters(&store, Json(approve("a")), (me.clone(), 1), String::new()));
    let mut counter = 0;
    assert_eq!(once!(store, mutable_parameters(&store, &me, approve("a"), &mut counter)).invoice, 8);
    assert_eq!(counter, 1);
    once!(store, mutable_reference(&store, &me, &mut approve("a")));
    assert_eq!(once!(store, named_lifetimes(&store, &me, "a", "b")), "ab");
    once!(store, generics(&store, &me.tenant, "source", 1, vec![1, 2]));
    assert_eq!(is_send(any_transaction::<_, 3>(&store, 1)).await.expect("runs").into_inner(), 3);
    assert_eq!(once!(store, send_but_not_sync(&store, Cell::new(1))), 2);
}

#[tokio::test]
async fn the_identity_is_the_one_before_the_body_consumed_its_arguments() {
    let store = MemoryStore::new();
    let cmd = || {
        let approve = approve("a/b");
        let (operation_key, invoice, amount) = (approve.operation_key, approve.invoice, approve.amount);
        Box::new(Inner { operation_key, invoice, amount, note: None })
    };
    once!(store, consumed(&store, Arc::from("acme"), cmd()));
    once!(store, mutable_parameters(&store, &caller("acme"), approve("k"), &mut 0));
    assert_eq!(store.identities(), [r#"consumed "acme" "a%2Fb/7""#, r#"mutable_parameters "acme" "k""#]);
}

#[tokio::test]
async fn methods_run_once() {
    let (store, me) = (MemoryStore::new(), caller("acme"));
    once!(store, service().by_ref(&store, approve("a")));
    let mut service_ = service();
    assert_eq!(once!(store, service_.by_mut(&store, approve("a"))), 1);
    assert_eq!(once!(store, service().by_value(&store, approve("a"))), "billing!");
    once!(store, Arc::new(service()).by_arc(&store, approve("a")));
    once!(store, Service::associated(&store, &me, approve("a")));
    once!(store, service().approve(&store, &me, approve("a")));
    let behind_dyn: Box<dyn DynApproves> = Box::new(service());
    once!(store, behind_dyn.approve_dyn(&store, approve("dyn")));
    once!(store, <Service as Cancels<u8>>::cancel(&store, &me, 1));
}

#[tokio::test]
async fn every_return_type_is_wrapped() {
    let store = MemoryStore::new();
    once!(store, results::any_error(&store, approve("a")));
    once!(store, results::swapped(&store, approve("a")));
    once!(store, results::fewer(&store, approve("a")));
    once!(store, results::without(&store, approve("a")));
    once!(store, results::fewer_called_result(&store, approve("a")));
    once!(store, results::projected(&store, approve("a"), 5_u8));
}

#[tokio::test]
async fn handlers_beside_attributes_and_in_macros_run_once() {
    let (store, me) = (MemoryStore::new(), caller("acme"));
    once!(store, documented(&store, &me, approve("a")));
    once!(store, conditional(&store, 1));
    once!(store, instrumented_above(&store, 1));
    once!(store, instrumented_below(&store, 1));
    once!(store, instrumented_with_fields(&store, 1));
    once!(store, in_macro(&store, &me, approve("a")));
    once!(store, in_macro_by_reference(&store, &me, &approve("a")));
    once!(store, first_of_two(&store, 1));
    once!(store, second_of_two(&store, 1));
    assert!(!attributes::local(&store, 1).await.expect("runs"));
    assert!(attributes::local(&store, 1).await.expect("replays"));
}

#[tokio::test]
async fn every_form_of_a_store_is_taken() {
    let store = MemoryStore::new();
    let shared: Arc<dyn Store<Tx = MyTx>> = Arc::new(store.clone());
    assert!(!conditional(&shared, 1).await.expect("runs").is_replay());
    assert!(conditional(&*shared, 1).await.expect("replays").is_replay());
    assert!(conditional(&Box::new(store.clone()), 1).await.expect("replays").is_replay());
    let as_value = conditional;
    assert!(as_value(&store, 1).await.expect("replays").is_replay());
}

#[tokio::test]
async fn a_failed_run_leaves_nothing_and_the_next_delivery_runs() {
    let (store, me) = (MemoryStore::new(), caller("acme"));
    let mut nothing = approve("a");
    nothing.amount = 0;
    let failed = template_and_pattern(&store, &me, nothing).await;
    assert!(matches!(failed, Err(ApproveError::Refused("nothing to approve"))));
    let failed = results::nothing_but_an_error(&store, approve("a")).await;
    assert!(matches!(failed, Err(ApproveError::Refused("always"))));
    assert_eq!((store.effects().len(), store.identities().len(), store.open()), (0, 0, 0));
    once!(store, template_and_pattern(&store, &me, approve("a")));
}

#[tokio::test]
async fn another_request_under_the_key_is_a_mismatch() {
    let (store, me) = (MemoryStore::new(), caller("acme"));
    once!(store, template_and_pattern(&store, &me, approve("a")));
    let mut waived = approve("a");
    waived.note = Some("waived".into());
    assert!(template_and_pattern(&store, &me, waived).await.expect("the same request").is_replay());
    let mut other = approve("a");
    other.amount += 1;
    let error = template_and_pattern(&store, &me, other).await.expect_err("another request");
    assert!(matches!(error, ApproveError::Idem(Error::Mismatch { .. })));
    assert!(!template_and_pattern(&store, &caller("other"), approve("a")).await.expect("runs").is_replay());
}

#[tokio::test]
async fn a_panic_rolls_back_and_goes_on() {
    #[idempotent(key = id, scope = global, fingerprint(none))]
    async fn panics(tx: &mut MyTx, id: u64) -> Result<(), ApproveError> {
        tx.apply("lost");
        assert!(id > 0, "no id");
        Ok(())
    }
    let store = MemoryStore::new();
    let task = tokio::spawn({
        let store = store.clone();
        async move { panics(&store, 0).await }
    });
    assert!(task.await.expect_err("panicked").is_panic());
    assert_eq!((store.effects().len(), store.identities().len(), store.open()), (0, 0, 0));
}

#[tokio::test]
async fn a_dropped_future_rolls_back() {
    #[idempotent(key = id, scope = global, fingerprint(none))]
    async fn waits(tx: &mut MyTx, id: u64) -> Result<(), ApproveError> {
        tx.apply("lost");
        std::future::pending::<()>().await;
        Ok(())
    }
    let store = MemoryStore::new();
    {
        let mut future = pin!(waits(&store, 1));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(future.as_mut().poll(&mut context), Poll::Pending));
        assert_eq!(store.open(), 1);
    }
    assert_eq!((store.effects().len(), store.identities().len(), store.open()), (0, 0, 0));
}

#[tokio::test]
async fn an_outcome_that_json_does_not_give_back_rolls_back() {
    #[idempotent(key = id, scope = global, fingerprint(none))]
    async fn not_a_number(tx: &mut MyTx, id: u64) -> Result<f64, ApproveError> {
        tx.apply("lost");
        Ok(f64::NAN)
    }
    let store = MemoryStore::new();
    let error = not_a_number(&store, 1).await.expect_err("refused");
    assert!(matches!(error, ApproveError::Idem(Error::OutcomeRejected { .. })));
    assert_eq!((store.effects().len(), store.identities().len(), store.open()), (0, 0, 0));
}

#[tokio::test]
async fn options_reach_the_claim() {
    let (store, me) = (MemoryStore::new(), caller("acme"));
    let event = |id: u64, kind: &str, time| Event {
        id: (id, "x".into()),
        r#type: kind.into(),
        time,
        data: approve("a"),
    };
    assert!(!every_option(&store, &me, event(1, "paid/late", None)).await.expect("runs").is_replay());
    assert!(
        !every_option(&store, &me, event(1, "paid", Some(SystemTime::now())))
            .await
            .expect("runs")
            .is_replay()
    );
    assert_eq!(store.identities(), [r#"event.seen "acme" "1/paid""#, r#"event.seen "acme" "1/paid%2Flate""#]);
    let old = SystemTime::now() - Duration::from_secs(31 * 86_400);
    let error = every_option(&store, &me, event(2, "paid", Some(old))).await.expect_err("too old");
    assert!(matches!(error, ApproveError::Idem(Error::BeyondHorizon { .. })));

    assert!(expressions(&store, &me, approve("b"), 5).await.is_ok());
    assert!(run_when_older(&store, &me, approve("b")).await.is_ok());
    assert_eq!(renamed_runtime(&store, 4).await.expect("runs"), Outcome::Applied(4));
    assert!(store.identities().contains(&r#"renamed_runtime "global" "-4""#.to_owned()));
    let account = Account::authorized(12);
    assert!(composed_scope(&store, account, &caller("a/b"), 1).await.is_ok());
    assert!(store.identities().contains(&r#"composed_scope "12/a%2Fb" "1""#.to_owned()));
}

#[tokio::test]
async fn an_expression_may_return_early_and_then_nothing_was_claimed() {
    let store = MemoryStore::new();
    let mut cmd = approve("a");
    let error = question_marks(&store, &caller("acme"), cmd.clone()).await.expect_err("no note");
    assert!(matches!(error, ApproveError::Refused("no note")));
    cmd.note = Some("n".into());
    let error = question_marks(&store, &caller("x"), cmd.clone()).await.expect_err("not yours");
    assert!(matches!(error, ApproveError::Refused("not yours")));
    assert!(store.identities().is_empty());
    assert!(question_marks(&store, &caller("acme"), cmd).await.is_ok());
}

#[tokio::test]
async fn an_empty_part_is_refused_before_the_claim() {
    let (store, me) = (MemoryStore::new(), caller("acme"));
    let error = template_and_pattern(&store, &me, approve("")).await.expect_err("no key");
    assert!(matches!(error, ApproveError::Idem(Error::InvalidIdentity { part: "key", .. })));
    let error = template_and_pattern(&store, &caller(""), approve("a")).await.expect_err("no scope");
    assert!(matches!(error, ApproveError::Idem(Error::InvalidIdentity { part: "scope", .. })));
    assert!(store.identities().is_empty());
}

#[test]
fn handlers_are_registered_with_their_place() {
    let info = operations().find(|info| info.name == "event.seen").expect("registered");
    assert_eq!(info.retain, Retain::For(Duration::from_secs(36 * 3_600)));
    assert_eq!(info.remember, Retain::For(Duration::from_secs(30 * 86_400)));
    assert!(info.file.ends_with("options.rs"));
    let source = include_str!("../src/options.rs");
    let attribute = source.lines().position(|line| line == "#[idempotent(").expect("there") + 1;
    assert_eq!(info.line as usize, attribute);
    for name in
        ["generics", "any_transaction", "cancels.cancel", "own.first", "own.second", "inner", "projected"]
    {
        assert_eq!(operations().filter(|info| info.name == name).count(), 1, "{name}");
    }
}

#[test]
fn outcomes_are_values() {
    assert_eq!(Outcome::Applied(Approved { invoice: 1 }).into_inner(), Approved { invoice: 1 });
}
