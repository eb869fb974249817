//! `cargo xtask bench`: measures and prints.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use idem_benches::round_trips::{self, Counts};
use idem_benches::schedule::{self, Plan};
use idem_benches::table::{self, Section};
use idem_benches::variants::{Variants, postgres, sqlite};
use idem_benches::work::Crew;
use idem_testkit::postgres::{Postgres, TestDatabase};
use idem_testkit::proxy::Proxy;
use tokio::runtime::{Builder, Runtime};

const HELP: &str = "\
Usage: cargo xtask bench [options]

Compares the macro with a bare transaction and with the same pattern by hand, in turns, in one run. By default about
a quarter of an hour; only ratios mean something, so other work on the machine does not hurt much.

Options:
  --quick                           fewer and shorter blocks: about a minute
  --only sqlite|postgres|network    one of the three (round trips are counted with the two on Postgres)
  --connections N                   only this number of connections, in place of 1, 8 and 32
  --help
";

const CONNECTIONS: [usize; 3] = [1, 8, 32];

/// What the proxy adds to every message, each way.
const DELAY: Duration = Duration::from_micros(250);

const SQLITE: &str = "SQLite (file, WAL, synchronous = FULL)";
const LOOPBACK: &str = "Postgres (loopback, fsync on)";
const NETWORK: &str = "Postgres (0.25 ms each way)";

#[derive(Debug)]
struct Options {
    plan: Plan,
    only: Option<String>,
    connections: Vec<usize>,
}

fn main() -> ExitCode {
    let result = match options() {
        Ok(Some(options)) => run(&options),
        Ok(None) => {
            print(HELP);
            Ok(())
        }
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `None`: help is wanted.
fn options() -> Result<Option<Options>> {
    let mut options = Options { plan: Plan::full(), only: None, connections: CONNECTIONS.to_vec() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => return Ok(None),
            "--quick" => options.plan = Plan::quick(),
            "--only" => {
                let only = arguments.next().unwrap_or_default();
                if !["sqlite", "postgres", "network"].contains(&only.as_str()) {
                    bail!("--only takes sqlite, postgres or network, not {only:?}");
                }
                options.only = Some(only);
            }
            "--connections" => {
                let number = arguments.next().unwrap_or_default();
                // The accounts are for so many workers.
                let number = number.parse().ok().filter(|n| (1..=32).contains(n));
                options.connections = vec![number.context("--connections takes a number from 1 to 32")?];
            }
            other => bail!("unknown argument {other:?}\n\n{HELP}"),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> Result<()> {
    let started = Instant::now();
    let wanted = |what| options.only.as_deref().is_none_or(|only| only == what);
    let [fresh, unit, replays, duplicates] = options.plan.rounds();
    print(&format!(
        "Throughput as the median of ratios of neighbouring blocks: {fresh} pairs with fresh keys ({unit} with `()`\n\
         as outcome), {replays} with replays, {duplicates} with bursts of duplicates; fewer if the machine gets busier\n\
         meanwhile. In brackets the interval that holds the true median with 95 %. Below {REQUIRED} of by hand with the whole interval\n\
         is NO. Calls (or bursts) per second are context.\n",
        REQUIRED = table::REQUIRED
    ));
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let mut sections = Vec::new();
    let mut counts = None;
    if wanted("sqlite") {
        let folder = tempfile::tempdir()?;
        sections.push(section(&runtime, SQLITE, options, |connections| {
            let path = folder.path().join(format!("{connections}.sqlite3"));
            async move { Ok((sqlite::Sqlite::open(&path).await?, ())) }
        })?);
    }
    if wanted("postgres") || wanted("network") {
        let server = Postgres::start()?;
        let url = server.url("postgres");
        let counted = count(&url)?;
        print(&table::round_trips(&counted));
        counts = Some(counted);
        if wanted("postgres") {
            sections.push(section(&runtime, LOOPBACK, options, |connections| {
                let url = url.clone();
                async move {
                    let database = TestDatabase::create_in(&url).await?;
                    Ok((postgres::Postgres::open(database.url(), connections as u32).await?, database))
                }
            })?);
        }
        if wanted("network") {
            sections.push(section(&runtime, NETWORK, options, |connections| {
                let url = url.clone();
                async move {
                    let database = TestDatabase::create_in(&url).await?;
                    let proxy = Proxy::in_front_of(database.url())?;
                    let url = proxy.url(database.url())?;
                    let variants = postgres::Postgres::open(&url, connections as u32).await?;
                    proxy.set_delay(DELAY);
                    Ok((variants, (proxy, database)))
                }
            })?);
        }
    }
    print(&format!("\nAfter {} s:\n", started.elapsed().as_secs()));
    if let Some(counts) = &counts {
        print(&table::round_trip_summary(counts));
    }
    print(&table::summary(&sections));
    Ok(())
}

/// Measures one database, each number of connections with one that is opened for it; what `open` answers beside the
/// variants is held until they are measured.
fn section<V: Variants, H, F: Future<Output = Result<(V, H)>>>(
    runtime: &Runtime,
    title: &'static str,
    options: &Options,
    open: impl Fn(usize) -> F,
) -> Result<Section> {
    print(&table::head(title));
    let mut lines = Vec::new();
    for connections in &options.connections {
        let measured = runtime.block_on(async {
            let (variants, held) = open(*connections).await?;
            let measured = schedule::run(&Crew::new(variants, *connections).await?, &options.plan).await;
            drop(held);
            measured
        });
        let measured = measured.with_context(|| format!("{title}, {connections} connections"))?;
        print(&table::rows(*connections, &measured));
        lines.push((*connections, measured));
    }
    Ok(Section { title, lines })
}

fn count(server: &str) -> Result<Counts> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let database = TestDatabase::create_in(server).await?;
        round_trips::count(database.url()).await
    })
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn print(text: &str) {
    print!("{text}");
}
