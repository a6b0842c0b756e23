//! Randomness for jitter and request ids: cheap, shared without a lock, seedable. Not for secrets.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::atomic::{AtomicU64, Ordering},
};

/// SplitMix64: a counter, and a mixing of its value. Clones of a layer share one counter, so that no two of
/// them draw the same sequence.
#[derive(Debug)]
pub(crate) struct Random(AtomicU64);

impl Random {
    /// Seeded by the operating system, once per process and thread, through std's hasher keys.
    pub(crate) fn from_entropy() -> Self {
        Self::seeded(RandomState::new().hash_one(0x5eed_u64))
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_two_layers_differ() {
        let (a, b) = (Random::seeded(7), Random::seeded(7));
        assert!((0..100).all(|_| a.next() == b.next()));
        assert_ne!(Random::from_entropy().next(), Random::from_entropy().next());
    }

    #[test]
    fn the_published_test_vector_holds() {
        let random = Random::seeded(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
