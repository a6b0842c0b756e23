//! The slow start of queued requests after a pause, if no quota spreads them. It begins with the remaining permits that
//! the server reported, or with one permit. The total doubles with each step.
//!
//! The first requests test whether the pause was long enough. If the server rejects them, a new pause holds back all
//! later requests.

/// The time in which the total number of permits doubles: 100 ms in nanoseconds, the duration of a round trip across an
/// ocean.
const STEP: u64 = 100_000_000;

/// The slow start ends after this many steps, which take 2 s. By then, the total number of permits has grown by a
/// factor of a million.
const STEPS: u32 = 20;

#[derive(Debug, Clone, Copy)]
pub(crate) struct SlowStart {
    pub(crate) from: u64,
    /// The number of permits at the start, at least 1.
    first: u64,
    spent: u64,
}

impl SlowStart {
    /// Starts at `from` with `first` permits, or with one if `first` is 0.
    pub(crate) fn new(from: u64, first: u64) -> Self {
        Self { from, first: first.max(1), spent: 0 }
    }

    /// Returns when the last of `total` more permits is available.
    pub(crate) fn due(&self, total: u64) -> u64 {
        self.from.saturating_add(self.offset(self.spent.saturating_add(total)))
    }

    pub(crate) fn spend(&mut self, cost: u64) {
        self.spent = self.spent.saturating_add(cost);
    }

    /// Returns how many more permits are available, or `None` if the slow start is over.
    pub(crate) fn left(&self, now: u64) -> Option<u64> {
        let Some(elapsed) = now.checked_sub(self.from) else { return Some(0) };
        if over(elapsed) {
            return None;
        }
        let doubled = u128::from(self.first) << (elapsed / STEP);
        let began = doubled * u128::from(elapsed % STEP) / u128::from(STEP);
        let total = u64::try_from(doubled + began).unwrap_or(u64::MAX);
        Some(total.saturating_sub(self.spent))
    }

    pub(crate) fn is_over(&self, now: u64) -> bool {
        now.checked_sub(self.from).is_some_and(over)
    }

    /// Returns how long after the start the last of the first `total` permits is available. The number of available
    /// permits doubles with each step, and grows evenly within a step.
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
    fn slow_start_doubles_the_permits_with_each_step() {
        let start = SlowStart::new(7, 0);
        let times = [1, 2, 3, 4, 6, 8, 1_024].map(|total| (start.due(total) - 7) / 1_000_000);
        assert_eq!(times, [0, 100, 150, 200, 250, 300, 1_000]);
        assert_eq!(start.due(u64::MAX), 7 + 2_000_000_000);
        let start = SlowStart::new(0, 100);
        let times = [1, 100, 150, 200, 300, 400, 102_400].map(|total| start.due(total) / 1_000_000);
        assert_eq!(times, [0, 0, 50, 100, 150, 200, 1_000]);
    }

    #[test]
    fn slow_start_permits_are_available_exactly_at_their_due_time() {
        for (spent, first) in [(0, 1), (1, 1), (5, 1), (100, 1), (0, 7), (90, 7), (8, 1_000)] {
            let mut start = SlowStart::new(1_000, first);
            start.spend(spent);
            for more in 1..600 {
                let due = start.due(more);
                assert!(start.left(due).unwrap() >= more, "{spent} spent, {more} more");
                assert!(due == 1_000 || start.left(due - 1).unwrap() < more, "{spent} spent, {more} more");
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
