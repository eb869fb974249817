//! What a person or a program sees: progress and refused lines on standard error, the figures on standard output.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::Write as _;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// What became of the deliveries of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Tally {
    pub(crate) deliveries: u64,
    pub(crate) applied: u64,
    pub(crate) replayed: u64,
    pub(crate) mismatched: u64,
    pub(crate) refused_source: u64,
    pub(crate) invalid: u64,
}

/// What the database holds, from all runs.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) ledger_rows: i64,
    /// By "source currency", in minor units.
    pub(crate) balances: BTreeMap<String, i64>,
}

/// Both.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    #[serde(flatten)]
    tally: Tally,
    #[serde(flatten)]
    figures: Figures,
}

impl Summary {
    pub(crate) fn new(tally: Tally, figures: Figures) -> Self {
        Self { tally, figures }
    }

    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = if json { serde_json::to_string_pretty(self)? + "\n" } else { self.to_string() };
        // Not `print!`, which panics where nobody reads.
        std::io::stdout().write_all(text.as_bytes()).context("writing to standard output")
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tally, figures } = self;
        writeln!(f, "{:<20}{:>20}", "deliveries", tally.deliveries)?;
        for (name, count) in [
            ("applied", tally.applied),
            ("replayed", tally.replayed),
            ("mismatched", tally.mismatched),
            ("refused_source", tally.refused_source),
            ("invalid", tally.invalid),
        ] {
            writeln!(f, "  {name:<18}{count:>20}")?;
        }
        writeln!(f, "{:<20}{:>20}", "ledger rows", figures.ledger_rows)?;
        writeln!(f, "balances (minor units)")?;
        for (account, balance) in &figures.balances {
            writeln!(f, "  {account:<18}{balance:>20}")?;
        }
        Ok(())
    }
}

/// A bar on a terminal, nothing elsewhere.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Of a stream of so many bytes; `None` where nobody knows.
    pub(crate) fn of(bytes: Option<u64>) -> Self {
        let (bar, template) = match bytes {
            Some(bytes) => (ProgressBar::new(bytes), "{wide_bar} {percent:>3} %  {msg}"),
            None => (ProgressBar::new_spinner(), "{spinner} {msg}"),
        };
        Self(match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    /// All before this byte is settled.
    pub(crate) fn settled(&self, bytes: u64, tally: &Tally) {
        self.0.set_position(bytes);
        self.0.set_message(format!("{} applied, {} replayed", tally.applied, tally.replayed));
    }

    /// Says why a line was not handled.
    pub(crate) fn refused(&self, line: u64, reason: impl Display) {
        // A line may be long and its error may quote it.
        let reason = reason.to_string();
        let end = reason.char_indices().nth(200).map_or(reason.len(), |(end, _)| end);
        let more = if end < reason.len() { ".." } else { "" };
        self.0.suspend(|| eprintln!("line {line}: {}{more}", &reason[..end]));
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
