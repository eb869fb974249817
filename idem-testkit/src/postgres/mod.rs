//! A private Postgres server: own temporary data directory, own free port on 127.0.0.1, no socket, no
//! service. The invariant: a server that is there already is never touched, and ours ends with the
//! process that started it, also after a panic or a `kill -9`.
//!
//! Most tests want [`TestDatabase::create`]: a fresh database in the server that all tests of the
//! process share. Only a test that stops or kills the server starts its own, with [`Postgres::start`].

mod account;
#[cfg(feature = "full")]
mod database;
mod programs;
mod server;

use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use self::account::Account;
#[cfg(feature = "full")]
pub use self::database::{TestDatabase, shared};
pub use self::programs::programs;
use self::server::Server;
use crate::{Error, wait};

/// The role of [`Postgres::url`]: a superuser that needs no password.
pub const ROLE: &str = "idem";
/// The role of [`Postgres::password_url`]: it may log in with its password (SCRAM), and nothing else.
pub const PASSWORD_ROLE: &str = "idem_password";

/// How long a server may take until it accepts connections, recovery included.
const START: Duration = Duration::from_secs(60);

const ACCESS: &str = "\
host all idem_password 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
";

/// A running private server. Dropping it stops the server and removes its folder.
///
/// The methods block the thread (restarting takes a fraction of a second), and take `&self`: inside a
/// runtime call them in `spawn_blocking`, so that the load under test goes on.
///
/// ```no_run
/// let server = idem_testkit::postgres::Postgres::start()?;
/// println!("{}", server.url("postgres"));
/// server.restart_immediate()?; // as after a crash: recovers from the log, same port
/// # Ok::<(), idem_testkit::Error>(())
/// ```
#[derive(Debug)]
pub struct Postgres {
    // Before the folder: the server ends first.
    server: Mutex<Option<Server>>,
    account: Account,
    programs: PathBuf,
    port: u16,
    folder: TempDir,
}

/// How a private server is set up; from [`Postgres::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Vec<(String, String)>,
}

impl Builder {
    /// Whether a commit waits for the disk (default: yes). Without it tests that crash no server run
    /// faster.
    pub fn fsync(self, on: bool) -> Self {
        self.setting("fsync", if on { "on" } else { "off" })
    }

    /// Any setting of `postgresql.conf`; a later one wins.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes a data directory and starts the server; returns when it accepts connections.
    ///
    /// # Errors
    /// [`Error::NoPrograms`] where Postgres is not installed; otherwise what the programs said.
    pub fn start(self) -> Result<Postgres, Error> {
        let programs = programs()?;
        let account = Account::find()?;
        let folder = account.folder()?;
        initialize(account, &programs, folder.path(), &self.settings)?;
        let mut server = Postgres { server: Mutex::new(None), account, programs, port: free_port()?, folder };
        for tries_left in (0..5).rev() {
            match server.start_again() {
                // Somebody else took the port meanwhile.
                Err(Error::NotStarted { log, .. }) if tries_left > 0 && log.contains("could not bind") => {
                    server.port = free_port()?;
                }
                other => return other.map(|()| server),
            }
        }
        unreachable!("the last try returns")
    }
}

