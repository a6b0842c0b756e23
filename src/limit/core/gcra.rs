//! The token bucket: the generic cell rate algorithm, with the same results as governor.

/// An arrival time lies at most this far in the future: 146 years.
const FARTHEST: u64 = u64::MAX / 4;

/// A bucket of permits that refill at even intervals. All times are nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct Gcra {
    pub(super) interval: u64,
    /// The time that an empty bucket takes to fill up.
    pub(super) whole: u64,
    /// The theoretical arrival time of the next permit. The bucket is full if this time lies in the past.
    pub(super) arrival: u64,
}

impl Gcra {
    /// Creates a full bucket.
    pub(super) fn new(interval: u64, burst: u32) -> Self {
        Self { interval: interval.max(1), whole: interval.max(1).saturating_mul(burst.into()), arrival: 0 }
    }

    /// Returns when `total` permits are available, if none is taken before `start`.
    pub(super) fn due(&self, start: u64, total: u64) -> u64 {
        self.due_from(self.arrival.max(start), start, total)
    }

    /// Returns when `total` permits are available if the arrival time is `from`, at `start` or later.
    fn due_from(&self, from: u64, start: u64, total: u64) -> u64 {
        let last = from.saturating_add(self.interval.saturating_mul(total));
        last.saturating_sub(self.whole).max(start)
    }

    /// Returns when an amount of `own` is available behind `ahead`, from a bucket that mirrors a server's. An amount
    /// above the burst is available some time after the bucket has become full, because the server's bucket holds more.
    /// The result is never too late.
    pub(super) fn due_behind(&self, start: u64, ahead: u64, own: u64) -> u64 {
        let from = if ahead > 0 && own > 0 { self.arrival.max(start) } else { self.arrival };
        // Nothing was taken from a new bucket.
        if from == 0 {
            return start;
        }
        self.due_from(from, start, ahead.saturating_add(own))
    }

    /// Takes permits that are available at `at`.
    pub(super) fn take(&mut self, at: u64, cost: u64) {
        let arrival = self.arrival.max(at).saturating_add(self.interval.saturating_mul(cost));
        self.arrival = arrival.min(at.saturating_add(FARTHEST));
    }

    /// Takes permits beside a log that has room for them at `freed`, or at once if that is zero. The refill starts then. If
    /// it started earlier, the bucket would be full by then, and would add its burst to each window.
    #[inline]
    pub(super) fn take_beside_log(&mut self, at: u64, cost: u64, freed: u64) {
        let spent = self.interval.saturating_mul(cost);
        let refill_from = if freed > 0 { freed.saturating_add(self.whole.saturating_sub(spent)) } else { 0 };
        self.take(at.max(refill_from), cost);
    }

    /// Adds taken permits back. Permits that were refilled since then are added twice, unless the arrival time would
    /// then be earlier than `earliest`.
    pub(super) fn give_back(&mut self, cost: u64, earliest: u64) {
        let returned = self.arrival.saturating_sub(self.interval.saturating_mul(cost));
        self.arrival = returned.max(earliest).min(self.arrival);
    }

    /// Returns the number of permits that are available at `now`.
    pub(super) fn available(&self, now: u64) -> u64 {
        self.whole.saturating_sub(self.arrival.saturating_sub(now)) / self.interval
    }

    /// Spends available permits so that at most `permits` of them are left.
    pub(super) fn leave(&mut self, permits: u32, now: u64) {
        let left = self.interval.saturating_mul(permits.into()).min(self.whole);
        self.arrival = self.arrival.max(now.saturating_add(self.whole - left));
    }

    /// Moves the arrival time forward by `delay`.
    pub(super) fn postpone(&mut self, delay: u64) {
        self.arrival = self.arrival.saturating_add(delay);
    }

    /// Sets the arrival time of a bucket that replaces `old`. Spent permits still count.
    pub(super) fn replace(&mut self, old: &[&Self], now: u64) {
        let missing = old.iter().map(|old| self.missing_after(old, now)).max().unwrap_or(0);
        self.arrival = now.saturating_add(missing.min(FARTHEST));
    }

    /// Returns how long this bucket takes to fill up if it replaces `old`.
    fn missing_after(&self, old: &Self, now: u64) -> u64 {
        let missing = old.arrival.saturating_sub(now);
        let left = old.whole.saturating_sub(missing);
        // A larger burst becomes available gradually. Otherwise one window could contain both bursts.
        let taken = self.whole.saturating_sub(scaled(left, self.interval, old.interval, u128::div_euclid));
        // Also converts fractions of a permit. Otherwise each change of quotas would lose the permit that is being
        // refilled.
        scaled(missing, self.interval, old.interval, u128::div_ceil).max(taken)
    }
}

/// Returns how long some permits take to refill at `interval`, if they take `time` at the interval `before`.
fn scaled(time: u64, interval: u64, before: u64, divide: fn(u128, u128) -> u128) -> u64 {
    let scaled = divide(u128::from(time) * u128::from(interval), u128::from(before.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, time::Duration};

    use governor::{
        Quota, RateLimiter,
        clock::{Clock, FakeRelativeClock},
    };

    use super::*;
    use crate::random::Random;

    #[test]
    fn bucket_grants_exactly_what_governor_grants() {
        for seed in 0..200 {
            let random = Random::seeded(seed);
            let (interval, burst) = (random.up_to(1_000) + 1, random.up_to(20) as u32 + 1);
            let quota = Quota::with_period(Duration::from_nanos(interval)).unwrap();
            let quota = quota.allow_burst(NonZeroU32::new(burst).unwrap());
            let clock = FakeRelativeClock::default();
            let governor = RateLimiter::direct_with_clock(quota, clock.clone());
            let mut bucket = Gcra::new(interval, burst);
            for _ in 0..200 {
                clock.advance(Duration::from_nanos(random.up_to(2 * interval)));
                let now = clock.now().as_u64();
                let cost = random.up_to(burst.into()) as u32 + 1;
                let cost = NonZeroU32::new(cost.min(burst)).unwrap();
                let is_granted = bucket.due(now, cost.get().into()) <= now;
                assert_eq!(is_granted, bucket.available(now) >= cost.get().into(), "seed {seed}");
                assert_eq!(is_granted, governor.check_n(cost).unwrap().is_ok(), "seed {seed}");
                if is_granted {
                    bucket.take(now, cost.get().into());
                }
            }
        }
    }
}
