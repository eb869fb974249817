//! A real HTTP provider that counts what it did: what code that calls an API with an `Idempotency-Key` is tested
//! against. The invariant: within its [`Window`] it acts at most once per key, and each time that it acts is on record
//! with the exact bytes, whatever became of the connection.
//!
//! A POST to any path is a request; one without a key is answered 400, and one whose key is being worked on 409, unless
//! the window is [`Window::None`]. What is done with the others is told by a [`Behaviour`]. A GET is a question, by key
//! or by reference: 200 if it has acted, 202 if it is working on it or has promised to act, else 404.

mod behaviour;
mod ledger;
mod server;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};

pub use self::behaviour::{Answer, Behaviour, Window, mix};
use self::ledger::Ledger;
pub use self::ledger::{Act, Received};
use crate::Error;

/// How long a test waits for something that it says must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running provider, on a free port of 127.0.0.1 and a thread of its own. Dropping it ends all its connections.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use idem_testkit::provider::{Behaviour, CountingProvider};
/// use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
///
/// let provider = CountingProvider::start().await?;
/// provider.next([Behaviour::ResetAfter]); // the first answer is lost
/// for _ in 0..2 {
///     let mut client = tokio::net::TcpStream::connect(provider.address()).await?;
///     client.write_all(b"POST /pay HTTP/1.1\r\nhost: x\r\nconnection: close\r\nidempotency-key: k1\r\ncontent-length: 2\r\n\r\n{}").await?;
///     _ = client.read_to_end(&mut Vec::new()).await;
/// }
/// assert_eq!(provider.requests().len(), 2);
/// assert_eq!(provider.done("k1"), 1);
/// # Ok(()) })
/// # }
/// ```
#[derive(Debug)]
pub struct CountingProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the handle and the provider's own tasks share.
struct Shared {
    ledger: Mutex<Ledger>,
    changed: watch::Sender<()>,
    runtime: Handle,
}

