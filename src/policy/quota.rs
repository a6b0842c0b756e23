//! How many requests a server allows, and the refill that keeps to it in every window.

use std::{fmt, time::Duration};

use super::{LONGEST, human::Human, saturating_nanos};
use crate::error::InvalidConfig;

/// The most nanoseconds that refilling a whole burst may take, 146 years: a limiter adds it to its clock in
/// 64 bits.
const LONGEST_BURST: u128 = u64::MAX as u128 / 4;

/// Admits at most `limit` requests in **any** window of length `window`, wherever the window starts.
///
/// A bucket that holds `limit` and refills `limit` per window admits nearly twice the quota: 100 at once,
/// then 99 more while the same minute lasts. Here the burst and the refill share the limit: `burst` requests
/// may go back to back and `limit - burst` are refilled per window.
///
/// # Default
///
/// The burst is a tenth of the limit, at least 1, which leaves nine tenths of the quota as the sustained
/// rate. There is no guard.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::Quota;
///
/// let quota = Quota::per_minute(100)?.with_guard(Duration::from_secs(1))?;
/// assert_eq!(quota.burst(), 10);
/// assert_eq!(quota.to_string(), "100 per 60s, burst 10, guard 1s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Quota {
    limit: u32,
    window: Duration,
    burst: u32,
    /// None where nobody has said one, which counts as zero.
    guard: Option<Duration>,
}

/// By what they admit: no guard is a guard of zero.
impl PartialEq for Quota {
    fn eq(&self, other: &Self) -> bool {
        let admits = |quota: &Self| (quota.limit, quota.window, quota.burst, quota.guard());
        admits(self) == admits(other)
    }
}

impl Eq for Quota {}

impl Quota {
    /// At most `limit` requests in any `window`.
    ///
    /// # Errors
    ///
    /// When the limit is 0, or the window is 0 or longer than 366 days.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::Quota;
    ///
    /// assert!(Quota::new(1_000, Duration::from_secs(86_400)).is_ok());
    /// assert!(Quota::new(0, Duration::from_secs(1)).is_err());
    /// ```
    pub fn new(limit: u32, window: Duration) -> Result<Self, InvalidConfig> {
        if limit == 0 {
            return Err(InvalidConfig::new("quota limit", "0", "at least 1"));
        }
        if window.is_zero() || window > LONGEST {
            let expected = "more than zero and at most 366 days";
            return Err(InvalidConfig::new("quota window", format!("{window:?}"), expected));
        }
        // Needs no check: a tenth of the limit is refilled within a ninth of the window.
        Ok(Self { limit, window, burst: (limit / 10).max(1), guard: None })
    }

