use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// A quota without a margin. The window is in nanoseconds.
fn quota(limit: u32, window: u64, burst: u32) -> Quota {
    let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
    quota.with_burst(burst.clamp(1, (limit - 1).max(1))).unwrap().without_margin()
}

fn cost(cost: u32) -> NonZeroU32 {
    NonZeroU32::new(cost).unwrap()
}

/// Takes `total` permits one by one, each as early as possible from `start` on. Returns the times of the grants.
fn greedy(algorithm: &mut PacedLogs, start: u64, total: u64) -> Vec<u64> {
    let mut now = start;
    let mut next = || {
        now = algorithm.forecast(now, 1, 1);
        assert!(algorithm.take(NonZeroU32::MIN, now));
        now
    };
    (0..total).map(|_| next()).collect()
}

#[test]
fn paced_window_leaves_one_gap_after_a_burst_and_then_grants_evenly() {
    let mut paced = PacedLogs::new(&[quota(100, 999, 10)]);
    let times = greedy(&mut paced, 0, 300);
    assert_eq!(times[..10], [0; 10], "burst");
    let gaps: Vec<_> = times[9..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps[..90], [10; 90], "even grants of the first window");
    assert_eq!(gaps[90], 100, "the gap of the burst's length");
    assert!(gaps[91..].iter().all(|gap| *gap == 10), "no further burst: {gaps:?}");
}

#[test]
fn whole_burst_is_available_again_after_an_idle_time() {
    let mut paced = PacedLogs::new(&[quota(100, 999, 10)]);
    let last = *greedy(&mut paced, 0, 300).last().unwrap();
    assert_eq!(paced.available(last), 0);
    let after = last + 100;
    assert_eq!(greedy(&mut paced, after, 11)[..10], [after; 10]);
    assert!(!paced.is_whole(after + 1_000) && paced.is_whole(after + 1_110));
}

#[test]
fn late_grants_do_not_lower_the_rate() {
    let mut paced = PacedLogs::new(&[quota(100, 999, 10)]);
    let (mut now, mut granted) = (0, 0);
    while now < 100_000 {
        now = paced.forecast(now, 1, 1) + 7;
        while paced.take(NonZeroU32::MIN, now) {
            granted += 1;
        }
    }
    assert!(granted >= 9_920, "{granted} of 10,000 permits");
}

proptest! {
    #[test]
    fn no_window_contains_more_permits_than_its_quota_allows(
        limits in prop::collection::vec((2_u32..20, 1_u64..200, 1_u32..20), 1..4),
        steps in prop::collection::vec((0_u64..60, 1_u32..20), 1..300),
    ) {
        let quotas: Vec<_> = limits.into_iter().map(|(limit, window, burst)| quota(limit, window, burst)).collect();
        let mut paced = PacedLogs::new(&quotas);
        let (mut now, mut grants) = (0, Vec::new());
        for (pause, permits) in steps {
            now += pause;
            let permits = 1 + permits % paced.largest();
            let available = paced.available(now);
            let taken = paced.take(cost(permits), now);
            prop_assert_eq!(taken, available >= permits, "{} available, cost {}", available, permits);
            if taken {
                grants.extend((0..permits).map(|_| now));
            }
        }
        for quota in &quotas {
            let (limit, window) = (quota.limit() as usize, quota.window().as_nanos() as u64);
            for start in 0..grants.len() {
                let count = grants[start..].iter().take_while(|at| **at <= grants[start] + window).count();
                prop_assert!(count <= limit, "{} permits in {} ns, {:?}", count, window, grants);
            }
        }
    }

    #[test]
    fn forecast_is_never_later_than_the_earliest_grant(
        limits in prop::collection::vec((2_u32..20, 1_u64..200, 1_u32..20), 1..3),
        steps in prop::collection::vec((0_u64..60, 1_u32..20), 0..60),
        costs in prop::collection::vec(1_u32..20, 1..60),
    ) {
        let quotas: Vec<_> = limits.into_iter().map(|(limit, window, burst)| quota(limit, window, burst)).collect();
        let mut paced = PacedLogs::new(&quotas);
        let mut now = 0;
        for (pause, permits) in steps {
            now += pause;
            paced.take(cost(1 + permits % paced.largest()), now);
        }
        let costs: Vec<_> = costs.into_iter().map(|cost| 1 + cost % paced.largest()).collect();
        let (start, costliest) = (now, *costs.iter().max().unwrap());
        let mut total = 0;
        let forecasts: Vec<_> = costs.iter().map(|cost| {
            total += u64::from(*cost);
            paced.forecast(start, total, costliest)
        }).collect();
        for (each, forecast) in costs.iter().zip(forecasts) {
            now = paced.forecast(now, u64::from(*each), *each);
            prop_assert!(paced.take(cost(*each), now));
            prop_assert!(forecast <= now, "forecast {}, granted at {}", forecast, now);
        }
    }

    #[test]
    fn forecast_is_exact_for_single_permits_of_a_new_limiter(
        limit in 2_u32..30, interval in 1_u64..20, burst in 1_u32..30, total in 1_u64..200,
    ) {
        let quota = quota(limit, u64::from(limit) * interval - 1, burst);
        let mut paced = PacedLogs::new(&[quota]);
        let forecast = paced.forecast(0, total, 1);
        prop_assert_eq!(forecast, *greedy(&mut paced, 0, total).last().unwrap());
    }
}
