//! Effects, and a provider that does what a test tells it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::Effect;
use idem_runtime::outbox::{Call, Delivery, KeyWindow, Policy, Provider, Reconciled};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

#[derive(Clone, Debug, Serialize, Deserialize, Effect)]
#[effect(name = "mail")]
pub struct Mail {
    pub to: String,
}

/// What the next version of the program takes for [`Mail`].
#[derive(Clone, Debug, Serialize, Deserialize, Effect)]
#[effect(name = "mail")]
pub struct MailWithSubject {
    pub to: String,
    #[serde(default)]
    pub subject: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, Effect)]
#[effect(name = "line", order = "{self.line}")]
pub struct InLine {
    pub line: String,
    pub number: u32,
}

pub fn mail(to: &str) -> Mail {
    Mail { to: to.to_owned() }
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Says what its two closures say, and keeps what it was asked.
#[derive(Clone)]
pub struct Scripted {
    pub window: KeyWindow,
    pub flight: Duration,
    deliver: Arc<dyn Fn(Call) -> Answer<Delivery> + Send + Sync>,
    reconcile: Arc<dyn Fn(Call) -> Answer<Reconciled> + Send + Sync>,
    pub calls: Arc<Mutex<Vec<Call>>>,
    pub questions: Arc<Mutex<Vec<Call>>>,
}

impl Scripted {
    pub fn new<F: Future<Output = Delivery> + Send + 'static>(
        window: KeyWindow,
        deliver: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Self {
        Self {
            window,
            flight: Duration::from_secs(120),
            deliver: Arc::new(move |call| Box::pin(deliver(call))),
            reconcile: Arc::new(|_| Box::pin(async { Reconciled::Unsupported })),
            calls: Arc::default(),
            questions: Arc::default(),
        }
    }

    /// Its calls wait until the test lets them go, and then say this.
    pub fn held(window: KeyWindow, answer: fn() -> Delivery) -> (Self, Held) {
        let held = Held { called: Arc::new(Semaphore::new(0)), go: Arc::new(Semaphore::new(0)) };
        let (called, go) = (held.called.clone(), held.go.clone());
        let scripted = Self::new(window, move |_| {
            let (called, go) = (called.clone(), go.clone());
            async move {
                called.add_permits(1);
                go.acquire().await.expect("open").forget();
                answer()
            }
        });
        (scripted, held)
    }

    /// It always succeeds.
    pub fn reliable() -> Self {
        Self::new(KeyWindow::Forever, async |_| delivered())
    }

    pub fn asked(mut self, reconcile: impl Fn(Call) -> Reconciled + Send + Sync + 'static) -> Self {
        self.reconcile = Arc::new(move |call| {
            let answer = reconcile(call);
            Box::pin(async { answer })
        });
        self
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("no panic").clone()
    }

    pub fn questions(&self) -> Vec<Call> {
        self.questions.lock().expect("no panic").clone()
    }
}

/// The calls of [`Scripted::held`].
pub struct Held {
    called: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Held {
    pub async fn until_called(&self, times: u32) {
        self.called.acquire_many(times).await.expect("open").forget();
    }

    pub fn go(&self) {
        self.go.add_permits(100);
    }
}

#[async_trait::async_trait]
impl<E: Effect> Provider<E> for Scripted {
    fn key_window(&self) -> KeyWindow {
        self.window
    }

    fn longest_flight(&self) -> Duration {
        self.flight
    }

    async fn deliver(&self, _: &E, call: &Call) -> Delivery {
        self.calls.lock().expect("no panic").push(call.clone());
        (self.deliver)(call.clone()).await
    }

    async fn reconcile(&self, _: &E, call: &Call) -> Reconciled {
        self.questions.lock().expect("no panic").push(call.clone());
        (self.reconcile)(call.clone()).await
    }
}

pub fn delivered() -> Delivery {
    Delivery::Delivered { reference: Some("done".to_owned()) }
}

pub fn unknown() -> Delivery {
    Delivery::Unknown { retry_after: None, error: "no answer".into() }
}

pub fn not_sent() -> Delivery {
    Delivery::NotSent { retry_after: None, error: "connection refused".into() }
}

pub fn rejected() -> Delivery {
    Delivery::Rejected { error: "no such account".into() }
}

/// Waits that a test can bear.
pub fn quick() -> Policy {
    Policy {
        shortest_backoff: Duration::from_millis(1),
        longest_backoff: Duration::from_millis(5),
        poll_interval: Duration::from_millis(20),
        ..Policy::default()
    }
}
