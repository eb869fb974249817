//! Pairs of neighbouring blocks, the median of their ratios, and the interval that holds it. A neighbour has seen
//! the same machine, and a median does not care about the pair that was disturbed; so nothing is assumed about how
//! times are distributed.

/// The median of ratios with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The middle one.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

/// Whether a ratio is at least what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval is.
    Yes,
    /// The interval reaches it.
    Reaches,
    /// The interval ends below it.
    No,
}

impl Ratio {
    /// Of at least one ratio; the interval covers the true median with a probability of at least 95 % (the sign
    /// test's), and is all of the sample where the sample is too small for that.
    pub fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.sort_by(f64::total_cmp);
        let (first, last) = (*ratios.first()?, *ratios.last()?);
        let n = ratios.len();
        let median = (ratios[(n - 1) / 2] + ratios[n / 2]) / 2.0;
        let (low, high) = match outside(n) {
            Some(k) => (ratios[k], ratios[n - 1 - k]),
            None => (first, last),
        };
        Some(Self { median, low, high })
    }

    /// Compared with what is asked for.
    pub fn at_least(&self, bound: f64) -> Verdict {
        if self.low >= bound {
            Verdict::Yes
        } else if self.high >= bound {
            Verdict::Reaches
        } else {
            Verdict::No
        }
    }
}

/// How many values are below the interval, and as many above it: the most for which both tails of Bin(n, 1/2)
/// together have at most 5 %. `None` where even the whole sample covers less.
fn outside(n: usize) -> Option<usize> {
    // P(Bin = k), in logarithms: 2^-n is no f64 for a long run.
    let mut ln_p = -(n as f64) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    let mut found = None;
    for k in 0..n / 2 {
        tail += ln_p.exp();
        if tail > 0.025 {
            break;
        }
        // P(Bin <= k) is the chance that the median is below the value with k others below it.
        found = Some(k);
        ln_p += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_the_sign_tests() {
        // From tables of the order statistics (1-based): n = 6: 1..6, n = 10: 2..9, n = 20: 6..15, n = 100: 40..61.
        for (n, below) in [(5, None), (6, Some(0)), (10, Some(1)), (20, Some(5)), (100, Some(39))] {
            assert_eq!(outside(n), below, "n = {n}");
        }
        // The normal approximation, n/2 - 0.98 * sqrt(n), where the exact sum would underflow if done carelessly.
        assert_eq!(outside(5000), Some(2430));
    }

    #[test]
    fn median_and_interval_of_a_sample() {
        let ratios = (1..=10).rev().map(f64::from).collect();
        assert_eq!(Ratio::of(ratios), Some(Ratio { median: 5.5, low: 2.0, high: 9.0 }));
        assert_eq!(Ratio::of(vec![3.0, 1.0, 2.0]), Some(Ratio { median: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(Ratio::of(Vec::new()), None);
    }

    #[test]
    fn one_disturbed_pair_changes_little() {
        let mut ratios = vec![1.0; 50];
        ratios.push(1000.0);
        assert_eq!(Ratio::of(ratios), Some(Ratio { median: 1.0, low: 1.0, high: 1.0 }));
    }

    #[test]
    fn verdicts() {
        let ratio = |low, high| Ratio { median: f64::midpoint(low, high), low, high };
        assert_eq!(ratio(0.97, 1.0).at_least(0.97), Verdict::Yes);
        assert_eq!(ratio(0.96, 0.98).at_least(0.97), Verdict::Reaches);
        assert_eq!(ratio(0.95, 0.96).at_least(0.97), Verdict::No);
    }
}
