//! Effects of which it is not known whether they happened (C34, C36, C43): never sent again without proof, and what a late
//! answer or a person settles.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::outbox::{
    DecisionError, Delivery, Filter, KeyWindow, Policy, Reconciled, Review, State, Worker,
};
use idem_testkit::wait::eventually;

use super::db::{Db, OUTBOX, seconds};
use super::worker::{Running, stage, work_until};
use crate::provider::{Mail, Scripted, delivered, mail, not_sent, quick, rejected, unknown};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_is_sent_again_inside_the_window_only() {
    // C34: once the window is over it is asked about, and never sent again by itself.
    const HOUR: i64 = 3_600;
    const MINUTE: Duration = Duration::from_secs(60);
    let window = KeyWindow::AtLeast(Duration::from_secs(24 * 3_600));
    for (passes, sent) in [(HOUR, 2), (23 * HOUR, 2), (24 * HOUR, 1), (48 * HOUR, 1)] {
        let db = Db::fresh().await;
        stage(&db.store().await, "k", mail("a")).await;
        let provider = Scripted::new(window, {
            let first = AtomicBool::new(true);
            move |_| {
                let first = first.swap(false, Ordering::SeqCst);
                async move { if first { unknown() } else { delivered() } }
            }
        })
        .asked(|_| Reconciled::Happened { reference: Some("asked".to_owned()) });
        let slow = Policy { shortest_backoff: MINUTE, longest_backoff: MINUTE, ..quick() };
        let worker =
            Running::start(Worker::new(db.store().await).provider::<Mail>(provider.clone()).policy(slow));
        eventually("the first try is written", PATIENCE, async || {
            db.count(&format!("SELECT count(*) FROM {OUTBOX} WHERE maybe_sent AND lease_token IS NULL")).await
                == 1
        })
        .await;
        worker.stop().await;
        // The worker is off meanwhile.
        db.let_pass(passes).await;
        work_until::<Mail>(&db.store().await, provider.clone(), async || db.in_state("delivered").await == 1)
            .await;
        assert_eq!((provider.calls().len(), provider.questions().len()), (sent, 2 - sent), "{passes}");
    }
}

/// Nothing more is tried while the test looks.
fn not_sent_for_an_hour() -> Delivery {
    Delivery::NotSent { retry_after: Some(Duration::from_secs(3_600)), error: "too many requests".into() }
}

/// Runs tries with these answers, then lets a day pass; what may have been sent at first must not be sent again.
async fn tries_then_a_day(answers: &'static [fn() -> Delivery], asked: fn() -> Reconciled) -> (Db, Scripted) {
    let db = Db::fresh().await;
    stage(&db.store().await, "k", mail("a")).await;
    let provider = Scripted::new(KeyWindow::AtLeast(Duration::from_secs(3_600)), {
        let tries = AtomicU32::new(0);
        move |_| {
            let answer = answers.get(tries.fetch_add(1, Ordering::SeqCst) as usize);
            async move { answer.expect("not sent more often")() }
        }
    })
    .asked(move |_| asked());
    let attempted =
        format!("SELECT count(*) FROM {OUTBOX} WHERE attempts = {} AND lease_token IS NULL", answers.len());
    work_until::<Mail>(&db.store().await, provider.clone(), async || db.count(&attempted).await == 1).await;
    db.let_pass(86_400).await;
    (db, provider)
}

