//! What a person reads: a table for each database, and a line for each requirement.

use std::fmt::Write as _;

use crate::measure::{Ratio, Verdict};
use crate::round_trips::Counts;
use crate::schedule::Line;
use crate::work::Work;

/// What the macro must reach of the version by hand.
pub const REQUIRED: f64 = 0.97;

/// The round trips that the macro may add to a bare transaction.
const MAY_ADD: usize = 2;
/// The round trips after which a replay is answered at the latest.
const REPLAY: usize = 3;

/// What was measured on one database, by number of connections.
#[derive(Clone, Debug)]
pub struct Section {
    /// Which database, and how it was reached.
    pub title: &'static str,
    /// In the order of measuring.
    pub lines: Vec<(usize, Vec<Line>)>,
}

/// The head of a section's table.
pub fn head(title: &str) -> String {
    format!(
        "\n{title}\n{:>5}  {:<27} {:<22} {:<22} {:<8} {:>5} {:>9}\n",
        "conns",
        "",
        "of bare [95 %]",
        "of by hand [95 %]",
        format!("{REQUIRED}?"),
        "pairs",
        "(per s)"
    )
}

/// The rows for one number of connections.
pub fn rows(connections: usize, lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let verdict = match line.to_hand.map(|ratio| ratio.at_least(REQUIRED)) {
            None => "",
            Some(Verdict::Yes) => "yes",
            Some(Verdict::Reaches) => "reaches",
            Some(Verdict::No) => "NO",
        };
        _ = writeln!(
            text,
            "{connections:>5}  {:<27} {:<22} {:<22} {verdict:<8} {:>5} {:>9.0}",
            line.work.name(),
            line.to_bare.map_or_else(String::new, interval),
            line.to_hand.map_or_else(String::new, interval),
            line.pairs,
            line.per_second
        );
    }
    text
}

fn interval(ratio: Ratio) -> String {
    format!("{:.3} [{:.3}, {:.3}]", ratio.median, ratio.low, ratio.high)
}

/// The table of round trips.
pub fn round_trips(counts: &Counts) -> String {
    let mut text = format!(
        "\nRound trips per call, on a warm connection (exact)\n       {:<35} {:>7} {:>9} {:>16}\n",
        "", "answer", "of bare", "after the answer"
    );
    for (name, trips) in counts.named() {
        let more = trips.answer as isize - counts.bare.answer as isize;
        let more = if trips == counts.pool { String::new() } else { format!("{more:+}") };
        // What the pool does for a connection that was only taken is its own.
        let after = match trips.after.checked_sub(counts.pool.after) {
            Some(0) => "pool's ping".to_owned(),
            Some(more) => format!("pool's ping + {more}"),
            None => trips.after.to_string(),
        };
        _ = writeln!(text, "       {name:<35} {:>7} {more:>9} {after:>16}", trips.answer);
    }
    text
}

/// One line for each requirement on round trips.
pub fn round_trip_summary(counts: &Counts) -> String {
    let holds = |yes| if yes { "holds" } else { "BROKEN" };
    let (added, replay) = (counts.added(), counts.replay.answer);
    let only_ping = [counts.annotated, counts.annotated_unit, counts.replay]
        .iter()
        .all(|trips| trips.after == counts.pool.after);
    format!(
        "{}: a fresh run adds {added} round trips to the bare transaction (at most {MAY_ADD})\n\
         {}: a replay is answered after {replay} round trips (at most {REPLAY})\n\
         {}: neither takes a second connection, and nothing but the pool's own ping follows an answer\n",
        holds(added <= MAY_ADD),
        holds(replay <= REPLAY),
        holds(only_ping && counts.more_connections == 0),
    )
}

/// One line for each requirement on time, with what does not hold named.
pub fn summary(sections: &[Section]) -> String {
    let mut text = String::new();
    for section in sections {
        for (what, works) in [
            ("the macro on a fresh key", &[Work::MacroUnit, Work::Macro][..]),
            ("a replay by the macro", &[Work::Replay]),
            ("32 duplicates with the macro", &[Work::Duplicates]),
        ] {
            let found: Vec<(usize, &Line, Ratio)> = section
                .lines
                .iter()
                .flat_map(|(connections, lines)| lines.iter().map(move |line| (*connections, line)))
                .filter(|(_, line)| works.contains(&line.work))
                .filter_map(|(connections, line)| Some((connections, line, line.to_hand?)))
                .collect();
            let below: Vec<_> =
                found.iter().filter(|(.., ratio)| ratio.at_least(REQUIRED) == Verdict::No).collect();
            let lowest = found.iter().map(|(.., ratio)| ratio.median).fold(f64::INFINITY, f64::min);
            let holds = if below.is_empty() { "holds" } else { "BROKEN" };
            _ = write!(
                text,
                "{holds}: {}: {what} reaches {REQUIRED} of by hand in {} of {} (lowest median {lowest:.3})",
                section.title,
                found.len() - below.len(),
                found.len()
            );
            for (connections, line, _) in below {
                _ = write!(text, "; not {} at {connections}", line.work.name());
            }
            text.push('\n');
        }
    }
    text
}
