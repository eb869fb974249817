//! What is seen while it runs: a line for each answer of the provider; on a terminal one line for all that goes well.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use idem_runtime::outbox::{Delivery, Item, Reconciled};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// More lines than that help nobody; the counts go on.
const MOST_LINES: usize = 400;

/// A line tells of so many staged payouts.
const STAGED_PER_LINE: u32 = 25;

/// The longest text of a provider that is shown.
const LONGEST_TEXT: usize = 170;

#[derive(Debug, Default)]
struct Counts {
    staged: u32,
    again: u32,
    sent: u32,
    delivered: u32,
    unknown: u32,
    reconciled: u32,
    review: u32,
    lines: usize,
}

impl Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { staged, again, sent, delivered, unknown, reconciled, review, lines: _ } = self;
        write!(
            f,
            "staged {staged} (delivered again {again}), sent {sent}, delivered {delivered}, unknown {unknown}, \
             reconciled {reconciled}, review {review}"
        )
    }
}

/// Tells what happens.
#[derive(Debug)]
pub(crate) struct Live {
    counts: Mutex<Counts>,
    /// On a terminal.
    bar: Option<ProgressBar>,
}

impl Live {
    pub(crate) fn start() -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
            match ProgressStyle::with_template("{spinner} {wide_msg}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self { counts: Mutex::default(), bar }
    }

    /// A delivery of an order was handled; `replayed`: it was not the first one.
    pub(crate) fn staged(&self, replayed: bool) {
        let mut counts = self.counts();
        if replayed {
            counts.again += 1;
        } else {
            counts.staged += 1;
            if counts.staged.is_multiple_of(STAGED_PER_LINE) && self.bar.is_none() {
                let text = format!("staged {}, delivered again {}", counts.staged, counts.again);
                self.line(&mut counts, &text);
            }
        }
        self.show(&counts);
    }

    /// A payout is on its way.
    pub(crate) fn sent(&self) {
        let mut counts = self.counts();
        counts.sent += 1;
        self.show(&counts);
    }

    /// The provider has answered, or has not.
    pub(crate) fn told(&self, order: &str, attempt: u32, delivery: &Delivery) {
        let mut counts = self.counts();
        let answer = match delivery {
            Delivery::Delivered { reference } => {
                counts.delivered += 1;
                format!("delivered, {}", reference.as_deref().unwrap_or("no reference"))
            }
            Delivery::Accepted { .. } => "accepted, to be done later".to_owned(),
            Delivery::NotSent { error, .. } => format!("not taken: {error}"),
            Delivery::Rejected { error } => format!("refused: {error}"),
            Delivery::Unknown { error, .. } => {
                counts.unknown += 1;
                format!("unknown: {error}")
            }
            Delivery::Review { error } => format!("proves nothing: {error}"),
            Delivery::Halt { error } => format!("all halted: {error}"),
        };
        // On a terminal what goes well at once is in the counts.
        let smooth = attempt == 1 && matches!(delivery, Delivery::Delivered { .. });
        if self.bar.is_none() || !smooth {
            self.line(&mut counts, &format!("{order}  sent ({attempt})  {answer}"));
        }
        self.show(&counts);
    }

    /// The provider has said whether it has happened.
    pub(crate) fn asked(&self, order: &str, reconciled: &Reconciled) {
        let mut counts = self.counts();
        let answer = match reconciled {
            Reconciled::Happened { .. } => "reconciled: it has happened",
            Reconciled::DidNotHappen => "reconciled: it has not happened",
            Reconciled::Refused { .. } => "reconciled: it was refused",
            Reconciled::Unknown => "not known yet",
            Reconciled::Unsupported => "it cannot be said",
        };
        if answer.starts_with("reconciled") {
            counts.reconciled += 1;
        }
        self.line(&mut counts, &format!("{order}  asked     {answer}"));
        self.show(&counts);
    }

    /// A person decides.
    pub(crate) fn review(&self, item: &Item) {
        let mut counts = self.counts();
        counts.review += 1;
        let error = item.last_error.as_deref().unwrap_or("no error");
        // However many there are: each waits for somebody.
        self.print(&format!("{}  review    {error}", item.key));
        self.show(&counts);
    }

    /// The last word.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        // Who has closed the output is not told.
        _ = writeln!(std::io::stdout(), "{}", self.counts());
    }

    fn line(&self, counts: &mut Counts, text: &str) {
        counts.lines += 1;
        match counts.lines {
            ..MOST_LINES => self.print(text),
            MOST_LINES => self.print("(more lines are left out)"),
            _ => {}
        }
    }

    fn print(&self, text: &str) {
        let end = text.char_indices().nth(LONGEST_TEXT).map_or(text.len(), |(end, _)| end);
        let text = &text[..end];
        match &self.bar {
            Some(bar) => bar.println(text),
            // Who has closed the output is not told.
            None => _ = writeln!(std::io::stdout(), "{text}"),
        }
    }

    fn show(&self, counts: &Counts) {
        if let Some(bar) = &self.bar {
            bar.set_message(counts.to_string());
            bar.tick();
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
