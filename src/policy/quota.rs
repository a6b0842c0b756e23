//! The quota of a server, and the refill interval that keeps it in every window.

use std::{fmt, time::Duration};

use super::{LONGEST, human::Human, saturating_nanos};
use crate::config::InvalidConfig;

/// The longest time in which a burst may refill: 146 years, in nanoseconds. A limiter adds it to its 64-bit clock.
const LONGEST_BURST: u128 = u64::MAX as u128 / 4;

/// The default margin of windows of 16 s and more. One request overtakes another by at most a connection's handshake.
const LARGEST_DEFAULT_MARGIN: Duration = Duration::from_secs(1);

/// Admits at most `limit` requests in **any** window of length `window`, wherever the window starts.
///
/// The burst and the refill share the limit: `burst` requests may leave back to back, and the token bucket
/// refills `limit - burst` requests per `window + margin`. A bucket that holds the whole limit and refills it
/// once per window would admit nearly twice the quota.
///
/// # Default
///
/// - Burst: a tenth of the limit, at least 1.
/// - Margin: a sixteenth of the window, at most 1 s.
///
/// # Margin
///
/// The server counts arrivals, and the limiter counts grants. If two requests are granted a window apart and the first
/// is delayed more than the second, they arrive in one window. The margin widens the limiter's window to cover this
/// difference. Four causes share it, a quarter each:
///
/// 1. A timer fires late.
/// 2. A task is polled late after its permits were granted.
/// 3. The inner service is not ready when the permits are granted.
/// 4. The network delays one request more than another.
///
/// The limiter enforces the second and the third quarter, because permits that are held longer expire. The fourth is an
/// assumption about the network. At a window of 1 s the default margin covers 62 ms of network jitter if nothing else
/// is late, and 15 ms in the worst case. Raise it for a distant server.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::Quota;
///
/// let quota = Quota::per_minute(100)?;
/// assert_eq!((quota.burst(), quota.margin()), (10, Duration::from_secs(1)));
/// assert_eq!(quota.to_string(), "100 per 60s, burst 10, margin 1s, sustains 1.475 per second");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    limit: u32,
    window: Duration,
    burst: u32,
    margin: Duration,
}