impl Postgres {
    /// Starts a private server with `fsync` on, as crash tests need it.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn start() -> Result<Self, Error> {
        Self::builder().start()
    }

    /// A server with other settings.
    pub fn builder() -> Builder {
        Builder { settings: Vec::new() }
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The URL of a database, for the superuser [`ROLE`]. `postgres` is always there.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/{database}", self.port)
    }

    /// The URL of a database for [`PASSWORD_ROLE`], with this password; the right one is `correct`.
    pub fn password_url(&self, password: &str, database: &str) -> String {
        format!("postgres://{PASSWORD_ROLE}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The process id of the postmaster, if it runs.
    pub fn id(&self) -> Option<u32> {
        self.lock().as_ref().map(Server::id)
    }

    /// What the server has logged since its data directory was made.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join("log")).unwrap_or_default())
            .into_owned()
    }

    /// Stops the server without ceremony (SIGQUIT, as `pg_ctl stop -m immediate`: no checkpoint, every
    /// session ends where it is) and starts it on the same port; returns when it has recovered.
    ///
    /// # Errors
    /// If it does not end or does not come up again.
    pub fn restart_immediate(&self) -> Result<(), Error> {
        self.end(Signal::SIGQUIT)?;
        self.start_again()
    }

    /// Stops the server in order (SIGINT, a fast shutdown); [`start_again`](Self::start_again) starts it.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(&self) -> Result<(), Error> {
        self.end(Signal::SIGINT)
    }

    /// Kills the postmaster by SIGKILL; its sessions end when they notice.
    ///
    /// # Errors
    /// If it does not end.
    pub fn kill9(&self) -> Result<(), Error> {
        self.end(Signal::SIGKILL)
    }

    /// Starts the server on the same port and data, if it does not run; returns when it accepts
    /// connections. What the last run left (its sessions after [`kill9`](Self::kill9)) is waited for.
    ///
    /// # Errors
    /// [`Error::NotStarted`], with the end of the log.
    pub fn start_again(&self) -> Result<(), Error> {
        let mut slot = self.lock();
        if slot.as_mut().is_some_and(|server| server.ended().is_none()) {
            return Ok(());
        }
        let folder = self.folder.path();
        let mut server = Server::spawn(self.account, &self.programs, folder, self.port)?;
        let started = wait::until(START, || match server.ended() {
            Some(_) if self.log_end().contains("is still in use") => {
                match Server::spawn(self.account, &self.programs, folder, self.port) {
                    Ok(next) => server = next,
                    Err(error) => return Some(Err(error)),
                }
                None
            }
            Some(status) => Some(Err(self.not_started(format!("it ended ({status})")))),
            None => server.ready(folder).then_some(Ok(())),
        });
        started.unwrap_or_else(|| Err(self.not_started(format!("not ready in {START:?}"))))?;
        *slot = Some(server);
        Ok(())
    }

    fn end(&self, signal: Signal) -> Result<(), Error> {
        self.lock().take().map_or(Ok(()), |server| server.end(signal))
    }

    fn not_started(&self, reason: String) -> Error {
        Error::NotStarted { reason, log: self.log_end() }
    }

    fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    fn lock(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new data directory with its settings and the two roles.
fn initialize(
    account: Account,
    programs: &Path,
    folder: &Path,
    settings: &[(String, String)],
) -> Result<(), Error> {
    let mut initdb = account.command(&programs.join("initdb"), folder);
    initdb
        .args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username", ROLE])
        .arg("--pgdata")
        .arg(folder.join("data"));
    let output = initdb.stdin(Stdio::null()).output().map_err(Error::io("running initdb"))?;
    succeeded("initdb", &output)?;

    let mut text = String::from(
        "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 200\n\
         password_encryption = 'scram-sha-256'\nlog_line_prefix = '%m [%p] '\n",
    );
    for (name, value) in settings {
        _ = writeln!(text, "{name} = '{}'", value.replace('\'', "''"));
    }
    // The files are there and belong to the account: written over in place, they still do.
    append(&folder.join("data/postgresql.conf"), &text)?;
    std::fs::write(folder.join("data/pg_hba.conf"), ACCESS).map_err(Error::io("writing pg_hba.conf"))?;

    // Before the server runs, so that nothing here needs a client.
    let mut single = account
        .command(&programs.join("postgres"), folder)
        .args(["--single", "-D"])
        .arg(folder.join("data"))
        .arg("postgres")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::io("running postgres"))?;
    if let Some(mut input) = single.stdin.take() {
        writeln!(input, "CREATE ROLE {PASSWORD_ROLE} LOGIN PASSWORD 'correct'")
            .map_err(Error::io("making the roles"))?;
    }
    let output = single.wait_with_output().map_err(Error::io("running postgres"))?;
    succeeded("postgres", &output)
}

fn append(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::File::options()
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(Error::io("writing postgresql.conf"))
}

fn succeeded(program: &'static str, output: &std::process::Output) -> Result<(), Error> {
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && !text.contains("ERROR:") {
        return Ok(());
    }
    Err(Error::Program { program, output: text.into_owned() })
}

/// A port that is free now, below the range that systems give to outgoing connections: so it is
/// still free when the server starts again.
fn free_port() -> Result<u16, Error> {
    let first = RandomState::new().build_hasher().finish() % 10_000;
    (0..10_000)
        .map(|step| (20_000 + (first + step) % 10_000) as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| Error::io("looking for a free port")(std::io::ErrorKind::AddrInUse.into()))
}
