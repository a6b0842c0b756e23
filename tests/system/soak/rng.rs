//! Random decisions. Each decision depends only on the seed and on the subject of the decision. The order in which
//! threads and tasks run has no effect.

use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Creates the generator for one decision: `subject` and `number` identify the decision.
    pub(crate) fn new(seed: u64, subject: &str, number: u64) -> Self {
        let mut rng = Self(seed ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        for byte in subject.bytes() {
            rng.0 = rng.next() ^ u64::from(byte);
        }
        rng
    }

    /// Returns the next number of SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns `true` with a probability of `per_mille` / 1000.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns a duration between `from` and `to` milliseconds, both included.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }

    pub(crate) fn choose<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Returns an item with a probability proportional to its weight.
    pub(crate) fn choose_weighted<T: Copy>(&mut self, items: &[(u64, T)]) -> T {
        let mut position = self.below(items.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in items {
            match position.checked_sub(*weight) {
                Some(rest) => position = rest,
                None => return *item,
            }
        }
        unreachable!("the position is less than the sum of the weights")
    }
}