impl Quota {
    /// Creates a quota of at most `limit` requests in any `window`, with the default burst and margin.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is 0, or if the window is 0 or longer than 366 days.
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
        // Needs no check, because a burst of a tenth refills in about a ninth of the window.
        Ok(Self {
            limit,
            window,
            burst: (limit / 10).max(1),
            margin: LARGEST_DEFAULT_MARGIN.min(window / 16),
        })
    }

    /// Creates a quota of at most `limit` requests in any second.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is 0.
    ///
    /// ```
    /// use tower_outbound::Quota;
    ///
    /// assert_eq!(format!("{:#}", Quota::per_second(5)?), "5/1s, burst 1, margin 62500us");
    /// assert_eq!(format!("{:#}", Quota::per_minute(100)?), "100/60s, burst 10, margin 1s");
    /// assert_eq!(format!("{:#}", Quota::per_hour(5_000)?), "5000/3600s, burst 500, margin 1s");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn per_second(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(1))
    }

    /// Creates a quota of at most `limit` requests in any minute.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is 0.
    pub fn per_minute(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(60))
    }

    /// Creates a quota of at most `limit` requests in any hour.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is 0.
    pub fn per_hour(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(3_600))
    }

    /// Sets how many requests may leave back to back. A larger burst lowers the sustained rate.
    ///
    /// # Errors
    ///
    /// Returns an error if the burst
    ///
    /// - is 0 or above the limit;
    /// - equals the limit, unless both are 1, because nothing would be left to refill;
    /// - takes more than 146 years to refill.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::Quota;
    ///
    /// let quota = Quota::per_minute(100)?.with_burst(40)?.without_margin();
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

    /// Sets the safety margin: the limiter's window is longer than the server's by this time. See [Margin](#margin).
    ///
    /// Use four times the largest difference in network delay between two requests, including a connection's handshake.
    /// Below 100 ms, permits expire after less than 25 ms, so a busy runtime wastes some.
    ///
    /// # Errors
    ///
    /// Returns an error if the margin is longer than the window, or if the burst would take more than 146 years to
    /// refill.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::Quota;
    ///
    /// let quota = Quota::per_second(2)?.with_margin(Duration::from_millis(200))?;
    /// assert_eq!(quota.refill_interval(), Duration::from_millis(1_200));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_margin(mut self, margin: Duration) -> Result<Self, InvalidConfig> {
        if margin > self.window {
            let expected = format!("at most the window, {:?}", self.window);
            return Err(InvalidConfig::new("quota margin", format!("{margin:?}"), expected));
        }
        self.margin = margin;
        self.checked("quota margin", format!("{margin:?}"))
    }

    /// Sets the safety margin to zero, for a server in the same process or for comparing rates.
    ///
    /// # Notes
    ///
    /// - Late requests can exceed the server's window, because nothing covers their delay.
    /// - A permit stays valid for 1/32 of the window, at most 50 ms, until its task is polled. It stays valid as long
    ///   again until the inner service is ready.
    /// - A server that counts to the millisecond can see more than `limit` requests in a window.
    pub fn without_margin(mut self) -> Self {
        self.margin = Duration::ZERO;
        self
    }

    /// Returns the largest number of requests in any window.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the window of the limit, without the margin.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Returns the largest number of requests that may leave back to back.
    pub fn burst(&self) -> u32 {
        self.burst
    }

    /// Returns the safety margin. Zero after [`without_margin`](Self::without_margin).
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// Returns the time in which a token bucket refills one request.
    ///
    /// It is `(window + margin) / (limit - burst)`, rounded up to the nanosecond, and 1 ns more than
    /// `window + margin` for a limit of 1. A bucket of [`burst`](Self::burst) requests with this interval admits at
    /// most [`limit`](Self::limit) requests in any closed window of `window + margin`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::Quota;
    /// let quota = Quota::per_minute(100)?.without_margin();
    /// assert_eq!(quota.refill_interval(), Duration::from_nanos(666_666_667));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refill_interval(&self) -> Duration {
        // At most 732 days, which 64 bits hold.
        let length = saturating_nanos(self.window).saturating_add(saturating_nanos(self.margin));
        let interval = match self.limit - self.burst {
            0 => length.saturating_add(1),
            refilled => length.div_ceil(u64::from(refilled)),
        };
        Duration::from_nanos(interval)
    }

    /// Returns the requests per second that a token bucket sustains: `(limit - burst) / (window + margin)`.
    ///
    /// A sliding window sustains `limit / (window + margin)`.
    ///
    /// ```
    /// # use tower_outbound::Quota;
    /// assert!((Quota::per_minute(100)?.sustained() - 90.0 / 61.0).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sustained(&self) -> f64 {
        self.refill_interval().as_secs_f64().recip()
    }

    /// Returns an error if the quota could overflow a limiter's 64-bit clock. The error names the setting that was
    /// given last.
    fn checked(self, field: &'static str, value: String) -> Result<Self, InvalidConfig> {
        if self.refill_interval().as_nanos() * u128::from(self.burst) <= LONGEST_BURST {
            return Ok(self);
        }
        Err(InvalidConfig::new(field, value, "a burst that refills within 146 years"))
    }
}

/// Writes `100 per 60s, burst 10, margin 1s, sustains 1.475 per second`, for people. `{:#}` writes `100/60s, burst 10,
/// margin 1s`, the form of settings, which `parse` reads back as an equal quota.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, window, burst, margin } = *self;
        let (per, window, margin) = (if f.alternate() { "/" } else { " per " }, Human(window), Human(margin));
        write!(f, "{limit}{per}{window}, burst {burst}, margin {margin}")?;
        if f.alternate() {
            return Ok(());
        }
        write!(f, ", sustains {} per second", Rounded(self.sustained()))
    }
}

