//! The command line.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use clap::Parser;

/// Pays orders by a provider that resets, hangs, refuses and comes late, and shows that none is paid twice or lost.
///
/// Handlers, the worker and the provider run together, on a new SQLite file, until everything is settled or a minute is
/// over. What only a person can decide is shown, and left as it is.
#[derive(Debug, Parser)]
#[command(
    name = "payouts",
    after_help = "Exit code: 0 if all equations at the end hold; 1 if one does not, or if the run could not be made; \
                  2 for a wrong command line."
)]
pub(crate) struct Args {
    /// How many orders are to be paid
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub(crate) payouts: u16,

    /// Chooses faults and duplicated deliveries; the same number gives the same ones [default: at random]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

impl Args {
    /// The one that was given, or a short one at random.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }
}
