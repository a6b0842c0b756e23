//! How those who waited leave a pause where no quota spreads them: one, and twice as many with each step.
//!
//! The first few ask whether the pause was long enough; a server that says no stops the rest by its next word.

/// Every step as many again have gone: 100 ms, in nanoseconds, a round trip across an ocean.
const STEP: u64 = 100_000_000;

/// After 20 steps, 2 s, a million could have gone: it is over.
const STEPS: u32 = 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct Ramp {
    from: u64,
    gone: u64,
}

impl Ramp {
    /// Begins at this moment, with nobody gone.
    pub(super) fn new(from: u64) -> Self {
        Self { from, gone: 0 }
    }

    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// When the last of `total` more can go.
    pub(super) fn due(&self, total: u64) -> u64 {
        self.from.saturating_add(offset(self.gone.saturating_add(total)))
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
        let doubled = 1 << (elapsed / STEP);
        let began = u128::from(doubled) * u128::from(elapsed % STEP) / u128::from(STEP);
        Some((doubled + began as u64).saturating_sub(self.gone))
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        now.checked_sub(self.from).is_some_and(over)
    }
}

fn over(elapsed: u64) -> bool {
    elapsed >= STEP * u64::from(STEPS)
}

/// When the last of the first `total` goes, after the start: at each step twice as many have gone, and between two
/// steps they go evenly.
fn offset(total: u64) -> u64 {
    let Some(steps) = total.checked_ilog2() else { return 0 };
    if steps >= STEPS {
        return STEP * u64::from(STEPS);
    }
    let began = (u128::from(total - (1 << steps)) * u128::from(STEP)).div_ceil(1 << steps);
    STEP * u64::from(steps) + began as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_many_go_with_every_step() {
        let ramp = Ramp::new(7);
        let times = [1, 2, 3, 4, 6, 8, 1_024].map(|total| (ramp.due(total) - 7) / 1_000_000);
        assert_eq!(times, [0, 100, 150, 200, 250, 300, 1_000]);
        assert_eq!(ramp.due(u64::MAX), 7 + 2_000_000_000);
    }

    #[test]
    fn what_is_left_is_what_is_due() {
        for gone in [0, 1, 5, 100] {
            let mut ramp = Ramp::new(1_000);
            ramp.spend(gone);
            for more in 1..600 {
                let due = ramp.due(more);
                assert!(ramp.left(due).unwrap() >= more, "{gone} gone, {more} more");
                assert!(ramp.left(due - 1).unwrap() < more, "{gone} gone, {more} more");
            }
        }
        assert_eq!(Ramp::new(1_000).left(0), Some(0));
        assert!(!Ramp::new(1_000).is_over(2_000_000_999) && Ramp::new(1_000).is_over(2_000_001_000));
        assert_eq!(Ramp::new(1_000).left(2_000_001_000), None);
    }
}
