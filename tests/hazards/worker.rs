//! What the worker makes of staged effects (C33, C37, C38, C41 to C43c): none lost, none held up, one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::outbox::{
    Call, Delivery, Filter, KeyWindow, Policy, Provider, Reconciled, Review, Worker, status,
};
use idem_runtime::{Effect, Error};
use idem_testkit::wait::eventually;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::db::{Db, OUTBOX, Store, Tx, seconds};
use crate::handler::{Fail, claim, run};
use crate::provider::{InLine, Mail, MailWithSubject, Scripted, delivered, mail, quick, unknown};

const PATIENCE: Duration = Duration::from_secs(30);

/// A worker in the background, until it is told to stop.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(worker.run(async { stopped.await.unwrap_or_default() }));
        Self { stop, task }
    }

    pub async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.expect("no panic").expect("it ends in order");
    }
}

pub async fn work_until<E: Effect>(
    store: &Store,
    provider: impl Provider<E>,
    done: impl AsyncFnMut() -> bool,
) {
    let worker = Running::start(Worker::new(store).provider::<E>(provider).policy(quick()));
    eventually("the worker has done it", PATIENCE, done).await;
    worker.stop().await;
}

pub async fn stage<E: Effect + Clone>(store: &Store, key: &str, effect: E) {
    let body = run(store, claim(key), async |tx: &mut Tx| {
        tx.stage(effect.clone()).await?;
        Ok(())
    });
    body.await.expect("runs");
}

