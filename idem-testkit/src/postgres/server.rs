//! One run of the server program, below a watchdog. The invariant: the server does not outlive the
//! process that started it, however that process ends.
//!
//! The watchdog is a small `sh` that starts the server, and reads a pipe whose only writing end is
//! held by us. When we die, even by `kill -9`, the pipe ends and the watchdog stops the server. When
//! the server dies, the watchdog ends with its status, which we see as our own child's.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::account::Account;
use crate::{Error, wait};

/// `$1` is the folder to remove once nobody is left to do it, the rest is the server's command.
///
/// SIGQUIT is sent again and again: `sh` starts background commands with it ignored, so the first
/// may come before the server listens to it. The server is not reaped before `wait` returns, so
/// until then its id cannot belong to anybody else.
const WATCHDOG: &str = r#"
folder=$1; shift
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
(
    read -r _ <&3
    : >"$folder/abandoned"
    while kill -QUIT "$server" 2>/dev/null; do sleep 0.2; done
) >/dev/null 2>&1 &
watch=$!
exec 3<&-
echo "$server"
wait "$server"
status=$?
if [ -e "$folder/abandoned" ]; then rm -rf -- "$folder"; else kill "$watch"; fi
exit "$status"
"#;

/// How long a server may take to end by itself. Postgres itself kills what is left after five seconds.
const END: Duration = Duration::from_secs(20);

/// How long until a signal is sent again, for the reason that [`WATCHDOG`] gives.
const AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Server {
    watchdog: Child,
    /// Held open for as long as the server shall live. Not in `watchdog`, where waiting closes it.
    _alive: ChildStdin,
    postmaster: Pid,
}

impl Server {
    /// Starts the server on the data in `folder`, without waiting until it accepts connections.
    pub(super) fn spawn(account: Account, programs: &Path, folder: &Path, port: u16) -> Result<Self, Error> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(folder.join("log"))
            .map_err(Error::io("opening the server's log"))?;
        let mut watchdog = account
            .command(Path::new("/bin/sh"), folder)
            .args(["-c", WATCHDOG, "idem-postgres-watchdog"])
            .arg(folder)
            .arg(programs.join("postgres"))
            .arg("-D")
            .arg(folder.join("data"))
            .args(["-p", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C on the terminal is for the tests: they may still need the server to end well.
            .process_group(0)
            .spawn()
            .map_err(Error::io("starting the watchdog"))?;
        let alive = watchdog.stdin.take();
        let mut line = String::new();
        if let Some(output) = watchdog.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(Error::io("reading from the watchdog"))?;
        }
        match (alive, line.trim().parse()) {
            (Some(alive), Ok(id)) => Ok(Self { watchdog, _alive: alive, postmaster: Pid::from_raw(id) }),
            _ => Err(Error::Program { program: "the watchdog", output: format!("it said {line:?}") }),
        }
    }

    /// The process id of the postmaster.
    pub(super) fn id(&self) -> u32 {
        self.postmaster.as_raw().unsigned_abs()
    }

    /// How the server ended, if it did.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.watchdog.try_wait().ok().flatten()
    }

    /// Whether the server accepts connections: it says so in its pid file, which `pg_ctl` reads too.
    pub(super) fn ready(&self, folder: &Path) -> bool {
        let Ok(text) = std::fs::read_to_string(folder.join("data/postmaster.pid")) else { return false };
        let mut lines = text.lines().map(str::trim);
        lines.next() == Some(&self.postmaster.to_string()) && lines.nth(6) == Some("ready")
    }

    /// Sends the signal and waits for the end: SIGINT is a fast shutdown, SIGQUIT an immediate one.
    pub(super) fn end(mut self, signal: Signal) -> Result<(), Error> {
        self.end_by(signal)
    }

    fn end_by(&mut self, signal: Signal) -> Result<(), Error> {
        let mut due = Instant::now();
        let ended = wait::until(END, || {
            let ended = self.ended();
            if ended.is_none() && Instant::now() >= due {
                // The watchdog has not ended, so the id is still the server's own.
                _ = kill(self.postmaster, signal);
                due += AGAIN;
            }
            ended
        });
        match ended {
            Some(_) => Ok(()),
            None => Err(Error::Program { program: "postgres", output: format!("did not end in {END:?}") }),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.ended().is_none() && self.end_by(Signal::SIGQUIT).is_err() {
            _ = self.end_by(Signal::SIGKILL);
        }
    }
}
