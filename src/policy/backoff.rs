use std::time::Duration;

use super::{LONGEST, nanos};
use crate::config::InvalidConfig;

/// The random part of each delay. It spreads the retries of callers that failed at the same time.
///
/// [`ExponentialBackoff::new`] uses [`Jitter::equal`](Self::equal).
///
/// ```
/// use tower_outbound::Jitter;
///
/// assert_eq!(Jitter::percent(50)?, Jitter::equal());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter {
    pub(super) percent: u8,
}

impl Jitter {
    /// Waits for exactly the computed delay. Suits tests and single callers.
    pub const fn none() -> Self {
        Self { percent: 0 }
    }

    /// Waits for a random time between half of the delay and the full delay. This spreads the retries of several
    /// callers, and always gives the server a pause.
    pub const fn equal() -> Self {
        Self { percent: 50 }
    }

    /// Waits for a random time between zero and the delay, like the "full jitter" of AWS. This causes the fewest
    /// collisions, but some callers retry immediately.
    pub const fn full() -> Self {
        Self { percent: 100 }
    }

    /// Makes this percentage of each delay random. The percentage must be from 0 to 100.
    ///
    /// # Errors
    ///
    /// Returns an error if the percentage exceeds 100.
    ///
    /// ```
    /// # use tower_outbound::Jitter;
    /// assert!(Jitter::percent(25).is_ok());
    /// assert!(Jitter::percent(101).is_err());
    /// ```
    pub fn percent(percent: u8) -> Result<Self, InvalidConfig> {
        if percent > 100 {
            return Err(InvalidConfig::new("jitter percent", percent.to_string(), "0 to 100"));
        }
        Ok(Self { percent })
    }

    /// Returns the random part of a delay, rounded down. The multiplication cannot overflow, because the delay is at
    /// most 366 days.
    fn of(self, delay: Duration) -> Duration {
        delay * u32::from(self.percent) / 100
    }
}

/// Doubles the delay before each retry up to a cap, and subtracts a random part of the delay.
///
/// Retries are counted from 0: retry 0 follows the first attempt. The caller supplies the random number.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{ExponentialBackoff, Jitter};
///
/// let backoff = ExponentialBackoff::new(Duration::from_millis(200), Duration::from_secs(5))?;
/// assert_eq!(backoff.ceiling(0), Duration::from_millis(200));
/// assert_eq!(backoff.ceiling(3), Duration::from_millis(1_600));
/// assert_eq!(backoff.ceiling(u32::MAX), Duration::from_secs(5));
///
/// assert_eq!(backoff.delay(3, 0), Duration::from_millis(800));
/// assert_eq!(backoff.with_jitter(Jitter::none()).delay(3, 0), Duration::from_millis(1_600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExponentialBackoff {
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
    pub(crate) jitter: Jitter,
}

impl ExponentialBackoff {
    /// Creates a backoff that waits at most `base` before the first retry, and at most `cap` before any retry. The
    /// jitter is [`Jitter::equal`].
    ///
    /// # Errors
    ///
    /// Returns an error if the base is 0 or exceeds the cap, or if the cap exceeds 366 days.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::ExponentialBackoff;
    /// assert!(ExponentialBackoff::new(Duration::ZERO, Duration::from_secs(1)).is_err());
    /// ```
    pub fn new(base: Duration, cap: Duration) -> Result<Self, InvalidConfig> {
        if cap.is_zero() || cap > LONGEST {
            let expected = "more than zero and at most 366 days";
            return Err(InvalidConfig::new("backoff cap", format!("{cap:?}"), expected).at("cap"));
        }
        if base.is_zero() || base > cap {
            let expected = format!("more than zero and at most {cap:?} (the cap)");
            return Err(InvalidConfig::new("backoff base", format!("{base:?}"), expected).at("base"));
        }
        Ok(Self { base, cap, jitter: Jitter::equal() })
    }

    /// Returns the backoff after a transient failure: 100 ms, doubled up to 20 s.
    ///
    /// The base is twice the 50 ms of the AWS SDKs' standard mode, because third-party APIs are farther away than AWS's
    /// own. With the default jitter, the first delay is at least 50 ms.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::ExponentialBackoff;
    /// assert_eq!(ExponentialBackoff::transient().delay(0, 0), Duration::from_millis(50));
    /// ```
    pub const fn transient() -> Self {
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(20));
        Self { base, cap, jitter: Jitter::equal() }
    }

    /// Returns the backoff after a throttled response: 1 s, doubled up to 20 s, as in the AWS SDKs' standard mode.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::ExponentialBackoff;
    /// assert_eq!(ExponentialBackoff::throttled().ceiling(0), Duration::from_secs(1));
    /// ```
    pub const fn throttled() -> Self {
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(20));
        Self { base, cap, jitter: Jitter::equal() }
    }

    /// Sets the random part of each delay.
    #[must_use]
    pub const fn with_jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Returns the longest delay before this retry: `base` doubled `retry` times, at most `cap`.
    pub fn ceiling(&self, retry: u32) -> Duration {
        // Shifting by 64 bits cannot overflow a `u128`, because the base is below 2^55 ns. The result exceeds every
        // cap.
        let doubled = self.base.as_nanos() << retry.min(64);
        if doubled < self.cap.as_nanos() { Duration::from_nanos(doubled as u64) } else { self.cap }
    }

    /// Returns the delay before this retry: the [`ceiling`](Self::ceiling) minus a random part of its jitter.
    ///
    /// `random` is uniform over `u64`. A `random` of 0 gives the shortest delay, and `u64::MAX` gives the ceiling.
    pub fn delay(&self, retry: u32, random: u64) -> Duration {
        let ceiling = self.ceiling(retry);
        ceiling - self.jitter.of(ceiling) + self.spread(retry, random)
    }

    /// Returns a random time to add to a delay that the server requested. It lies between zero and the random part of
    /// this retry's [`ceiling`](Self::ceiling).
    ///
    /// Callers that received the same requested delay then retry at different times, and no caller retries early.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::ExponentialBackoff;
    /// let backoff = ExponentialBackoff::throttled();
    /// assert_eq!(backoff.spread(0, 0), Duration::ZERO);
    /// assert_eq!(backoff.spread(0, u64::MAX), Duration::from_millis(500));
    /// ```
    pub fn spread(&self, retry: u32, random: u64) -> Duration {
        scatter(self.jitter.of(self.ceiling(retry)), random)
    }
}