impl Db {
    /// As if so much time had passed since the effects were tried.
    pub async fn let_pass(&self, time: i64) {
        let by = seconds(time);
        self.execute(&format!(
            "UPDATE {OUTBOX} SET first_attempt_at = first_attempt_at - {by}, last_deadline = last_deadline - {by},
                                 due_at = due_at - {by}, lease_until = lease_until - {by}, created_at = created_at - {by}"
        ))
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_attempts_by_two_workers_and_two_versions_are_one_key_and_the_same_bytes() {
    // C33
    let db = Db::fresh().await;
    stage(&db.store().await, "k", mail("a")).await;
    let tries = Arc::new(AtomicU32::new(0));
    let provider = Scripted::new(KeyWindow::Forever, {
        let tries = tries.clone();
        move |_| {
            let tries = tries.clone();
            async move { if tries.fetch_add(1, Ordering::SeqCst) < 9 { unknown() } else { delivered() } }
        }
    });
    work_until::<Mail>(&db.store().await, provider.clone(), async || tries.load(Ordering::SeqCst) >= 4).await;
    work_until::<MailWithSubject>(&db.store().await, provider.clone(), async || {
        db.in_state("delivered").await == 1
    })
    .await;
    let calls = provider.calls();
    assert!(calls.len() == 10, "{}", calls.len());
    for (n, call) in calls.iter().enumerate() {
        assert_eq!(call.effect_key, calls[0].effect_key);
        assert_eq!(&call.payload[..], br#"{"to":"a"}"#);
        assert_eq!((call.attempt, &*call.content_type), (n as u32 + 1, "application/json"));
        assert_eq!(call.first_attempt_at, calls[0].first_attempt_at);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_effect_that_always_fails_holds_up_no_other_and_is_not_tried_without_end() {
    // C37
    let db = Db::fresh().await;
    let store = db.store().await;
    let body = run(&store, claim("k"), async |tx: &mut Tx| {
        for n in 0..1_000 {
            tx.stage(mail(&n.to_string())).await?;
        }
        Ok(())
    });
    body.await.expect("runs");
    let provider = Scripted::new(KeyWindow::Forever, async |call| {
        if &call.payload[..] == br#"{"to":"0"}"# { unknown() } else { delivered() }
    });
    let worker = Running::start(Worker::new(&store).provider::<Mail>(provider.clone()));
    eventually("the others are delivered", PATIENCE, async || db.in_state("delivered").await == 999).await;
    worker.stop().await;
    let failed = provider.calls().len() - 999;
    assert!((1..=6).contains(&failed), "by the default backoff it was tried {failed} times");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_decoded_goes_to_review_with_its_bytes_and_the_batch_goes_on() {
    // C38
    let db = Db::fresh().await;
    let store = db.store().await;
    for key in ["a", "b", "c"] {
        stage(&store, key, mail(key)).await;
    }
    db.execute(&format!("UPDATE {OUTBOX} SET payload = {} WHERE key = 'b'", super::db::BYTES)).await;
    let provider = Scripted::reliable();
    work_until::<Mail>(&store, provider.clone(), async || db.in_state("delivered").await == 2).await;
    let item = Review::new(&store).list(&Filter::default()).await.expect("listed").pop().expect("the one");
    assert_eq!((&item.payload[..], item.attempts, item.maybe_sent), (&b"\xff{"[..], 0, false));
    assert!(item.last_error.is_some_and(|error| error.contains("cannot be read as `mail`")));
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_of_one_order_key_are_delivered_in_the_order_of_commits_and_hold_up_no_others() {
    // C41
    let db = Db::fresh().await;
    let store = db.store().await;
    let in_line = |line: &str, number| InLine { line: line.to_owned(), number };
    for number in 0..10 {
        stage(&store, &format!("a{number}"), in_line("a", number)).await;
        stage(&store, &format!("b{number}"), in_line("b", number)).await;
    }
    let fails = Arc::new(AtomicBool::new(true));
    let provider = Scripted::new(KeyWindow::Forever, {
        let fails = fails.clone();
        move |call: Call| {
            let held = fails.load(Ordering::SeqCst) && &call.payload[..] == br#"{"line":"a","number":3}"#;
            async move { if held { unknown() } else { delivered() } }
        }
    });
    let worker = Running::start(Worker::new(&store).provider::<InLine>(provider.clone()).policy(quick()));
    eventually("the other line is through", PATIENCE, async || db.in_state("delivered").await == 13).await;
    assert_eq!(db.in_state("pending").await, 7, "the head and the six behind it");
    fails.store(false, Ordering::SeqCst);
    eventually("all are through", PATIENCE, async || db.in_state("delivered").await == 20).await;
    worker.stop().await;
    for line in ["a", "b"] {
        let mut sent: Vec<_> =
            provider.calls().iter().map(|call| String::from_utf8_lossy(&call.payload).into_owned()).collect();
        sent.retain(|payload| payload.contains(&format!(r#""line":"{line}""#)));
        sent.dedup();
        let expected: Vec<_> =
            (0..10).map(|number| format!(r#"{{"line":"{line}","number":{number}}}"#)).collect();
        assert_eq!(sent, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_staged_is_delivered_by_polling_alone() {
    // C42
    let db = Db::fresh().await;
    let worker =
        Running::start(Worker::new(db.store().await).provider::<Mail>(Scripted::reliable()).policy(quick()));
    let other = db.store().await;
    for key in ["a", "b"] {
        stage(&other, key, mail(key)).await;
        eventually("it is delivered", PATIENCE, async || db.in_state("pending").await == 0).await;
    }
    worker.stop().await;
    assert_eq!(db.in_state("delivered").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_the_same_process_is_told_and_does_not_wait_for_its_poll() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let rare = Policy { poll_interval: Duration::from_secs(3_600), ..quick() };
    let provider = Scripted::reliable();
    let worker = Running::start(Worker::new(&store).provider::<Mail>(provider.clone()).policy(rare));
    for key in ["a", "b", "c"] {
        stage(&store, key, mail(key)).await;
        eventually("it is delivered", PATIENCE, async || db.in_state("pending").await == 0).await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_make_nothing_final_and_pause_the_provider() {
    // C43c
    let db = Db::fresh().await;
    let store = db.store().await;
    for key in ["a", "b", "c"] {
        stage(&store, key, mail(key)).await;
    }
    let halting = Scripted::new(KeyWindow::None, async |_| Delivery::Halt { error: "401".into() });
    let worker = Running::start(Worker::new(&store).provider::<Mail>(halting.clone()).policy(quick()));
    eventually("it is paused", PATIENCE, async || {
        let mail = status(&store).await.expect("asked").into_iter().find(|status| status.effect == "mail");
        mail.is_some_and(|mail| mail.paused.is_some_and(|(_, error)| error == "401"))
    })
    .await;
    worker.stop().await;
    assert!(halting.calls().len() <= 3, "those that were on their way, and no more");
    let untouched =
        format!("SELECT count(*) FROM {OUTBOX} WHERE state = 'pending' AND NOT maybe_sent AND attempts = 0");
    assert_eq!(db.count(&untouched).await, 3);
    // The credentials are right again.
    work_until::<Mail>(&store, Scripted::reliable(), async || db.in_state("delivered").await == 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_has_accepted_is_asked_for_by_its_reference_and_not_sent_again() {
    // C43c
    let db = Db::fresh().await;
    let store = db.store().await;
    stage(&store, "k", mail("a")).await;
    let asked = Arc::new(AtomicU32::new(0));
    let provider = Scripted::new(KeyWindow::Forever, async |_| Delivery::Accepted {
        reference: Some("r-1".to_owned()),
        ask_after: Duration::from_millis(1),
    })
    .asked({
        let asked = asked.clone();
        move |call| {
            assert_eq!(call.reference.as_deref(), Some("r-1"));
            match asked.fetch_add(1, Ordering::SeqCst) {
                0 => Reconciled::Unknown,
                _ => Reconciled::Happened { reference: None },
            }
        }
    });
    work_until::<Mail>(&store, provider.clone(), async || db.in_state("delivered").await == 1).await;
    assert_eq!((provider.calls().len(), asked.load(Ordering::SeqCst)), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_providers_for_one_effect_are_refused_and_one_without_a_provider_waits() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let twice = Worker::new(&store)
        .provider::<Mail>(Scripted::reliable())
        .provider::<MailWithSubject>(Scripted::reliable());
    let error = twice.run(async {}).await.expect_err("two for `mail`");
    assert!(matches!(error, Error::DuplicateProvider { effect: "mail" }), "{error:?}");

    stage(&store, "k", mail("a")).await;
    stage(&store, "l", InLine { line: "x".to_owned(), number: 0 }).await;
    work_until::<InLine>(&store, Scripted::reliable(), async || db.in_state("delivered").await == 1).await;
    let effects = status(&store).await.expect("asked");
    let mail = effects.iter().find(|status| status.effect == "mail").expect("listed");
    assert_eq!((mail.pending, mail.workers, mail.oldest_due.is_some()), (1, 0, true), "{mail:?}");
    work_until::<Mail>(&store, Scripted::reliable(), async || db.in_state("delivered").await == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_panics_or_hangs_is_not_known_and_the_others_go_on() {
    let db = Db::fresh().await;
    let store = db.store().await;
    for key in ["panics", "hangs", "works"] {
        stage(&store, key, mail(key)).await;
    }
    let provider = Scripted::new(KeyWindow::None, async |call: Call| {
        let to = String::from_utf8_lossy(&call.payload).into_owned();
        assert!(!to.contains("panics"), "told to");
        if to.contains("hangs") {
            std::future::pending::<()>().await;
        }
        delivered()
    });
    let hasty = Policy { call_timeout: Duration::from_millis(200), ..quick() };
    let worker = Running::start(Worker::new(&store).provider::<Mail>(provider.clone()).policy(hasty));
    eventually("both are not known", PATIENCE, async || {
        db.count(&format!("SELECT count(*) FROM {OUTBOX} WHERE state = 'pending' AND maybe_sent")).await == 2
    })
    .await;
    worker.stop().await;
    assert_eq!(db.in_state("delivered").await, 1);
    assert_eq!(provider.calls().len(), 3, "its key is not known again, so it is not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_waits_for_its_calls_and_hands_back_what_it_has_not_begun() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let body = run(&store, claim("k"), async |tx: &mut Tx| {
        for n in 0..5 {
            tx.stage(mail(&n.to_string())).await?;
        }
        Ok::<_, Fail>(())
    });
    body.await.expect("runs");
    let (slow, held) = Scripted::held(KeyWindow::Forever, delivered);
    let two = Policy { concurrency: 2, ..quick() };
    let worker = Running::start(Worker::new(&store).provider::<Mail>(slow).policy(two));
    held.until_called(2).await;
    let stopping = tokio::spawn(worker.stop());
    eventually("what was not begun is handed back", PATIENCE, async || {
        db.count(&format!("SELECT count(*) FROM {OUTBOX} WHERE lease_token IS NULL AND attempts = 0")).await
            == 3
    })
    .await;
    held.go();
    stopping.await.expect("no panic");
    assert_eq!((db.in_state("delivered").await, db.in_state("pending").await), (2, 3));
}
