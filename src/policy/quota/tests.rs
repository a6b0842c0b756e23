use proptest::prelude::*;

use super::*;

/// A model of a token bucket that counts time in integer nanoseconds.
struct Gcra {
    interval: u64,
    tolerance: u64,
    next: u64,
}

impl Gcra {
    fn new(interval: Duration, burst: u32) -> Self {
        let interval = nanos(interval);
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

/// Returns the largest number of requests admitted in any closed window of this length.
fn most_in_window(admitted: &[u64], length: Duration) -> usize {
    let length = nanos(length);
    let mut first = 0;
    let counts = admitted.iter().enumerate().map(|(last, at)| {
        while at - admitted[first] > length {
            first += 1;
        }
        last - first + 1
    });
    counts.max().unwrap_or(0)
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
                0..4 => 0, // requests as early as possible
                4 => gcra.interval / 2,
                5 => gcra.interval * 2,
                6 => gcra.interval * u64::from(quota.burst()),
                _ => nanos(length),
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
    fn every_accepted_quota_fits_into_the_clock_of_a_limiter(
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

/// The level of a server's bucket, whose arithmetic is exact.
#[derive(Default)]
struct ServerBucket {
    level: u128,
    at: u64,
}

impl ServerBucket {
    /// Returns whether the bucket has room for a request that arrives at `at`.
    fn accepts(&mut self, at: u64, quota: &Quota) -> bool {
        let (refill, per) = quota.refill().unwrap();
        self.level = self.level.saturating_sub(u128::from(at - self.at) * u128::from(refill));
        (self.level, self.at) = (self.level + per.as_nanos(), at);
        self.level <= u128::from(quota.limit()) * per.as_nanos()
    }
}

proptest! {
    /// At worst, the requests until some moment are delayed by the margin, and the later ones are not.
    #[test]
    fn bucket_of_a_server_accepts_every_request_that_is_delayed_by_at_most_the_margin(
        (capacity, refill, per) in (1u32..50, 1u32..50, 1u64..10_000_000_000),
        margin in 0u64..=100,
        gaps in prop::collection::vec((0u8..20, 0u64..1_000), 200),
        changes in 1usize..50,
    ) {
        let quota = Quota::bucket(capacity, refill, Duration::from_nanos(per)).unwrap();
        let margin = nanos(quota.window()) / 100 * margin;
        let quota = quota.with_margin(Duration::from_nanos(margin)).unwrap();
        let mut gcra = Gcra::new(quota.refill_interval(), quota.burst());
        let (mut now, mut arrivals) = (0, Vec::new());
        for (number, (kind, gap)) in gaps.into_iter().enumerate() {
            now = if kind > 0 { now.max(gcra.earliest()) } else { now + gcra.interval / 100 * gap };
            let delay = if number / changes % 2 == 0 { margin } else { 0 };
            if gcra.admit(now) {
                arrivals.push(now + delay);
            }
        }
        arrivals.sort_unstable();
        let mut server = ServerBucket::default();
        for at in arrivals {
            prop_assert!(server.accepts(at, &quota), "{quota:#} at {at}");
        }
        prop_assert_eq!(format!("{quota:#}").parse::<Quota>().unwrap(), quota);
    }
}

#[test]
fn margin_of_a_bucket_lowers_its_burst_before_its_rate() {
    let shown = |quota: &str| quota.parse::<Quota>().unwrap().to_string();
    for (bucket, expected) in [
        ("bucket 40, 2/1s", "bucket 40, 2 per 1s, burst 38, margin 1s, sustains 2 per second"),
        ("bucket 40, 2/1s, margin 0s", "bucket 40, 2 per 1s, burst 40, margin 0s, sustains 2 per second"),
        ("bucket 1000, 50/1s", "bucket 1000, 50 per 1s, burst 950, margin 1s, sustains 50 per second"),
        ("bucket 10, 3/1s", "bucket 10, 3 per 1s, burst 9, margin 208333333ns, sustains 3 per second"),
        // The burst covers none of the margin, or a part of it.
        ("bucket 1, 1/1s", "bucket 1, 1 per 1s, burst 1, margin 62500us, sustains 0.9412 per second"),
        ("bucket 2, 1/1s, margin 2s", "bucket 2, 1 per 1s, burst 1, margin 2s, sustains 0.5 per second"),
    ] {
        assert_eq!(shown(bucket), expected);
    }
    let second = Duration::from_secs(1);
    let bucket = Quota::bucket(40, 2, second).unwrap();
    assert_eq!((bucket.limit(), bucket.window(), bucket.refill()), (40, 20 * second, Some((2, second))));
    assert_eq!(Quota::per_second(2).unwrap().refill(), None);
    assert_ne!(bucket.without_margin(), Quota::bucket(40, 4, 2 * second).unwrap().without_margin());
}

#[test]
fn quota_error_names_the_field_and_the_valid_values() {
    let quota = Quota::per_minute(100).unwrap();
    let second = Duration::from_secs(1);
    let cases = [
        (Quota::per_hour(0), "invalid quota limit `0`: expected at least 1"),
        (Quota::new(1, Duration::ZERO), "invalid quota window `0ns`: expected more than zero"),
        (Quota::new(1, LONGEST + second), "invalid quota window `31622401s`: expected more than zero"),
        (quota.with_burst(0), "invalid quota burst `0`: expected 1 to 99"),
        (quota.with_burst(101), "invalid quota burst `101`: expected 1 to 99"),
        (quota.with_burst(100), "invalid quota burst `100`: expected at most 99: a burst equal to the limit"),
        (quota.with_margin(second * 61), "invalid quota margin `61s`: expected at most 60s (the window)"),
        (Quota::bucket(0, 1, second), "invalid quota limit `0`: expected at least 1"),
        (Quota::bucket(1, 0, second), "invalid quota refill `0`: expected at least 1"),
        (Quota::bucket(1, 1, Duration::ZERO), "invalid quota window `0ns`: expected more than zero"),
        (
            Quota::bucket(2, 1, LONGEST),
            "invalid quota limit `2`: expected a bucket that fills up within 366 days",
        ),
        (
            Quota::bucket(9, 1, second).and_then(|it| it.with_burst(2)),
            "invalid quota burst `2`: expected no burst for a bucket",
        ),
        (
            Quota::bucket(9, 1, second).and_then(|it| it.with_margin(10 * second)),
            "invalid quota margin `10s`: expected at most 9s (the time in which",
        ),
        ("bucket 9".parse(), "invalid quota `bucket 9`: expected LIMIT/WINDOW"),
        ("bucket 9, 1/1s, burst 2".parse(), "invalid quota burst `2`: expected no burst for a bucket"),
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
    for (window, expected) in [(1, 62_500), (8, 500_000), (16, 1_000_000), (17, 1_000_000), (60, 1_000_000)] {
        assert_eq!(margin(Duration::from_secs(window)), Duration::from_micros(expected), "{window} s");
    }
    assert_eq!(margin(Duration::from_millis(1)), Duration::from_nanos(62_500));
    assert_eq!(margin(LONGEST), Duration::from_secs(1));
}

#[test]
fn displays_the_sustained_rate_with_four_significant_digits() {
    let shown = |quota: Result<Quota, InvalidConfig>| quota.unwrap().to_string();
    let second = Duration::from_secs(1);
    for (quota, expected) in [
        (Quota::per_second(10), "10 per 1s, burst 1, margin 62500us, sustains 9.412 per second"),
        (
            Quota::per_second(10).map(Quota::without_margin),
            "10 per 1s, burst 1, margin 0s, sustains 10 per second",
        ),
        (
            Quota::new(1, 100_000 * second).map(Quota::without_margin),
            "1 per 100000s, burst 1, margin 0s, sustains 0.00001 per second",
        ),
        (
            Quota::per_second(40_000).and_then(|quota| quota.with_margin(second)),
            "40000 per 1s, burst 4000, margin 1s, sustains 20000 per second",
        ),
        (
            Quota::new(u32::MAX, Duration::from_nanos(1)),
            "4294967295 per 1ns, burst 429496729, margin 0s, sustains 4294967294999999488 per second",
        ),
    ] {
        assert_eq!(shown(quota), expected);
    }
}

#[test]
fn limit_of_one_admits_one_request_in_a_closed_window() {
    let quota = Quota::per_second(1).unwrap().with_burst(1).unwrap();
    assert_eq!(quota.refill_interval(), Duration::from_nanos(1_062_500_001));
    assert_eq!(quota.without_margin().refill_interval(), Duration::from_nanos(1_000_000_001));
    assert!(quota.with_burst(2).is_err());
}
