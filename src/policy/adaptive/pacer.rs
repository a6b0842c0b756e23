//! Spaces requests at a rate, with a small burst.

/// The tolerated delay of a timer in nanoseconds, which is the resolution of tokio's timers.
const TICK: u64 = 1_000_000;

/// A bucket of `burst` permits.
#[derive(Debug, Clone, Default)]
pub(super) struct Pacer {
    /// The time between two requests, or 0 without a rate.
    pub(super) interval: u64,
    pub(super) burst: u64,
    /// The bucket is full if this time lies in the past.
    pub(super) arrival: u64,
}

impl Pacer {
    /// Returns when the last of `total` permits is available, if none is taken before `start`.
    pub(super) fn due(&self, start: u64, total: u64, costliest: u32) -> u64 {
        // A request that costs more than the burst waits until the permits would have been refilled.
        let is_first = total <= u64::from(costliest);
        let from = if is_first { self.arrival } else { self.arrival.max(start) };
        let refilled = from.saturating_add(self.interval.saturating_mul(total));
        refilled.saturating_sub(self.interval.saturating_mul(self.burst)).max(start)
    }

    pub(super) fn available(&self, now: u64) -> u64 {
        match self.interval {
            0 => u64::MAX,
            interval => self.burst.saturating_sub(self.arrival.saturating_sub(now).div_ceil(interval)),
        }
    }

    /// Adds taken permits back.
    pub(super) fn give_back(&mut self, permits: u32) {
        self.arrival = self.arrival.saturating_sub(self.interval.saturating_mul(permits.into()));
    }

    pub(super) fn grant(&mut self, cost: u32, now: u64) {
        // A late timer does not lower the rate.
        let from = if now <= self.arrival.saturating_add(TICK) { self.arrival } else { now };
        self.arrival = from.saturating_add(self.interval.saturating_mul(cost.into()));
    }
}
