//! The quickstart: a stream in which every event is delivered at least once, booked exactly once.
//!
//! Read `handler.rs` first: it is what you would write in your own program. Then `event.rs` (who may speak, and what is
//! an event at all) and `stream.rs` (several workers, and yet the first of two contradicting deliveries wins). The
//! rest is the command around it.

#![cfg_attr(
    feature = "postgres",
    expect(clippy::duplicate_mod, reason = "two files are compiled once for each database, on purpose")
)]

mod args;
mod booking;
mod database;
mod event;
mod report;
mod stream;

// The two files in here are written as for one database and compiled once for each: `Tx` is the only difference. A
// program of yours has one database; there it is `use idem_runtime::PgTx;` and no module around it.
#[path = "."]
mod sqlite {
    use idem_runtime::SqliteTx as Tx;
    use sqlx::{SqliteConnection as Connection, SqlitePool as Pool};

    pub(crate) mod handler;
    pub(crate) mod ledger;
}
#[cfg(feature = "postgres")]
#[path = "."]
mod postgres {
    use idem_runtime::PgTx as Tx;
    use sqlx::{PgConnection as Connection, PgPool as Pool};

    pub(crate) mod handler;
    pub(crate) mod ledger;
}

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::runtime::Runtime;

use crate::args::Args;
use crate::database::Database;
use crate::report::{Progress, Summary};
use crate::stream::Stream;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = Runtime::new().context("starting the runtime").and_then(|runtime| {
        let result = runtime.block_on(run(args));
        // After an error a thread may still wait for standard input; nobody waits for that thread.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, each once: many an error's text already holds that of its cause.
fn explain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        known if known.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}

async fn run(args: Args) -> anyhow::Result<()> {
    let stream = Stream::open(args.file.as_deref()).await?;
    let database = Database::open(args.database.as_ref()).await?;
    let progress = Progress::of(stream.bytes());
    let tally = stream
        .book(&database, args.workers, &progress)
        .await
        .context("stopped; what was booked is kept, and running it again on the same database goes on")?;
    progress.finish();
    let figures = database.figures().await?;
    Summary::new(tally, figures).print(args.json)
}
