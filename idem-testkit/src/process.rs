//! Real processes that die by `kill -9` at moments drawn from a seed, and start again. A test binary is
//! its own child: it runs one test of itself, which does the work when it sees its [`role`].

use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use crate::random::Random;
use crate::{Error, wait};

const ROLE: &str = "IDEM_TESTKIT_ROLE";

/// A command that runs the test `name` (its path in the test binary, as `cargo test` prints it) of
/// the running test binary, with this role. Works under `cargo test` and `cargo nextest`.
///
/// ```no_run
/// use idem_testkit::process;
/// # #[allow(clippy::test_attr_in_doctest)]
/// #[test]
/// fn survives_a_kill() {
///     if process::role().as_deref() == Some("worker") {
///         return work();
///     }
///     let child = process::this_test("survives_a_kill", "worker").expect("own path");
///     // .. start it with `Victim::spawn`, kill it, start it again, look at what is there
/// }
/// # fn work() {}
/// ```
///
/// # Errors
/// If the system does not say where the running program is.
pub fn this_test(name: &str, role: &str) -> Result<Command, Error> {
    let program = std::env::current_exe().map_err(Error::io("finding the test binary"))?;
    let mut command = Command::new(program);
    command.args([name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    Ok(command)
}

/// The role that [`this_test`] gave to this process; `None` in the test itself.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A child process that is killed when dropped.
#[derive(Debug)]
pub struct Victim(Child);

impl Victim {
    /// Starts it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn spawn(command: &mut Command) -> Result<Self, Error> {
        command.spawn().map(Self).map_err(Error::io("starting a child process"))
    }

    /// The child, for its pipes and its id.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Kills it by SIGKILL and waits for its end. The status tells whether it had ended before.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill9(&mut self) -> Result<ExitStatus, Error> {
        self.0.kill().and_then(|()| self.0.wait()).map_err(Error::io("killing a child process"))
    }

    /// Waits for its end; `None` if it still runs after that time.
    pub fn ended_within(&mut self, within: Duration) -> Option<ExitStatus> {
        wait::until(within, || self.0.try_wait().ok().flatten())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        _ = self.kill9();
    }
}

/// Random moments, the same ones for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Moments {
    random: Random,
    longest: Duration,
}

impl Moments {
    /// Times from zero up to `longest`. Print the seed where a test fails.
    pub fn seeded(seed: u64, longest: Duration) -> Self {
        Self { random: Random::seeded(seed), longest }
    }
}

impl Iterator for Moments {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.longest.mul_f64(self.random.next() as f64 / u64::MAX as f64))
    }
}

/// Starts the command and kills it at each of the moments in turn, then runs it to its end, for at
/// most `within`. A run that ends by itself before its moment counts as one of the kills, and is not
/// an error: start it again.
///
/// Returns how many runs were really killed.
///
/// # Errors
/// If it cannot be started, or the last run does not succeed.
pub fn killed_and_restarted(
    mut command: impl FnMut() -> Result<Command, Error>,
    moments: impl IntoIterator<Item = Duration>,
    within: Duration,
) -> Result<usize, Error> {
    let mut kills = 0;
    for moment in moments {
        let mut victim = Victim::spawn(&mut command()?)?;
        if victim.ended_within(moment).is_none() {
            victim.kill9()?;
            kills += 1;
        }
    }
    let mut last = Victim::spawn(&mut command()?)?;
    match last.ended_within(within) {
        Some(status) if status.success() => Ok(kills),
        Some(status) => Err(Error::Program { program: "the child process", output: status.to_string() }),
        None => Err(Error::Program {
            program: "the child process",
            output: format!("still runs after {within:?}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;

    #[test]
    fn moments_are_repeatable_and_bounded() {
        let longest = Duration::from_millis(300);
        let draw = |seed| Moments::seeded(seed, longest).take(1000).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|moment| *moment <= longest));
        let mean = draw(7).iter().sum::<Duration>() / 1000;
        assert!((130..170).contains(&mean.as_millis()), "spread over the whole range: {mean:?}");
    }

    /// The child appends a line each time it starts, and ends only if it finds three.
    #[test]
    fn a_child_is_killed_and_restarted() {
        const FILE: &str = "IDEM_TESTKIT_TEST_FILE";
        if role().as_deref() == Some("child") {
            let path = std::env::var_os(FILE).expect("given by the test");
            let mut file = std::fs::File::options().create(true).append(true).open(&path).expect("file");
            writeln!(file, "started").expect("write");
            if std::fs::read_to_string(&path).expect("read").lines().count() < 3 {
                loop {
                    std::thread::park();
                }
            }
            return;
        }
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("starts");
        let command = || {
            let mut command = this_test("process::tests::a_child_is_killed_and_restarted", "child")?;
            command.env(FILE, &path);
            Ok(command)
        };
        for starts in 1..=2 {
            let mut victim = Victim::spawn(&mut command().expect("command")).expect("start");
            let started = || std::fs::read_to_string(&path).ok().filter(|it| it.lines().count() == starts);
            wait::until(Duration::from_secs(20), started).expect("it starts");
            assert!(!victim.kill9().expect("kill").success());
        }
        let begun = Instant::now();
        let kills = killed_and_restarted(command, [], Duration::from_secs(20)).expect("it ends");
        assert_eq!(kills, 0);
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
