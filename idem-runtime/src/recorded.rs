//! Which identities this process has lately seen a record of. It is a hint and no proof: who claims one of them reads
//! before it writes, so that a replay is answered sooner. A wrong hint costs one look.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Identity;

/// 32 KiB for each store. A later identity displaces an earlier one of the same slot.
const SLOTS: usize = 4096;

pub(crate) struct Recorded {
    hasher: RandomState,
    slots: Box<[AtomicU64]>,
}

impl Recorded {
    pub(crate) fn none() -> Self {
        Self { hasher: RandomState::new(), slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Its record was committed, or read.
    pub(crate) fn note(&self, identity: &Identity) {
        let (slot, hash) = self.slot(identity);
        slot.store(hash, Ordering::Relaxed);
    }

    pub(crate) fn is_likely(&self, identity: &Identity) -> bool {
        let (slot, hash) = self.slot(identity);
        slot.load(Ordering::Relaxed) == hash
    }

    fn slot(&self, identity: &Identity) -> (&AtomicU64, u64) {
        // Never the 0 of an empty slot.
        let hash = self.hasher.hash_one(identity) | 1;
        (&self.slots[(hash >> 32) as usize % SLOTS], hash)
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorded")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verified;

    #[test]
    fn what_was_noted_is_likely_and_nothing_else() {
        let recorded = Recorded::none();
        let identity = |key| Identity::new("op", &Verified::vouch("s"), key).expect("valid");
        assert!(!recorded.is_likely(&identity("a")));
        recorded.note(&identity("a"));
        assert!(recorded.is_likely(&identity("a")));
        assert!(!recorded.is_likely(&identity("b")));
    }
}
