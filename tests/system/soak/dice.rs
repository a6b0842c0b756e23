//! All decisions, drawn from the seed and from what they are about: in whatever order the machine runs things, the same
//! call and the same request meet the same fate.

use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// `about` names what is decided, `number` which one of them.
    pub(crate) fn about(seed: u64, about: &str, number: u64) -> Self {
        let mut dice = Self(seed ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        for byte in about.bytes() {
            dice.0 = dice.next() ^ u64::from(byte);
        }
        dice
    }

    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// One of these, each as often as its weight says.
    pub(crate) fn weighed<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut at = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, one) in of {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *one,
            }
        }
        unreachable!("below the sum")
    }
}
