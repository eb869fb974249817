//! The provider: the test kit's, which counts what it does, with faults, and the client that the worker calls it by.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::outbox::{Call, Delivery, HttpProvider, KeyWindow, Policy, Provider, Reconciled};
use idem_testkit::provider::{Answer, Behaviour, CountingProvider, Window, mix};

use crate::deliveries::drawn;
use crate::handler::PayoutOrder;
use crate::live::Live;

/// For how long the provider knows a key again. It promises so much, and holds no more.
const KEY_WINDOW: Duration = Duration::from_secs(4);

/// How late it may still carry out what was sent.
const LONGEST_FLIGHT: Duration = Duration::from_secs(1);

/// How late it does, where it is told to.
const LATE: Duration = Duration::from_millis(300);

/// How long an answer is waited for. Shorter than the worker's own limit, so that the client sees it pass.
const ANSWER: Duration = Duration::from_millis(500);

/// Short waits: the run is to end soon. The defaults are what a real provider is called with.
pub(crate) fn policy() -> Policy {
    Policy {
        max_attempts: 5,
        max_age: Duration::from_secs(40),
        call_timeout: Duration::from_millis(800),
        shortest_backoff: Duration::from_millis(100),
        longest_backoff: Duration::from_secs(1),
        poll_interval: Duration::from_millis(200),
        ..Policy::default()
    }
}

/// What goes wrong, in percent: 22 in all.
fn behaviours() -> Vec<(u32, Behaviour)> {
    let again = |status, seconds: &str| Answer::status(status).header("Retry-After", seconds);
    vec![
        (78, Behaviour::Act),
        (2, Behaviour::ResetBefore),
        (2, Behaviour::ResetAfter),
        (1, Behaviour::refuse(500)),
        (1, Behaviour::act_then(500)),
        // So late that the key is not known again: it has to be asked for.
        (2, Behaviour::Refuse(again(503, "4"))),
        (2, Behaviour::ActThen(again(503, "4"))),
        (1, Behaviour::HangBefore),
        (1, Behaviour::HangAfter),
        (1, Behaviour::ActAfterGone(LATE)),
        (2, Behaviour::too_many(1)),
        (2, Behaviour::Refuse(again(409, "1"))),
        (2, Behaviour::Accept { act_after: Some(Duration::from_millis(1500)) }),
        (2, Behaviour::refuse(400)),
        // Proves nothing, and a repeat will not mend it: for a person.
        (1, Behaviour::act_then(302)),
    ]
}

/// Starts it. What it does with a request depends on the seed, the payout and how often it was sent, and not on which of
/// two came first.
pub(crate) async fn start(seed: u64) -> anyhow::Result<CountingProvider> {
    let bank = CountingProvider::start().await?;
    bank.set_window(Window::For(KEY_WINDOW));
    let mut sent = HashMap::<Option<String>, u32>::new();
    bank.behave(move |request| {
        let count = sent.entry(request.key.clone()).or_default();
        *count += 1;
        mix(drawn(seed, (&request.body, *count)), behaviours())(request)
    });
    Ok(bank)
}

/// An `HttpProvider` that shows what it was told.
pub(crate) struct Bank {
    http: HttpProvider,
    live: Arc<Live>,
}

impl Bank {
    pub(crate) fn client(bank: &CountingProvider, live: Arc<Live>) -> anyhow::Result<Self> {
        let http = HttpProvider::builder(bank.url())
            .allow_private_targets()
            .key_window(KeyWindow::AtLeast(KEY_WINDOW))
            .longest_flight(LONGEST_FLIGHT)
            .timeout(ANSWER)
            .reference_at("/reference")
            .reconcile_by_key(bank.url_by_key())
            .ask_after(Duration::from_millis(700))
            .build()?;
        Ok(Self { http, live })
    }
}

#[async_trait]
impl Provider<PayoutOrder> for Bank {
    fn key_window(&self) -> KeyWindow {
        Provider::<PayoutOrder>::key_window(&self.http)
    }

    fn longest_flight(&self) -> Duration {
        Provider::<PayoutOrder>::longest_flight(&self.http)
    }

    async fn deliver(&self, payout: &PayoutOrder, call: &Call) -> Delivery {
        self.live.sent();
        let delivery = self.http.deliver(payout, call).await;
        self.live.told(&payout.order, call.attempt, &delivery);
        delivery
    }

    async fn reconcile(&self, payout: &PayoutOrder, call: &Call) -> Reconciled {
        let reconciled = self.http.reconcile(payout, call).await;
        self.live.asked(&payout.order, &reconciled);
        reconciled
    }
}
