//! How those who waited leave a pause where no quota spreads them: as many as are known to be welcome, and twice as
//! many with each step.
//!
//! The first ask whether the pause was long enough; a server that says no stops the rest by its next word.

/// Every step as many again have gone: 100 ms, in nanoseconds, a round trip across an ocean.
const STEP: u64 = 100_000_000;

/// After 20 steps, 2 s, a million times as many could have gone: it is over.
const STEPS: u32 = 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct Ramp {
    from: u64,
    /// So many go at once, 1 at least.
    first: u64,
    gone: u64,
}

impl Ramp {
    /// Begins at this moment with so many, or with one.
    pub(super) fn new(from: u64, first: u64) -> Self {
        Self { from, first: first.max(1), gone: 0 }
    }

    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// When the last of `total` more can go.
    pub(super) fn due(&self, total: u64) -> u64 {
        self.from.saturating_add(self.offset(self.gone.saturating_add(total)))
    }

    pub(super) fn spend(&mut self, cost: u64) {
        self.gone = self.gone.saturating_add(cost);
    }

    /// How many more can go; none where it bounds nothing.
    pub(super) fn left(&self, now: u64) -> Option<u64> {
        let Some(elapsed) = now.checked_sub(self.from) else { return Some(0) };
        if over(elapsed) {
            return None;
        }
        let doubled = u128::from(self.first) << (elapsed / STEP);
        let began = doubled * u128::from(elapsed % STEP) / u128::from(STEP);
        let total = u64::try_from(doubled + began).unwrap_or(u64::MAX);
        Some(total.saturating_sub(self.gone))
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        now.checked_sub(self.from).is_some_and(over)
    }

    /// When the last of the first `total` goes, after the start: at each step twice as many have gone, and between two
    /// steps they go evenly.
    fn offset(&self, total: u64) -> u64 {
        let Some(steps) = (total / self.first).checked_ilog2() else { return 0 };
        if steps >= STEPS {
            return STEP * u64::from(STEPS);
        }
        let doubled = u128::from(self.first) << steps;
        let began = (u128::from(total) - doubled) * u128::from(STEP);
        STEP * u64::from(steps) + began.div_ceil(doubled) as u64
    }
}

fn over(elapsed: u64) -> bool {
    elapsed >= STEP * u64::from(STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_many_go_with_every_step() {
        let ramp = Ramp::new(7, 0);
        let times = [1, 2, 3, 4, 6, 8, 1_024].map(|total| (ramp.due(total) - 7) / 1_000_000);
        assert_eq!(times, [0, 100, 150, 200, 250, 300, 1_000]);
        assert_eq!(ramp.due(u64::MAX), 7 + 2_000_000_000);
        let ramp = Ramp::new(0, 100);
        let times = [1, 100, 150, 200, 300, 400, 102_400].map(|total| ramp.due(total) / 1_000_000);
        assert_eq!(times, [0, 0, 50, 100, 150, 200, 1_000]);
    }

    #[test]
    fn what_is_left_is_what_is_due() {
        for (gone, first) in [(0, 1), (1, 1), (5, 1), (100, 1), (0, 7), (90, 7), (8, 1_000)] {
            let mut ramp = Ramp::new(1_000, first);
            ramp.spend(gone);
            for more in 1..600 {
                let due = ramp.due(more);
                assert!(ramp.left(due).unwrap() >= more, "{gone} gone, {more} more");
                assert!(due == 1_000 || ramp.left(due - 1).unwrap() < more, "{gone} gone, {more} more");
            }
        }
        assert_eq!(Ramp::new(1_000, 1).left(0), Some(0));
        assert!(!Ramp::new(1_000, 1).is_over(2_000_000_999) && Ramp::new(1_000, 1).is_over(2_000_001_000));
        assert_eq!(Ramp::new(1_000, 1).left(2_000_001_000), None);
    }
}