/// A positive number with four significant digits, without trailing zeros.
struct Rounded(f64);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = (3.0 - self.0.log10().floor()).max(0.0) as usize;
        let digits = format!("{:.decimals$}", self.0);
        f.write_str(if decimals > 0 { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The arithmetic of a token bucket, on a clock of integer nanoseconds.
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
            |(limit, window, scale, burst, margin)| {
                let window = window * scale;
                let burst = 1 + burst % (limit - 1).max(1);
                let margin = Duration::from_nanos(window / 100 * margin);
                let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
                quota.with_burst(burst).unwrap().with_margin(margin).unwrap()
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
            let length = quota.window() + quota.margin();
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
            limit: u32, burst: u32, window: Duration, margin: Duration,
        ) {
            let short = Duration::from_nanos(u64::from(window.subsec_nanos()) + 1);
            for (window, margin) in [(window, margin), (short, margin), (LONGEST, LONGEST)] {
                let quota = Quota::new(limit, window).and_then(|quota| quota.with_burst(burst));
                if let Ok(quota) = quota.and_then(|quota| quota.with_margin(margin)) {
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

        let quota = Quota::per_minute(100).unwrap().without_margin();
        let ours = greedy(quota.refill_interval(), quota.burst(), 400);
        assert_eq!(most_in_window(&ours, minute), 99); // 100 but for the rounding
    }

    #[test]
    fn errors_name_the_field_and_what_is_valid() {
        let quota = Quota::per_minute(100).unwrap();
        let second = Duration::from_secs(1);
        let cases = [
            (Quota::per_hour(0), "invalid quota limit `0`: expected at least 1"),
            (Quota::new(1, Duration::ZERO), "invalid quota window `0ns`: expected more than zero"),
            (Quota::new(1, LONGEST + second), "invalid quota window `31622401s`: expected more than zero"),
            (quota.with_burst(0), "invalid quota burst `0`: expected 1 to 99"),
            (quota.with_burst(101), "invalid quota burst `101`: expected 1 to 99"),
            (quota.with_burst(100), "invalid quota burst `100`: expected at most 99: a burst of the whole"),
            (quota.with_margin(second * 61), "invalid quota margin `61s`: expected at most the window, 60s"),
        ];
        for (result, text) in cases {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }

        let endless = Quota::new(1_001, LONGEST).unwrap().with_burst(1_000);
        assert_eq!(endless.unwrap_err().field(), "quota burst");
        let nearly = Quota::new(101, LONGEST).unwrap().with_burst(100).unwrap();
        assert_eq!(nearly.with_margin(LONGEST).unwrap_err().field(), "quota margin");
    }

    #[test]
    fn default_margin_is_a_sixteenth_of_the_window_and_at_most_a_second() {
        let margin = |window| Quota::new(10, window).unwrap().margin();
        for (window, expected) in
            [(1, 62_500), (8, 500_000), (16, 1_000_000), (17, 1_000_000), (60, 1_000_000)]
        {
            assert_eq!(margin(Duration::from_secs(window)), Duration::from_micros(expected), "{window} s");
        }
        assert_eq!(margin(Duration::from_millis(1)), Duration::from_nanos(62_500));
        assert_eq!(margin(LONGEST), Duration::from_secs(1));
    }

    #[test]
    fn quotas_are_equal_if_all_four_parts_are() {
        let quota = Quota::per_minute(100).unwrap();
        assert_eq!(quota, quota.with_margin(Duration::from_secs(1)).unwrap());
        assert_eq!(quota.without_margin(), quota.with_margin(Duration::ZERO).unwrap());
        let others = [
            Ok(quota.without_margin()),
            quota.with_margin(Duration::from_nanos(1)),
            quota.with_burst(11),
            Quota::per_minute(101).and_then(|it| it.with_burst(10)),
            Quota::new(100, Duration::from_secs(61)),
        ];
        assert!(others.into_iter().all(|other| other.unwrap() != quota));
    }

    #[test]
    fn displays_the_sustained_rate_with_four_digits() {
        let shown = |quota: Result<Quota, InvalidConfig>| quota.unwrap().to_string();
        let second = Duration::from_secs(1);
        for (quota, expected) in [
            (Quota::per_second(10), "10 per 1s, burst 1, margin 62500us, sustains 8.471 per second"),
            (
                Quota::per_second(10).map(Quota::without_margin),
                "10 per 1s, burst 1, margin 0s, sustains 9 per second",
            ),
            (
                Quota::new(1, 100_000 * second).map(Quota::without_margin),
                "1 per 100000s, burst 1, margin 0s, sustains 0.00001 per second",
            ),
            (
                Quota::per_second(40_000).and_then(|quota| quota.with_margin(second)),
                "40000 per 1s, burst 4000, margin 1s, sustains 18000 per second",
            ),
            (
                Quota::new(u32::MAX, Duration::from_nanos(1)),
                "4294967295 per 1ns, burst 429496729, margin 0s, sustains 1000000000 per second",
            ),
        ] {
            assert_eq!(shown(quota), expected);
        }
    }

    #[test]
    fn a_limit_of_one_is_one_in_a_closed_window() {
        let quota = Quota::per_second(1).unwrap().with_burst(1).unwrap();
        assert_eq!(quota.refill_interval(), Duration::from_nanos(1_062_500_001));
        assert_eq!(quota.without_margin().refill_interval(), Duration::from_nanos(1_000_000_001));
        assert!(quota.with_burst(2).is_err());
    }
}
