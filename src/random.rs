//! Random numbers for jitter and request ids. They are fast, need no lock, and can be seeded. Do not use them for
//! secrets.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::atomic::{AtomicU64, Ordering},
};

/// The generator SplitMix64, which mixes the value of a counter. All clones of a layer share one counter, so that they
/// draw different numbers.
#[derive(Debug)]
pub(crate) struct Random(AtomicU64);

impl Random {
    /// Seeds the generator with the keys of std's hasher. The operating system provides these keys once for each
    /// process and thread.
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
    fn generators_with_equal_seeds_agree_and_unseeded_generators_differ() {
        let (a, b) = (Random::seeded(7), Random::seeded(7));
        assert!((0..100).all(|_| a.next() == b.next()));
        assert_ne!(Random::from_entropy().next(), Random::from_entropy().next());
    }

    #[test]
    fn splitmix64_matches_the_published_test_vector() {
        let random = Random::seeded(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
