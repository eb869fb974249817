//! Blocks in turns. A round runs each variant of a group once, in an order that changes, so that what slows the
//! machine for a while hits all of them; ratios are taken within a round.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::measure::Ratio;
use crate::variants::Variants;
use crate::work::{Crew, Work};

/// How much longer than planned a group may take.
const PATIENCE: f64 = 1.2;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    block: Duration,
    rounds: [usize; 4],
}

impl Plan {
    /// About 75 s for each database and number of connections: 130 pairs of what is decided by 0.97, fewer of the
    /// rest, so that the whole stays below a quarter of an hour.
    pub fn full() -> Self {
        Self::new(Duration::from_millis(100), [130, 60, 40, 30])
    }

    /// A few seconds each: whether it works, and roughly where it stands.
    pub fn quick() -> Self {
        Self::new(Duration::from_millis(50), [20, 8, 8, 8])
    }

    /// With so many rounds of the four groups: fresh keys, fresh keys without an outcome, replays, duplicates.
    pub fn new(block: Duration, rounds: [usize; 4]) -> Self {
        Self { block, rounds }
    }

    /// The pairs of each group.
    pub fn rounds(&self) -> [usize; 4] {
        self.rounds
    }
}

/// What came out for one variant.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Which one.
    pub work: Work,
    /// Its throughput over the bare transaction's.
    pub to_bare: Option<Ratio>,
    /// Its throughput over that of the same by hand.
    pub to_hand: Option<Ratio>,
    /// How many rounds that is.
    pub pairs: usize,
    /// For context: calls (or bursts) a second, the median of the blocks.
    pub per_second: f64,
}

/// Runs all groups.
///
/// # Errors
/// Of a variant, or if one answered wrongly.
pub async fn run<V: Variants>(crew: &Crew<V>, plan: &Plan) -> Result<Vec<Line>> {
    // Variants of one group write to tables of their own: two in one would measure an index twice as large.
    let groups: [&[Work]; 4] = [
        &[Work::Bare, Work::Minimal, Work::ByHand, Work::Macro],
        &[Work::Bare, Work::ByHand, Work::MacroUnit],
        &[Work::Bare, Work::ReplayByHand, Work::Replay],
        &[Work::DuplicatesByHand, Work::Duplicates],
    ];
    let mut lines: Vec<Line> = Vec::new();
    for (works, rounds) in groups.into_iter().zip(plan.rounds) {
        for line in run_group(crew, plan.block, works, rounds).await? {
            // Some are measured again as the base of another group.
            if lines.iter().all(|known| known.work != line.work) {
                lines.push(line);
            }
        }
    }
    crew.audit().await?;
    Ok(lines)
}

/// Variants in turns.
async fn run_group<V: Variants>(
    crew: &Crew<V>,
    block: Duration,
    works: &[Work],
    rounds: usize,
) -> Result<Vec<Line>> {
    let count = works.len();
    let mut times = Vec::with_capacity(count);
    for work in works {
        times.push(calibrate(crew, *work, block).await?);
    }
    // By variant, one throughput a round.
    let mut rates = vec![Vec::with_capacity(rounds); count];
    // A machine that gets busier makes blocks longer than they were measured to be: then there are fewer of them.
    let patience = (block * (count * rounds) as u32).mul_f64(PATIENCE);
    let started = Instant::now();
    for round in 0..rounds {
        if started.elapsed() > patience {
            break;
        }
        for at in order(round, count) {
            let elapsed = crew.block(works[at], times[at]).await?;
            rates[at].push(crew.calls(works[at], times[at]) as f64 / elapsed.as_secs_f64());
        }
    }
    let find = |work| works.iter().position(|w| *w == work);
    let ratio = |at: usize, base: Option<usize>| {
        let base = &rates[base.filter(|base| *base != at)?];
        Ratio::of(rates[at].iter().zip(base).map(|(rate, base)| rate / base).collect())
    };
    Ok(works
        .iter()
        .enumerate()
        .map(|(at, work)| Line {
            work: *work,
            to_bare: ratio(at, find(Work::Bare)),
            to_hand: ratio(at, work.by_hand().and_then(find)),
            pairs: rates[at].len(),
            per_second: Ratio::of(rates[at].clone()).map_or(0.0, |ratio| ratio.median),
        })
        .collect())
}

/// Every variant comes first, last and next to every other equally often.
fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |n| {
        let n = if round.is_multiple_of(2) { n } else { count - 1 - n };
        (n + round / 2) % count
    })
}

/// How many times make a block of this length; warms everything up.
async fn calibrate<V: Variants>(crew: &Crew<V>, work: Work, block: Duration) -> Result<usize> {
    let mut times = 1;
    loop {
        let elapsed = crew.block(work, times).await?;
        if elapsed >= block / 2 {
            // The second of two, since the first one's connections were cold.
            let elapsed = crew.block(work, times).await?;
            let exact = times as f64 * block.as_secs_f64() / elapsed.as_secs_f64();
            return Ok(exact.round().max(1.0) as usize);
        }
        times *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_permutations_that_favour_nobody() {
        for count in 2..=5 {
            let mut first = vec![0; count];
            for round in 0..2 * count {
                let mut order: Vec<usize> = order(round, count).collect();
                first[order[0]] += 1;
                order.sort_unstable();
                assert_eq!(order, (0..count).collect::<Vec<_>>());
            }
            assert!(first.iter().all(|times| *times == 2), "{first:?}");
        }
    }
}