#[tokio::test(flavor = "multi_thread")]
async fn tries_that_were_not_sent_and_refusals_do_not_make_the_first_one_forgotten() {
    // C34: also when the tries in between were "not sent", and when a later one is refused though the first had acted.
    for answers in [&[unknown as fn() -> _, not_sent, not_sent_for_an_hour][..], &[unknown, rejected]] {
        let (db, provider) = tries_then_a_day(answers, || Reconciled::Unsupported).await;
        let store = db.store().await;
        work_until::<Mail>(&store, provider.clone(), async || db.in_state("review").await == 1).await;
        assert_eq!(provider.calls().len(), answers.len(), "never sent again");
        assert_eq!(provider.questions().len(), 1);
    }
    let (db, provider) =
        tries_then_a_day(&[unknown, rejected], || Reconciled::Happened { reference: None }).await;
    work_until::<Mail>(&db.store().await, provider, async || db.in_state("delivered").await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_first_try_is_final_and_a_person_can_have_it_sent_again() {
    let db = Db::fresh().await;
    let store = db.store().await;
    stage(&store, "k", mail("a")).await;
    let refusing = Scripted::new(KeyWindow::Forever, async |_| rejected());
    work_until::<Mail>(&store, refusing, async || db.in_state("rejected").await == 1).await;
    let review = Review::new(&store);
    let filter = Filter { state: State::Rejected, ..Filter::default() };
    let item = review.list(&filter).await.expect("listed").pop().expect("the one");
    assert!(item.last_error.as_deref().is_some_and(|error| error.contains("no such account")), "{item:?}");
    review.retry(item.id, item.version, "ann", "the account is there now", true).await.expect("decided");
    let provider = Scripted::reliable();
    work_until::<Mail>(&store, provider.clone(), async || db.in_state("delivered").await == 1).await;
    assert_ne!(provider.calls()[0].effect_key, item.effect_key, "a new key was asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_lost_its_lease_does_not_overwrite_what_the_next_one_found() {
    // C36
    for (late, expected) in [(delivered as fn() -> Delivery, "first"), (rejected, "first")] {
        let db = Db::fresh().await;
        let store = db.store().await;
        stage(&store, "k", mail("a")).await;
        let (slow, held) = Scripted::held(KeyWindow::Forever, late);
        let busy = Policy { concurrency: 1, ..quick() };
        let first = Running::start(Worker::new(&store).provider::<Mail>(slow).policy(busy));
        held.until_called(1).await;
        db.execute(&format!("UPDATE {OUTBOX} SET lease_until = lease_until - {}", seconds(3_600))).await;
        let quick_one = Scripted::new(KeyWindow::Forever, async |_| Delivery::Delivered {
            reference: Some("first".to_owned()),
        });
        work_until::<Mail>(&db.store().await, quick_one, async || db.in_state("delivered").await == 1).await;
        held.go();
        first.stop().await;

        let review = Review::new(&store);
        let filter = Filter { state: State::Delivered, ..Filter::default() };
        let item = review.list(&filter).await.expect("listed").pop().expect("the one");
        assert_eq!(item.reference.as_deref(), Some(expected));
        let shown = review.show(item.id).await.expect("shown").expect("there");
        let results: Vec<_> = shown.tried.iter().filter_map(|tried| tried.result.clone()).collect();
        assert_eq!(results.len(), 2, "the evidence has both: {results:?}");
        assert_eq!((item.attempts, item.crashes), (2, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_delivered_settles_what_waits_or_is_in_review() {
    // C43
    let db = Db::fresh().await;
    let store = db.store().await;
    stage(&store, "k", mail("a")).await;
    let (slow, held) = Scripted::held(KeyWindow::None, delivered);
    let busy = Policy { concurrency: 1, ..quick() };
    let first = Running::start(Worker::new(&store).provider::<Mail>(slow).policy(busy));
    held.until_called(1).await;
    db.let_pass(3_600).await;
    // It may have been sent, its key is not known again, and nobody can be asked.
    let other = Scripted::new(KeyWindow::None, async |_| panic!("must not be sent"));
    work_until::<Mail>(&db.store().await, other, async || db.in_state("review").await == 1).await;
    let review = Review::new(&store);
    let seen = review.list(&Filter::default()).await.expect("listed").pop().expect("the one");
    held.go();
    first.stop().await;
    assert_eq!(db.in_state("delivered").await, 1);
    let stale = review.retry(seen.id, seen.version, "ann", "not in their list", false).await;
    assert!(matches!(stale, Err(DecisionError::Stale { state: State::Delivered, .. })), "{stale:?}");
    let log = review.show(seen.id).await.expect("shown").expect("there").decisions;
    assert!(log.len() == 1 && !log[0].won, "the loser is in the log: {log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_decisions_one_wins_and_the_other_is_told() {
    // C43: at once, and on an old page.
    let db = Db::fresh().await;
    let store = db.store().await;
    stage(&store, "k", mail("a")).await;
    let puzzled = || Scripted::new(KeyWindow::Forever, async |_| Delivery::Review { error: "404".into() });
    work_until::<Mail>(&store, puzzled(), async || db.in_state("review").await == 1).await;
    let review = Review::new(&store);
    let old = review.list(&Filter::default()).await.expect("listed").pop().expect("the one");
    // What was answered is not on its way any more, by the longest flight.
    db.let_pass(3_600).await;
    let (one, other) = tokio::join!(
        review.retry(old.id, old.version, "ann", "it did not", false),
        review.abandon(old.id, old.version, "bob", "forget it"),
    );
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    let lost = one.and(other).expect_err("one of them");
    assert!(matches!(lost, DecisionError::Stale { .. }) && lost.to_string().contains("look again"), "{lost}");
    let log = review.show(old.id).await.expect("shown").expect("there").decisions;
    assert_eq!((log.len(), log.iter().filter(|decision| decision.won).count()), (2, 1));

    if db.in_state("pending").await == 1 {
        work_until::<Mail>(&store, puzzled(), async || db.in_state("review").await == 1).await;
        let again = review.delivered(old.id, old.version, "bob", "an old page", None).await;
        assert!(matches!(again, Err(DecisionError::Stale { state: State::Review, .. })), "{again:?}");
    }
    let none = review.abandon(old.id + 1_000, 0, "bob", "").await;
    assert!(matches!(none, Err(DecisionError::NotFound { .. })), "{none:?}");
}