    /// At most `limit` requests in any second; an error when the limit is 0.
    ///
    /// ```
    /// use tower_outbound::Quota;
    ///
    /// assert_eq!(Quota::per_second(5)?.to_string(), "5 per 1s, burst 1");
    /// assert_eq!(Quota::per_minute(100)?.to_string(), "100 per 60s, burst 10");
    /// assert_eq!(Quota::per_hour(5_000)?.to_string(), "5000 per 3600s, burst 500");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn per_second(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(1))
    }

    /// At most `limit` requests in any minute; an error when the limit is 0.
    pub fn per_minute(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(60))
    }

    /// At most `limit` requests in any hour; an error when the limit is 0.
    pub fn per_hour(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(3_600))
    }

    /// Lets `burst` requests go back to back after a pause; the more, the slower the refill.
    ///
    /// # Errors
    ///
    /// When the burst is 0 or over the limit; when it is the limit itself, unless that is 1, for nothing
    /// would be left to refill with; and when refilling it would take more than 146 years.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::Quota;
    ///
    /// let quota = Quota::per_minute(100)?.with_burst(40)?;
    /// assert_eq!(quota.refill_interval(), Duration::from_secs(1)); // 60 s / (100 - 40)
    ///
    /// assert!(Quota::per_minute(100)?.with_burst(100).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_burst(mut self, burst: u32) -> Result<Self, InvalidConfig> {
        let most = (self.limit - 1).max(1);
        if burst == 0 || burst > most {
            let expected = if burst == self.limit {
                format!("at most {most}: a burst of the whole limit leaves nothing to refill with")
            } else {
                format!("1 to {most}")
            };
            return Err(InvalidConfig::new("quota burst", burst.to_string(), expected));
        }
        self.burst = burst;
        self.checked("quota burst", burst.to_string())
    }

    /// Keeps the limit in the window and a `guard` more, since a server counts arrivals and we count
    /// departures: requests that leave a window apart arrive closer together when the first is delayed. Give
    /// the most that the time under way can vary by.
    ///
    /// A guard of zero makes a quota that is equal to one without. Only settings tell them apart: they give their own guard to
    /// a quota that has said none, so that `{:#}`, their form, writes it.
    ///
    /// # Errors
    ///
    /// When the guard is longer than the window, or refilling the burst would take more than 146 years.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::Quota;
    ///
    /// let quota = Quota::per_second(2)?.with_guard(Duration::from_millis(200))?;
    /// assert_eq!(quota.refill_interval(), Duration::from_millis(1_200));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_guard(mut self, guard: Duration) -> Result<Self, InvalidConfig> {
        if guard > self.window {
            let expected = format!("at most the window, {:?}", self.window);
            return Err(InvalidConfig::new("quota guard", format!("{guard:?}"), expected));
        }
        self.guard = Some(guard);
        self.checked("quota guard", format!("{guard:?}"))
    }

    /// The most requests in any window.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The length of the window that the limit is for, without the guard.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// The most requests that may go back to back.
    pub fn burst(&self) -> u32 {
        self.burst
    }

    /// What the window is widened by; zero when nobody has said it.
    pub fn guard(&self) -> Duration {
        self.guard.unwrap_or_default()
    }

    pub(crate) fn own_guard(&self) -> Option<Duration> {
        self.guard
    }

    /// The time between two refilled requests: a bucket of [`burst`](Self::burst) that gets one back in each
    /// interval admits at most [`limit`](Self::limit) in any closed window of `window + guard`.
    ///
    /// Such a bucket admits at most `burst + floor(length / interval)` in a closed window. The interval is
    /// `(window + guard) / (limit - burst)`, rounded up to the nanosecond, and just over `window + guard` for
    /// a limit of 1. Multiplied by the burst it is at most `u64::MAX / 4` nanoseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::Quota;
    /// assert_eq!(Quota::per_minute(100)?.refill_interval(), Duration::from_nanos(666_666_667));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refill_interval(&self) -> Duration {
        // At most 732 days, which 64 bits hold.
        let length = saturating_nanos(self.window).saturating_add(saturating_nanos(self.guard()));
        let interval = match self.limit - self.burst {
            0 => length.saturating_add(1),
            refilled => length.div_ceil(u64::from(refilled)),
        };
        Duration::from_nanos(interval)
    }

    /// Itself, unless a limiter's 64-bit clock could overflow; blames the setting that was given last.
    fn checked(self, field: &'static str, value: String) -> Result<Self, InvalidConfig> {
        if self.refill_interval().as_nanos() * u128::from(self.burst) <= LONGEST_BURST {
            return Ok(self);
        }
        Err(InvalidConfig::new(field, value, "a burst that is refilled within 146 years"))
    }
}

