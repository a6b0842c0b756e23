//! Random numbers for tests and simulations.

use crate::random;

#[derive(Debug)]
pub(crate) struct Random(random::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(random::Random::seeded(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// Returns a number from 0 to `most`.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        self.next() % most.saturating_add(1).max(1)
    }

    /// Returns `true` with a probability of `percent`.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.next() as usize % of.len()]
    }
}
