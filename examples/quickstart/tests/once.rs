//! Each event is booked once, whatever happens to the process: on SQLite, and on Postgres where the feature is on.
//! What is in the tables is read by a connection of the test's own, not taken from what the program says.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use idem_testkit::process::{Moments, killed_and_restarted};
use serde::Deserialize;

/// A run on a busy machine.
const LONGEST_RUN: Duration = Duration::from_secs(300);

/// How many times the process is killed; the longer test: `QUICKSTART_KILLS=20`.
const KILLS: &str = "QUICKSTART_KILLS";

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    deliveries: u64,
    applied: u64,
    replayed: u64,
    mismatched: u64,
    refused_source: u64,
    invalid: u64,
    ledger_rows: i64,
    balances: BTreeMap<String, i64>,
}

fn expected() -> Report {
    serde_json::from_str(include_str!("expected.json")).expect("the figures that must come out")
}

/// What a run gives that finds everything booked.
fn expected_again() -> Report {
    let first = expected();
    Report { applied: 0, replayed: first.applied + first.replayed, ..first }
}

/// An empty database.
enum Place {
    Sqlite(tempfile::TempDir),
    #[cfg(feature = "postgres")]
    Postgres(idem_testkit::postgres::TestDatabase),
}

impl Place {
    async fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().expect("a temporary folder"))
    }

    #[cfg(feature = "postgres")]
    async fn postgres() -> Self {
        Self::Postgres(idem_testkit::postgres::TestDatabase::create().await)
    }

    /// As the program takes it.
    fn name(&self) -> String {
        match self {
            Self::Sqlite(folder) => folder.path().join("test.sqlite3").to_str().expect("UTF-8").to_owned(),
            #[cfg(feature = "postgres")]
            Self::Postgres(database) => database.url().to_owned(),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
        command.args(["--json", "--database", &self.name()]).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn run(&self) -> Report {
        let output = self.command().output().expect("it starts");
        assert!(output.status.success(), "{}", output.status);
        serde_json::from_slice(&output.stdout).expect("the figures alone on standard output")
    }

    /// Every event has one row, and every balance is the sum of its rows.
    async fn assert_booked_once(&self) {
        const LEDGER: &str = "SELECT source, event_id, currency, amount_minor FROM ledger";
        const ACCOUNT: &str = "SELECT source, currency, balance FROM account";
        type Ledger = Vec<(String, String, String, i64)>;
        type Account = Vec<(String, String, i64)>;

        let (ledger, account): (Ledger, Account) = match self {
            Self::Sqlite(_) => {
                let pool = sqlx::SqlitePool::connect(&self.name()).await.expect("opened");
                (
                    sqlx::query_as(LEDGER).fetch_all(&pool).await.expect("read"),
                    sqlx::query_as(ACCOUNT).fetch_all(&pool).await.expect("read"),
                )
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(database) => {
                let pool = sqlx::PgPool::connect(database.url()).await.expect("connected");
                (
                    sqlx::query_as(LEDGER).fetch_all(&pool).await.expect("read"),
                    sqlx::query_as(ACCOUNT).fetch_all(&pool).await.expect("read"),
                )
            }
        };
        let mut events = Vec::from_iter(ledger.iter().map(|(source, id, ..)| (source, id)));
        events.sort();
        assert!(events.windows(2).all(|pair| pair[0] != pair[1]), "an event was booked twice");

        let mut sums = BTreeMap::new();
        for (source, _, currency, amount) in &ledger {
            *sums.entry(format!("{source} {currency}")).or_insert(0) += amount;
        }
        let balances =
            account.into_iter().map(|(source, currency, balance)| (format!("{source} {currency}"), balance));
        let balances = BTreeMap::from_iter(balances);
        assert_eq!((ledger.len() as i64, &balances), (expected().ledger_rows, &expected().balances));
        assert_eq!(sums, balances, "a balance is not the sum of its rows");
    }
}

macro_rules! on_each_database {
    ($($test:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Place::sqlite().await, super::Place::sqlite().await).await;
            })+
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Place::postgres().await, super::Place::postgres().await).await;
            })+
        }
    };
}

on_each_database! {
    the_figures_are_exact_and_a_second_run_changes_nothing,
    killed_at_random_moments_it_comes_to_the_same_figures,
    two_processes_share_the_work,
}

async fn the_figures_are_exact_and_a_second_run_changes_nothing(place: Place, other: Place) {
    assert_eq!(place.run(), expected());
    place.assert_booked_once().await;
    assert_eq!(place.run(), expected_again());
    place.assert_booked_once().await;

    // One worker takes the lines strictly one after the other; many must not come to another result.
    let output = other.command().args(["--workers", "1"]).output().expect("it starts");
    let alone: Report = serde_json::from_slice(&output.stdout).expect("figures");
    assert_eq!(alone, expected());
}

async fn killed_at_random_moments_it_comes_to_the_same_figures(place: Place, other: Place) {
    let kills = std::env::var(KILLS).map_or(5, |kills| kills.parse().expect("a number"));
    // Moments that hit the work and not the time after it, on a slow machine too.
    let started = Instant::now();
    other.run();
    let longest = started.elapsed().mul_f64(0.4);

    let seed = 5171;
    let command = || {
        let mut command = place.command();
        command.stdout(Stdio::null());
        Ok(command)
    };
    let moments = Moments::seeded(seed, longest).take(kills);
    let killed = killed_and_restarted(command, moments, LONGEST_RUN).expect("the last run ends well");
    eprintln!("killed {killed} of {kills} times within {longest:?}, seed {seed}");
    assert!(killed > 0, "no run was long enough to be killed");
    place.assert_booked_once().await;
    assert_eq!(place.run(), expected_again());
}

async fn two_processes_share_the_work(place: Place, _other: Place) {
    let start = || place.command().stdout(Stdio::piped()).spawn().expect("it starts");
    let both = [start(), start()].map(|child| {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", output.status);
        serde_json::from_slice::<Report>(&output.stdout).expect("figures")
    });
    assert_eq!(both.iter().map(|report| report.applied).sum::<u64>(), expected().applied);
    for report in both {
        assert_eq!(report.applied + report.replayed, expected_again().replayed);
        assert_eq!(report.mismatched, expected().mismatched);
    }
    place.assert_booked_once().await;
}