/// Such as `100 per 60s, burst 10, guard 1s`; the guard is left out when it is zero. By `{:#}` as settings write it,
/// `100/60s, burst 10, guard 1s`; there it is left out when none was said. `parse` reads both, and what it read is equal.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = if f.alternate() { "/" } else { " per " };
        write!(f, "{}{per}{}, burst {}", self.limit, Human(self.window), self.burst)?;
        let guard = self.own_guard().filter(|guard| f.alternate() || !guard.is_zero());
        guard.map_or(Ok(()), |guard| write!(f, ", guard {}", Human(guard)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a limiter does with the burst and the interval, on a clock of integer nanoseconds.
    struct Gcra {
        interval: u64,
        tolerance: u64,
        next: u64,
    }

    impl Gcra {
        fn new(interval: Duration, burst: u32) -> Self {
            let interval = saturating_nanos(interval);
            Self { interval, tolerance: interval * u64::from(burst - 1), next: 0 }
        }

        fn earliest(&self) -> u64 {
            self.next.saturating_sub(self.tolerance)
        }

        fn admit(&mut self, now: u64) -> bool {
            let admitted = now >= self.earliest();
            if admitted {
                self.next = self.next.max(now) + self.interval;
            }
            admitted
        }
    }

    /// The most admitted in any closed window of that length.
    fn most_in_window(admitted: &[u64], length: Duration) -> usize {
        let length = saturating_nanos(length);
        let mut first = 0;
        let counts = admitted.iter().enumerate().map(|(last, at)| {
            while at - admitted[first] > length {
                first += 1;
            }
            last - first + 1
        });
        counts.max().unwrap_or(0)
    }

    fn greedy(interval: Duration, burst: u32, count: usize) -> Vec<u64> {
        let mut gcra = Gcra::new(interval, burst);
        let mut now = 1_000_000;
        let mut admitted = Vec::new();
        while admitted.len() < count {
            now = now.max(gcra.earliest());
            assert!(gcra.admit(now));
            admitted.push(now);
        }
        admitted
    }

    fn quotas() -> impl Strategy<Value = Quota> {
        let scale = prop_oneof![Just(1), Just(1_000), Just(1_000_000_007)];
        (1u32..60, 1u64..5_000, scale, any::<u32>(), 0u64..=100).prop_map(
            |(limit, window, scale, burst, guard)| {
                let window = window * scale;
                let burst = 1 + burst % (limit - 1).max(1);
                let guard = Duration::from_nanos(window / 100 * guard);
                let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
                quota.with_burst(burst).unwrap().with_guard(guard).unwrap()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn no_window_admits_more_than_the_limit(
            quota in quotas(),
            gaps in prop::collection::vec((0u8..8, any::<u32>()), 400),
        ) {
            let mut gcra = Gcra::new(quota.refill_interval(), quota.burst());
            let length = quota.window() + quota.guard();
            let (mut now, mut admitted) = (0, Vec::new());
            for (kind, random) in gaps {
                let up_to = match kind {
                    0..4 => 0, // as soon as it may
                    4 => gcra.interval / 2,
                    5 => gcra.interval * 2,
                    6 => gcra.interval * u64::from(quota.burst()),
                    _ => saturating_nanos(length),
                };
                let gap = ((u128::from(up_to) + 1) * u128::from(random)) >> 32;
                now = if kind < 4 { now.max(gcra.earliest()) } else { now + gap as u64 };
                if gcra.admit(now) {
                    admitted.push(now);
                }
            }
            prop_assert!(most_in_window(&admitted, length) <= quota.limit() as usize, "{quota}");
        }

        #[test]
        fn every_quota_is_refused_or_fits_a_limiters_clock(
            limit: u32, burst: u32, window: Duration, guard: Duration,
        ) {
            let short = Duration::from_nanos(u64::from(window.subsec_nanos()) + 1);
            for (window, guard) in [(window, guard), (short, guard), (LONGEST, LONGEST)] {
                let quota = Quota::new(limit, window).and_then(|quota| quota.with_burst(burst));
                if let Ok(quota) = quota.and_then(|quota| quota.with_guard(guard)) {
                    let burst = quota.refill_interval().as_nanos() * u128::from(quota.burst());
                    prop_assert!(!quota.refill_interval().is_zero() && burst <= LONGEST_BURST);
                }
            }
        }
    }

    #[test]
    fn a_bucket_of_the_whole_limit_admits_nearly_twice_the_quota() {
        let minute = Duration::from_secs(60);
        let naive = greedy(Duration::from_millis(600), 100, 400);
        assert_eq!(most_in_window(&naive, minute - Duration::from_nanos(1)), 199);

        let quota = Quota::per_minute(100).unwrap();
        let ours = greedy(quota.refill_interval(), quota.burst(), 400);
        assert_eq!(most_in_window(&ours, minute), 99); // 100 but for the rounding
    }

    #[test]
    fn refusals_name_the_field_and_say_what_would_do() {
        let quota = Quota::per_minute(100).unwrap();
        let second = Duration::from_secs(1);
        let cases = [
            (Quota::per_hour(0), "invalid quota limit `0`: expected at least 1"),
            (Quota::new(1, Duration::ZERO), "invalid quota window `0ns`: expected more than zero"),
            (Quota::new(1, LONGEST + second), "invalid quota window `31622401s`: expected more than zero"),
            (quota.with_burst(0), "invalid quota burst `0`: expected 1 to 99"),
            (quota.with_burst(101), "invalid quota burst `101`: expected 1 to 99"),
            (quota.with_burst(100), "invalid quota burst `100`: expected at most 99: a burst of the whole"),
            (quota.with_guard(second * 61), "invalid quota guard `61s`: expected at most the window, 60s"),
        ];
        for (result, text) in cases {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }

        let endless = Quota::new(1_001, LONGEST).unwrap().with_burst(1_000);
        assert_eq!(endless.unwrap_err().field(), "quota burst");
        let nearly = Quota::new(101, LONGEST).unwrap().with_burst(100).unwrap();
        assert_eq!(nearly.with_guard(LONGEST).unwrap_err().field(), "quota guard");
    }

    #[test]
    fn a_guard_of_zero_is_none_but_for_settings() {
        let quota = Quota::per_minute(100).unwrap();
        let zero = quota.with_guard(Duration::ZERO).unwrap();
        assert_eq!((quota, quota.to_string()), (zero, zero.to_string()));
        assert_eq!(format!("{quota:#}; {zero:#}"), "100/60s, burst 10; 100/60s, burst 10, guard 0s");
        let others = [
            quota.with_guard(Duration::from_nanos(1)),
            quota.with_burst(11),
            Quota::per_minute(101).and_then(|it| it.with_burst(10)),
            Quota::new(100, Duration::from_secs(61)),
        ];
        assert!(others.into_iter().all(|other| other.unwrap() != quota));
    }

    #[test]
    fn a_limit_of_one_is_one_in_a_closed_window() {
        let quota = Quota::per_second(1).unwrap().with_burst(1).unwrap();
        assert_eq!(quota.refill_interval(), Duration::from_nanos(1_000_000_001));
        assert!(quota.with_burst(2).is_err());
    }
}
