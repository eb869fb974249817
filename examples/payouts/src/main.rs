//! Payouts: orders that are delivered at least once, paid by a provider that fails in every way, each paid once.
//!
//! Read `handler.rs` first: it is what you would write in your own program. Then `bank.rs`, which tells the worker what
//! the provider promises. The rest is the command around it.

mod args;
mod balance;
mod bank;
mod deliveries;
mod handler;
mod live;

use std::collections::HashSet;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use idem_runtime::SqliteStore;
use idem_runtime::outbox::{Filter, Review, Worker};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::args::Args;
use crate::balance::{Balance, standing};
use crate::bank::{Bank, policy};
use crate::live::Live;

/// The whole run is not to take longer.
const LONGEST_RUN: Duration = Duration::from_secs(60);

/// How often it is looked whether there is something left to do.
const LOOK: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("payouts: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether everything came out even.
async fn run(args: &Args) -> anyhow::Result<bool> {
    let seed = args.seed();
    let store = database().await?;
    writeln!(std::io::stdout(), "seed: {seed} (again: --payouts {} --seed {seed})", args.payouts)?;

    let live = Arc::new(Live::start());
    let bank = bank::start(seed).await.context("starting the provider")?;
    let client = Bank::client(&bank, live.clone())?;
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(&store).provider(client).policy(policy()).run(async { _ = stopped.await });
    let worker = tokio::spawn(worker);

    let deadline = Instant::now() + LONGEST_RUN;
    let deliveries = deliveries::deliveries(seed, args.payouts);
    let delivering = deliveries::deliver(&store, deliveries, &live);
    tokio::pin!(delivering);
    let mut handled = false;
    let mut look = tokio::time::interval(LOOK);
    let mut in_review = HashSet::new();
    while Instant::now() < deadline {
        tokio::select! {
            delivered = &mut delivering, if !handled => {
                delivered.context("handling a delivery")?;
                handled = true;
            }
            _ = look.tick() => {
                show_review(&store, &mut in_review, &live).await?;
                let now = standing(&store).await?;
                if handled && now.is_none_or(|now| now.pending + now.accepted == 0) {
                    break;
                }
            }
        }
    }
    // A worker that has failed has gone already.
    _ = stop.send(());
    worker.await?.context("the worker")?;
    show_review(&store, &mut in_review, &live).await?;
    live.finish();

    anyhow::ensure!(handled, "not all orders could be delivered in {LONGEST_RUN:?}");
    let balance = Balance::read(args.payouts, &store, &bank).await?;
    write!(std::io::stdout(), "{balance}").context("writing to standard output")?;
    Ok(balance.holds())
}

/// Shows what has come to review and is not among the `known`.
async fn show_review(store: &SqliteStore, known: &mut HashSet<i64>, live: &Live) -> anyhow::Result<()> {
    for item in Review::new(store).list(&Filter { limit: u32::MAX, ..Filter::default() }).await? {
        if known.insert(item.id) {
            live.review(&item);
        }
    }
    Ok(())
}

/// A new file with the store's tables and the handler's.
async fn database() -> anyhow::Result<SqliteStore> {
    let (_, path) = tempfile::Builder::new()
        .prefix("payouts-")
        .suffix(".sqlite3")
        .tempfile()
        .and_then(|file| Ok(file.keep()?))
        .context("making a new database")?;
    writeln!(std::io::stdout(), "database: {}", path.display())?;
    let options = SqliteConnectOptions::new().filename(path);
    let store = SqliteStore::connect(options.clone()).await?;
    store.migrate().await?;
    let mut conn = options.connect().await?;
    sqlx::raw_sql(handler::TABLE).execute(&mut conn).await?;
    conn.close().await?;
    Ok(store)
}
