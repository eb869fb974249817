//! Time in a lane.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The database's clock, carried on by ours.
pub(super) struct Clock {
    pub(super) at: SystemTime,
    pub(super) read: Instant,
}

impl Clock {
    pub(super) fn now(&self) -> SystemTime {
        self.at + self.read.elapsed()
    }
}

/// Up to a fifth of it.
pub(super) fn jitter(wait: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    wait.mul_f64(random as f64 / u64::MAX as f64 / 5.0)
}
