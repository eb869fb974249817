//! A proxy in front of a Postgres server, on the wire: it delays, counts round trips, and cuts or
//! silences a connection at a chosen message. The invariant: it changes nothing that it passes, so code
//! under test cannot tell it from the server, except by encryption, which it declines.
//!
//! **Delay.** Each message is delivered a fixed time after it arrived, each way, with any number in
//! flight. The proxy's own work comes on top; see [`Proxy::set_delay`] for what was measured.
//!
//! **Round trips.** One is counted when the client gets a ReadyForQuery, if it has sent something since
//! the last one that was counted. So what was sent together is one round trip, however many answers it
//! has, and the start of a session (login included) is none. Exact for clients that wait for answers.

mod relay;
mod session;
mod trigger;
mod wire;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use url::Url;

use self::relay::Relay;
use self::session::Session;
pub use self::trigger::Trigger;
use self::trigger::{Effect, Fault};
use crate::Error;

/// A running proxy. Dropping it ends all its connections.
///
/// ```no_run
/// # async fn test() -> Result<(), Box<dyn std::error::Error>> {
/// use idem_testkit::{postgres::TestDatabase, proxy::{Proxy, Trigger}};
///
/// let database = TestDatabase::create().await;
/// let proxy = Proxy::in_front_of(database.url())?;
/// let pool = sqlx::PgPool::connect(&proxy.url(database.url())?).await?;
/// proxy.cut_on(Trigger::answered_statement("COMMIT"));
/// // .. the commit happens, and its answer never comes
/// assert!(proxy.fired());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// What the handle and the connections' threads share.
#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    delay: AtomicU64,
    round_trips: AtomicUsize,
    connections: AtomicUsize,
    closing: AtomicBool,
    faults: Mutex<Vec<Arc<Fault>>>,
    open: Mutex<Vec<Open>>,
}

/// A connection that may still be open: a byte through `wake` ends it.
#[derive(Debug)]
struct Open {
    wake: UnixStream,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// A proxy in front of the server that a database URL names.
    ///
    /// # Errors
    /// If the URL has no host that resolves, or no port can be opened.
    pub fn in_front_of(database_url: &str) -> Result<Self, Error> {
        let wrong = || Error::Url("expected postgres://user@host:port/database".to_owned());
        let url = Url::parse(database_url).map_err(|_| wrong())?;
        let host = url.host_str().ok_or_else(wrong)?.trim_matches(['[', ']']);
        let mut addresses = (host, url.port().unwrap_or(5432)).to_socket_addrs().map_err(|_| wrong())?;
        Self::start(addresses.next().ok_or_else(wrong)?)
    }

    /// A proxy in front of a server, on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If no port can be opened.
    pub fn start(server: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("opening a port"))?;
        let address = listener.local_addr().map_err(Error::io("opening a port"))?;
        let shared = Arc::new(Shared {
            server,
            delay: AtomicU64::new(0),
            round_trips: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            faults: Mutex::default(),
            open: Mutex::default(),
        });
        let acceptor = std::thread::Builder::new()
            .name("proxy".to_owned())
            .spawn({
                let shared = shared.clone();
                move || accept(&listener, &shared)
            })
            .map_err(Error::io("starting a thread"))?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same URL, by way of the proxy.
    ///
    /// # Errors
    /// If it is not the URL of a database with a host.
    pub fn url(&self, database_url: &str) -> Result<String, Error> {
        let wrong = || Error::Url("expected postgres://user@host:port/database".to_owned());
        let mut url = Url::parse(database_url).map_err(|_| wrong())?;
        url.set_host(Some("127.0.0.1")).map_err(|_| wrong())?;
        url.set_port(Some(self.address.port())).map_err(|()| wrong())?;
        Ok(url.into())
    }

    /// From now on each message is delivered this long after it arrived, each way. Default: zero.
    ///
    /// Measured (release build, two processors, one connection, median of 3,000 `SELECT 1`, against the
    /// direct connection at 34 µs): without delay a round trip took 6 to 70 µs longer, with 250 µs each
    /// way 534 µs, with 1 ms each way 2.07 ms. On a busy machine deliveries are later, never earlier.
    pub fn set_delay(&self, each_way: Duration) {
        self.shared.delay.store(u64::try_from(each_way.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// The round trips of all connections since the start or the last [`reset`](Self::reset).
    pub fn round_trips(&self) -> usize {
        self.shared.round_trips.load(Ordering::SeqCst)
    }

    /// The connections that were accepted since the start or the last [`reset`](Self::reset).
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The connections that are open now, silent ones included.
    pub fn open_connections(&self) -> usize {
        self.shared.open().iter().filter(|open| !open.thread.is_finished()).count()
    }

    /// Sets both counters to zero.
    pub fn reset(&self) {
        self.shared.round_trips.store(0, Ordering::SeqCst);
        self.shared.connections.store(0, Ordering::SeqCst);
    }

    /// At the trigger both sides of the connection get a reset.
    pub fn cut_on(&self, trigger: Trigger) {
        self.arm(trigger, Effect::Reset);
    }

    /// At the trigger both sides of the connection get an orderly end of the stream.
    pub fn close_on(&self, trigger: Trigger) {
        self.arm(trigger, Effect::Close);
    }

    /// From the trigger on nothing passes any more, and both sides see an open connection: also the
    /// server, after its client has gone. It stays so until [`cut_all`](Self::cut_all).
    pub fn silence_on(&self, trigger: Trigger) {
        self.arm(trigger, Effect::Silence);
    }

    /// Whether any fault has fired since the last [`heal`](Self::heal).
    pub fn fired(&self) -> bool {
        self.shared.faults().iter().any(|fault| fault.fired())
    }

    /// Disarms and forgets all faults. Connections that are silent stay silent.
    pub fn heal(&self) {
        self.shared.faults().clear();
    }

    /// Resets every open connection, silent ones too; returns when they are gone.
    pub fn cut_all(&self) {
        self.shared.end_all();
    }

    fn arm(&self, trigger: Trigger, effect: Effect) {
        self.shared.faults().push(Arc::new(Fault::new(trigger, effect)));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // The acceptor waits for a connection: this is its last.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(acceptor) = self.acceptor.take()
            && woken
        {
            _ = acceptor.join();
        }
        self.shared.end_all();
    }
}

impl Shared {
    fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay.load(Ordering::SeqCst))
    }

    fn count_round_trip(&self) {
        self.round_trips.fetch_add(1, Ordering::SeqCst);
    }

    fn update(&self, session: &mut Session) {
        session.watch(&self.faults());
    }

    fn faults(&self) -> MutexGuard<'_, Vec<Arc<Fault>>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_all(&self) {
        let all = std::mem::take(&mut *self.open());
        for open in &all {
            _ = (&open.wake).write_all(&[1]);
        }
        for open in all {
            _ = open.thread.join();
        }
    }
}

/// Takes connections until the proxy goes.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let client = listener.accept();
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok((client, _)) = client else {
            // Out of descriptors, or a client that has gone: neither is the end.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let Ok((wake, woken)) = UnixStream::pair() else { continue };
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("proxy-connection".to_owned()).spawn(move || {
            // Where the server cannot be reached, the client sees its connection end.
            if let Ok(server) = TcpStream::connect(of_thread.server)
                && let Ok(relay) = Relay::new(client, server, woken, of_thread)
            {
                relay.run();
            }
        });
        if let Ok(thread) = thread {
            let mut open = shared.open();
            open.retain(|open| !open.thread.is_finished());
            open.push(Open { wake, thread });
        }
    }
}