impl CountingProvider {
    /// Starts one that acts at every request with a new key, and remembers keys for ever.
    ///
    /// # Errors
    /// If no port can be opened, or no thread started.
    pub async fn start() -> Result<Self, Error> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::io("starting the provider's runtime"))?;
        let shared = Arc::new(Shared {
            ledger: Mutex::default(),
            changed: watch::Sender::default(),
            runtime: runtime.handle().clone(),
        });
        let (stop, stopped) = oneshot::channel();
        let (started, address) = oneshot::channel();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("provider".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
                    let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
                    match bound {
                        Ok((address, listener)) => {
                            _ = started.send(Ok(address));
                            tokio::select! {
                                never = server::accept(listener, of_thread) => match never {},
                                _ = stopped => {}
                            }
                        }
                        Err(error) => _ = started.send(Err(error)),
                    }
                });
            })
            .map_err(Error::io("starting a thread"))?;
        let opened = address.await.unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()));
        let address = opened.map_err(Error::io("opening a port"))?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where requests are posted to. Any other path will do, too.
    pub fn url(&self) -> String {
        format!("http://{}/effects", self.address)
    }

    /// Where to ask by key: a URL with `{key}` in it, to be replaced by the percent-encoded key.
    pub fn url_by_key(&self) -> String {
        format!("http://{}/key/{{key}}", self.address)
    }

    /// Where to ask by reference: a URL with `{reference}` in it.
    pub fn url_by_reference(&self) -> String {
        format!("http://{}/reference/{{reference}}", self.address)
    }

    /// For how long it knows a key again. Default: for ever.
    pub fn set_window(&self, window: Window) {
        self.shared.change(|ledger| ledger.window = window);
    }

    /// Which header carries the key. Default: `Idempotency-Key`.
    pub fn set_key_header(&self, name: impl Into<String>) {
        self.shared.change(|ledger| ledger.key_header = name.into());
    }

    /// What is done with all requests from now on. Default: [`Behaviour::Act`].
    pub fn always(&self, behaviour: Behaviour) {
        self.behave(move |_| behaviour.clone());
    }

    /// What is done with each request from now on: by its key, number or bytes, or by a [`mix`]. It must not call this
    /// provider's methods.
    pub fn behave(&self, rule: impl FnMut(&Received) -> Behaviour + Send + 'static) {
        self.shared.change(|ledger| ledger.rule = Box::new(rule));
    }

    /// What is done with the next requests, one after the other, before the rule counts again. Those that are answered
    /// 400 or 409 by themselves use up none.
    pub fn next(&self, behaviours: impl IntoIterator<Item = Behaviour>) {
        self.shared.change(|ledger| ledger.queue.extend(behaviours));
    }

    /// How questions are answered from now on; `None`: truthfully.
    pub fn answer_questions(&self, answer: impl Into<Option<Answer>>) {
        self.shared.change(|ledger| ledger.questions_get = answer.into());
    }

    /// Lets all go on that hang now.
    pub fn release(&self) {
        self.shared.change(|ledger| ledger.releases += 1);
    }

    /// Does what was accepted and is not done yet. Returns how many acts it were.
    pub fn keep_promises(&self) -> usize {
        self.shared.change(|ledger| ledger.keep(None))
    }

    /// The window of all keys is over: at the next request with one, it acts again.
    pub fn forget_keys(&self) {
        self.shared.change(Ledger::forget);
    }

    /// How often it acted under this key.
    pub fn done(&self, key: &str) -> usize {
        self.shared.ledger().acts.iter().filter(|act| act.key == key).count()
    }

    /// How often it acted.
    pub fn done_total(&self) -> usize {
        self.shared.ledger().acts.len()
    }

    /// The keys under which it acted more than once, sorted: what a test wants to be empty.
    pub fn done_twice(&self) -> Vec<String> {
        let mut counts = BTreeMap::<String, usize>::new();
        for act in &self.shared.ledger().acts {
            *counts.entry(act.key.clone()).or_default() += 1;
        }
        counts.into_iter().filter(|(_, count)| *count > 1).map(|(key, _)| key).collect()
    }

    /// All that it did, in order.
    pub fn acts(&self) -> Vec<Act> {
        self.shared.ledger().acts.clone()
    }

    /// All POSTs that came in, in order.
    pub fn requests(&self) -> Vec<Received> {
        self.shared.ledger().received.clone()
    }

    /// The POSTs with this key, in order: their bytes must be equal.
    pub fn requests_with(&self, key: &str) -> Vec<Received> {
        let has_key = |request: &&Received| request.key.as_deref() == Some(key);
        self.shared.ledger().received.iter().filter(has_key).cloned().collect()
    }

    /// The paths of all questions (GET), in order.
    pub fn questions(&self) -> Vec<String> {
        self.shared.ledger().questions.clone()
    }

    /// How many connections were opened.
    pub fn connections(&self) -> usize {
        self.shared.ledger().connections
    }

    /// How many clients went before they had an answer.
    pub fn gone(&self) -> usize {
        self.shared.ledger().gone
    }

    /// Waits until so many POSTs have come in, and returns the last of these.
    ///
    /// # Panics
    /// As all waits here: when it has not come after 60 s by the real clock; the test has failed.
    pub async fn until_received(&self, count: usize) -> Received {
        self.until("requests", count, move |ledger| ledger.received.get(count.saturating_sub(1)).cloned())
            .await
    }

    /// Waits until it has acted so often, and returns the last of these acts.
    ///
    /// # Panics
    /// As [`until_received`](Self::until_received).
    pub async fn until_done(&self, count: usize) -> Act {
        self.until("acts", count, move |ledger| ledger.acts.get(count.saturating_sub(1)).cloned()).await
    }

    /// Waits until so many questions have come in, and returns the path of the last of these.
    ///
    /// # Panics
    /// As [`until_received`](Self::until_received).
    pub async fn until_asked(&self, count: usize) -> String {
        self.until("questions", count, move |ledger| ledger.questions.get(count.saturating_sub(1)).cloned())
            .await
    }

    /// Waits until so many clients have gone before they had an answer.
    ///
    /// # Panics
    /// As [`until_received`](Self::until_received).
    pub async fn until_gone(&self, count: usize) {
        self.until("clients that went", count, move |ledger| (ledger.gone >= count).then_some(())).await;
    }

    /// On the provider's own runtime, whose clock is the real one.
    async fn until<T: Send + 'static>(
        &self,
        what: &str,
        count: usize,
        look: impl FnMut(&Ledger) -> Option<T> + Send + 'static,
    ) -> T {
        let shared = self.shared.clone();
        let waiting = async move { tokio::time::timeout(PATIENCE, shared.until(look)).await.ok() };
        match self.shared.runtime.spawn(waiting).await {
            Ok(Some(found)) => found,
            _ => panic!("waited {PATIENCE:?} in vain for this number of {what}: {count}"),
        }
    }
}

impl Drop for CountingProvider {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ledger and tells those who wait.
    fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let changed = change(&mut self.ledger());
        self.changed.send_replace(());
        changed
    }

    async fn until<T>(&self, mut look: impl FnMut(&Ledger) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = look(&self.ledger()) {
                return found;
            }
            // The sender is in `self`, so it does not end.
            _ = changed.changed().await;
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ledger = self.ledger();
        f.debug_struct("Shared")
            .field("received", &ledger.received.len())
            .field("done", &ledger.acts.len())
            .finish_non_exhaustive()
    }
}