/// Scales a uniformly distributed `random` to `0..=longest`. The remainder of a division is not used, because it would
/// favour small numbers.
pub(crate) fn scatter(longest: Duration, random: u64) -> Duration {
    let numbers = u128::from(nanos(longest)) + 1;
    Duration::from_nanos(((numbers * u128::from(random)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn backoffs() -> impl Strategy<Value = ExponentialBackoff> {
        let longest = nanos(LONGEST);
        (1..=longest, 1..=longest, 0u8..=100).prop_map(|(a, b, percent)| {
            let (base, cap) = (Duration::from_nanos(a.min(b)), Duration::from_nanos(a.max(b)));
            ExponentialBackoff::new(base, cap).unwrap().with_jitter(Jitter::percent(percent).unwrap())
        })
    }

    fn retries() -> impl Strategy<Value = u32> {
        prop_oneof![0u32..130, any::<u32>(), Just(u32::MAX)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn delay_is_below_the_ceiling_by_at_most_the_jitter(backoff in backoffs(), retry in retries(), random: u64) {
            let ceiling = backoff.ceiling(retry);
            let jitter = backoff.jitter.of(ceiling);
            prop_assert!(backoff.base <= ceiling && ceiling <= backoff.cap);
            prop_assert!(ceiling <= backoff.ceiling(retry.saturating_add(1)));
            for random in [0, random, u64::MAX] {
                let delay = backoff.delay(retry, random);
                prop_assert!(ceiling - jitter <= delay && delay <= ceiling);
                prop_assert!(backoff.spread(retry, random) <= jitter);
            }
            prop_assert_eq!(backoff.delay(retry, 0), ceiling - jitter);
            prop_assert_eq!(backoff.delay(retry, u64::MAX), ceiling);
            prop_assert_eq!(backoff.spread(retry, u64::MAX), jitter);
        }

        #[test]
        fn ceiling_doubles_with_each_retry(base in 1u64..=1_000_000_000, retry in 0u32..25) {
            let backoff = ExponentialBackoff::new(Duration::from_nanos(base), LONGEST).unwrap();
            let doubled = Duration::from_nanos(base << retry);
            prop_assert_eq!(backoff.ceiling(retry), doubled.min(LONGEST));
            prop_assert_eq!((backoff.base, backoff.cap), (Duration::from_nanos(base), LONGEST));
        }

        #[test]
        fn jitter_spreads_the_delays_of_a_thousand_callers_even_at_the_cap(
            randoms in prop::collection::vec(any::<u64>(), 1_000), retry in retries(),
        ) {
            let backoff = ExponentialBackoff::transient();
            let delays: HashSet<_> = randoms.iter().map(|random| backoff.delay(retry, *random)).collect();
            prop_assert!(delays.len() > 950, "{}", delays.len());
        }
    }

    #[test]
    fn random_number_scales_to_a_time_from_zero_to_the_maximum() {
        let second = Duration::from_secs(1);
        for (random, share) in [(0, 0), (1 << 62, 250), (1 << 63, 500), (u64::MAX, 1_000)] {
            assert_eq!(scatter(second, random).as_millis(), share, "{random}");
        }
        assert_eq!(scatter(Duration::ZERO, u64::MAX), Duration::ZERO);
    }

    #[test]
    fn jitter_shortens_a_delay_by_at_most_its_percentage() {
        let second = Duration::from_secs(1);
        let backoff = ExponentialBackoff::new(second, second).unwrap();
        let cases = [
            (Jitter::none(), 1_000),
            (Jitter::percent(25).unwrap(), 750),
            (Jitter::equal(), 500),
            (Jitter::full(), 0),
        ];
        for (jitter, shortest) in cases {
            assert_eq!(backoff.with_jitter(jitter).delay(7, 0), Duration::from_millis(shortest));
        }
        assert_eq!(Jitter::percent(101).unwrap_err().field(), "jitter percent");
    }

    #[test]
    fn backoff_error_names_the_invalid_setting() {
        let second = Duration::from_secs(1);
        let cases = [
            (Duration::ZERO, second, "backoff base"),
            (second * 2, second, "backoff base"),
            (second, Duration::ZERO, "backoff cap"),
            (second, Duration::MAX, "backoff cap"),
        ];
        for (base, cap, field) in cases {
            assert_eq!(ExponentialBackoff::new(base, cap).unwrap_err().field(), field);
        }
    }
}
