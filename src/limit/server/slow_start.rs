//! How queued requests leave a pause if no quota spreads them: as many as the server is known to accept, and twice as many
//! with each step.
//!
//! The first ones probe whether the pause was long enough. A server that rejects them pauses the rest.

/// The total doubles in 100 ms, a round trip across an ocean. In nanoseconds.
const STEP: u64 = 100_000_000;

/// Ends after 20 steps, 2 s, when the total has grown a million times.
const STEPS: u32 = 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct SlowStart {
    pub(super) from: u64,
    /// How many leave at once, at least 1.
    first: u64,
    spent: u64,
}

impl SlowStart {
    /// Starts at `from` with `first` permits, or with one.
    pub(super) fn new(from: u64, first: u64) -> Self {
        Self { from, first: first.max(1), spent: 0 }
    }

    /// When the last of `total` more permits is available.
    pub(super) fn due(&self, total: u64) -> u64 {
        self.from.saturating_add(self.offset(self.spent.saturating_add(total)))
    }

    pub(super) fn spend(&mut self, cost: u64) {
        self.spent = self.spent.saturating_add(cost);
    }

    /// How many more permits are available. `None` once it is over.
    pub(super) fn left(&self, now: u64) -> Option<u64> {
        let Some(elapsed) = now.checked_sub(self.from) else { return Some(0) };
        if over(elapsed) {
            return None;
        }
        let doubled = u128::from(self.first) << (elapsed / STEP);
        let began = doubled * u128::from(elapsed % STEP) / u128::from(STEP);
        let total = u64::try_from(doubled + began).unwrap_or(u64::MAX);
        Some(total.saturating_sub(self.spent))
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        now.checked_sub(self.from).is_some_and(over)
    }

    /// When the last of the first `total` permits is available, after the start. The total doubles with each step and grows
    /// evenly between two steps.
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
    fn total_doubles_with_each_step() {
        let start = SlowStart::new(7, 0);
        let times = [1, 2, 3, 4, 6, 8, 1_024].map(|total| (start.due(total) - 7) / 1_000_000);
        assert_eq!(times, [0, 100, 150, 200, 250, 300, 1_000]);
        assert_eq!(start.due(u64::MAX), 7 + 2_000_000_000);
        let start = SlowStart::new(0, 100);
        let times = [1, 100, 150, 200, 300, 400, 102_400].map(|total| start.due(total) / 1_000_000);
        assert_eq!(times, [0, 0, 50, 100, 150, 200, 1_000]);
    }

    #[test]
    fn available_permits_are_those_that_are_due() {
        for (gone, first) in [(0, 1), (1, 1), (5, 1), (100, 1), (0, 7), (90, 7), (8, 1_000)] {
            let mut start = SlowStart::new(1_000, first);
            start.spend(gone);
            for more in 1..600 {
                let due = start.due(more);
                assert!(start.left(due).unwrap() >= more, "{gone} gone, {more} more");
                assert!(due == 1_000 || start.left(due - 1).unwrap() < more, "{gone} gone, {more} more");
            }
        }
        assert_eq!(SlowStart::new(1_000, 1).left(0), Some(0));
        assert!(
            !SlowStart::new(1_000, 1).is_over(2_000_000_999)
                && SlowStart::new(1_000, 1).is_over(2_000_001_000)
        );
        assert_eq!(SlowStart::new(1_000, 1).left(2_000_001_000), None);
    }
}
