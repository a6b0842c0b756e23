//! Tests of the adaptive limiter against each kind of rate-limiting server.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, StatusCode};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Body, Quota,
    limit::{LocalLimiter, RateLimitLayer},
    test_util::{LimitHeaders, ScriptedResponse, ScriptedService, ServerLimit},
};

use super::traffic::{Count, Traffic, runs_slow_cases, some};

/// The quotas as a limit and a number of seconds.
const QUOTAS: [(u32, u64); 4] = [(100, 60), (100, 6), (20, 1), (1_000, 60)];
const SEEDS: u64 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    TokenBucket,
    Spacing,
    SpacingWithBurst,
    FixedWindow,
    ClockWindow,
    SlidingWindow,
    Estimate,
}

const KINDS: [Kind; 7] = [
    Kind::TokenBucket,
    Kind::Spacing,
    Kind::SpacingWithBurst,
    Kind::FixedWindow,
    Kind::ClockWindow,
    Kind::SlidingWindow,
    Kind::Estimate,
];

/// Returns the kinds of servers to test: all in CI, otherwise one, because a case takes a second without optimisation.
fn kinds() -> impl Iterator<Item = Kind> {
    let is_full = runs_slow_cases();
    KINDS.into_iter().filter(move |kind| is_full || *kind == Kind::SlidingWindow)
}

/// Returns whether all cases run, at their full duration.
fn runs_all_cases() -> bool {
    std::env::var("ADAPTIVE_CASES").is_ok_and(|cases| cases == "all")
}

const HEADERS: [LimitHeaders; 6] = [
    LimitHeaders::None,
    LimitHeaders::RetryAfter,
    LimitHeaders::XRateLimit,
    LimitHeaders::XRateLimitEpoch,
    LimitHeaders::Draft7,
    LimitHeaders::Draft10,
];

impl Kind {
    fn server(self, limit: u32, window: Duration, seed: u64) -> ServerLimit {
        let phase = window.mul_f64(seed as f64 / SEEDS as f64);
        match self {
            Self::TokenBucket => ServerLimit::token_bucket(limit, window),
            Self::Spacing => ServerLimit::spacing(limit, window, 0),
            Self::SpacingWithBurst => ServerLimit::spacing(limit, window, 5),
            Self::FixedWindow => ServerLimit::fixed_window(limit, window),
            Self::ClockWindow => ServerLimit::clock_window(limit, window, phase),
            Self::SlidingWindow => ServerLimit::sliding_window(limit, window),
            Self::Estimate => ServerLimit::estimate(limit, window, phase),
        }
    }

    fn jitter(self, limit: u32, window: Duration) -> Duration {
        let jitter = Duration::from_secs(1).min(window / 50);
        match self {
            Self::Spacing | Self::SpacingWithBurst => jitter.min(window / limit / 10),
            _ => jitter,
        }
    }
}

/// The percentage of the quota that was used, and the percentage of the requests that the server rejected.
#[derive(Debug, Clone, Copy)]
struct Use {
    useful: f64,
    rejected: f64,
}

impl Use {
    /// Measures the time after the first `skipped` windows.
    fn of(counts: &[Count], skipped: usize, limit: u32) -> Self {
        let (first, last) = (counts[skipped - 1], counts[counts.len() - 1]);
        let accepted = (last.accepted - first.accepted) as f64;
        let rejected = (last.rejected - first.rejected) as f64;
        let allowed = f64::from(limit) * (counts.len() - skipped) as f64;
        Self {
            useful: 100.0 * accepted / allowed,
            rejected: 100.0 * rejected / (accepted + rejected).max(1.0),
        }
    }

    fn median(uses: &[Self]) -> Self {
        let median = |get: fn(&Self) -> f64| {
            let mut values: Vec<_> = uses.iter().map(get).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self { useful: median(|one| one.useful), rejected: median(|one| one.rejected) }
    }
}

/// Returns the duration of a case. A limiter finds the rate of some servers only after dozens of windows.
///
/// - 30 windows and at least 10 minutes for `Spacing` without useful headers, and if `ADAPTIVE_CASES` is `all`
/// - 30 windows and at least 5 minutes for other slow servers
/// - otherwise 15 windows, between 1 and 5 minutes
fn duration(kind: Kind, headers: LimitHeaders, window: Duration) -> Duration {
    let is_slow = match headers {
        LimitHeaders::XRateLimit | LimitHeaders::Draft7 => {
            matches!(kind, Kind::Spacing | Kind::SpacingWithBurst | Kind::Estimate)
        }
        LimitHeaders::Draft10 => {
            kind == Kind::Spacing || (kind == Kind::Estimate && window < Duration::from_secs(60))
        }
        _ => true,
    };
    if runs_all_cases() || (is_slow && kind == Kind::Spacing) {
        (window * 30).max(Duration::from_secs(600))
    } else if is_slow {
        (window * 30).max(Duration::from_secs(300))
    } else {
        (window * 15).clamp(Duration::from_secs(60), Duration::from_secs(300))
    }
}

/// Runs the case for each seed, and returns the median. The measurement skips the first window, or the first two if the
/// responses contain no quota.
async fn learn(kind: Kind, headers: LimitHeaders, (limit, seconds): (u32, u64), seeds: u64) -> Use {
    let window = Duration::from_secs(seconds);
    let skipped = if matches!(headers, LimitHeaders::None | LimitHeaders::RetryAfter) { 2 } else { 1 };
    let mut uses = Vec::new();
    for seed in 0..seeds {
        let server = kind.server(limit, window, seed).with_headers(headers);
        let traffic = Traffic::new(kind.jitter(limit, window), seed + 1);
        let counts =
            traffic.run(&LocalLimiter::adaptive([]), &server, duration(kind, headers, window), window).await;
        uses.push(Use::of(&counts, skipped, limit));
    }
    Use::median(&uses)
}

/// Returns the lowest allowed percentage of the quota that is used, and the highest allowed percentage of rejected
/// requests.
fn target(kind: Kind, headers: LimitHeaders, (_, seconds): (u32, u64)) -> (f64, f64) {
    use LimitHeaders::{None, RetryAfter, XRateLimitEpoch};
    match (kind, headers) {
        // No limiter can use more than 91.7 % with at most 0.5 % rejected, because the server checks each interval.
        (Kind::Spacing, _) => (80.0, 3.0),
        (_, None | RetryAfter) => (85.0, 3.0),
        (Kind::Estimate, _) => (85.0, 0.5),
        // The reset and the date are whole seconds, so a short window seems up to two seconds longer.
        (_, XRateLimitEpoch) if seconds < 60 => (80.0, 1.0),
        (_, XRateLimitEpoch) => (92.0, 1.0),
        (Kind::TokenBucket | Kind::SpacingWithBurst, _) => (95.0, 1.0),
        (Kind::FixedWindow | Kind::ClockWindow | Kind::SlidingWindow, _) => (95.0, 0.5),
    }
}

/// Asserts that the limiter learns the quota of each kind of server with each of these `headers`. Prints a table.
async fn assert_learns(quota: (u32, u64), headers: &[LimitHeaders]) {
    let seeds = std::env::var("ADAPTIVE_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    let mut misses = Vec::new();
    for kind in kinds() {
        let mut line = format!("{kind:?} {}/{}s ", quota.0, quota.1);
        for &headers in headers {
            let Use { useful, rejected } = learn(kind, headers, quota, seeds).await;
            line += &format!(" {headers:?} {useful:.1}/{rejected:.1}");
            let (least, most) = target(kind, headers, quota);
            if useful < least || rejected > most {
                misses.push(format!(
                    "{kind:?} {headers:?} {quota:?}: {useful:.1} % useful, {rejected:.1} % rejected"
                ));
            }
        }
        println!("{line}");
    }
    assert!(misses.is_empty(), "\n{}", misses.join("\n"));
}

/// Runs the cases of one quota. The environment variable `ADAPTIVE_CASES` selects them: 2 cases by default, 70 with
/// `ci`, and all 168 with `all`. `ADAPTIVE_SEEDS` is the number of runs of each case. 1 by default.
async fn assert_learns_quota(place: usize) {
    let few = [LimitHeaders::None, LimitHeaders::XRateLimit];
    let most =
        [few[0], LimitHeaders::RetryAfter, few[1], LimitHeaders::XRateLimitEpoch, LimitHeaders::Draft10];
    let cases = std::env::var("ADAPTIVE_CASES").unwrap_or_default();
    let headers: &[_] = match (&*cases, place) {
        ("all", _) => &HEADERS,
        ("ci", 0) => &most,
        ("", 0) => &few,
        ("ci", 1 | 2) => &[LimitHeaders::XRateLimit, LimitHeaders::Draft10],
        ("ci", 3) => &most[4..],
        _ => &[],
    };
    assert_learns(QUOTAS[place], headers).await;
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_learns_a_quota_of_100_in_6_seconds() {
    assert_learns_quota(1).await;
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_learns_a_quota_of_20_per_second() {
    assert_learns_quota(2).await;
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_learns_a_quota_of_100_per_minute() {
    assert_learns_quota(0).await;
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_learns_a_quota_of_1000_per_minute() {
    assert_learns_quota(3).await;
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_corrects_a_configured_quota_that_is_twice_too_high() {
    let mut misses = Vec::new();
    for (limit, window) in changed_quotas() {
        for kind in kinds() {
            for headers in [LimitHeaders::None, LimitHeaders::XRateLimit] {
                let limiter = LocalLimiter::adaptive(Quota::new(2 * limit, window).unwrap());
                let server = kind.server(limit, window, 0).with_headers(headers);
                let traffic = Traffic::new(kind.jitter(limit, window), 1);
                let duration = duration(kind, LimitHeaders::None, window);
                let counts = traffic.run(&limiter, &server, duration, window).await;
                let Use { useful, rejected } = Use::of(&counts, 2, limit);
                if useful < 75.0 || rejected > 3.0 {
                    misses.push(format!(
                        "{kind:?} {headers:?} {limit} in {window:?}: {useful:.1} {rejected:.1}"
                    ));
                }
            }
        }
    }
    assert!(misses.is_empty(), "\n{}", misses.join("\n"));
}

/// Changes the server's limit. Returns the time until the end of the first window that contains 90 % of the new limit.
/// At the server `Estimate`, 80 % suffice, because the limiter uses only 88 % of its limit in the long run. Also
/// returns the percentage of rejected requests after the first three windows, or after 30 s if that is longer.
async fn recovery(
    kind: Kind,
    headers: LimitHeaders,
    before: u32,
    after: u32,
    window: Duration,
) -> (Duration, f64) {
    let server = kind.server(before, window, 0).with_headers(headers);
    let limiter = LocalLimiter::adaptive([]);
    let traffic = Traffic::new(kind.jitter(before.max(after), window), 1);
    traffic.run(&limiter, &server, window * 10, window).await;
    server.set_limit(after);
    let quarter = window / 4;
    let start = server.accepted();
    let counts = traffic.run(&limiter, &server, Duration::from_secs(300).max(window * 8), quarter).await;
    let accepted: Vec<_> = std::iter::once(start).chain(counts.iter().map(|count| count.accepted)).collect();
    let tenths = if kind == Kind::Estimate { 8 } else { 9 };
    let enough = |at: &usize| accepted[at + 4] - accepted[*at] >= u64::from(after) * tenths / 10;
    let at = (0..accepted.len() - 4).find(enough).unwrap_or(accepted.len());
    let adapted = (30.0 / quarter.as_secs_f64()).max(12.0) as usize;
    (quarter * (at as u32 + 4), Use::of(&counts, adapted, after).rejected)
}

/// Returns the quotas of the tests in which the quota is wrong or changes: all if `ADAPTIVE_CASES` is `all`, otherwise
/// one.
fn changed_quotas() -> impl Iterator<Item = (u32, Duration)> {
    let is_full = runs_all_cases();
    let quotas = QUOTAS.map(|(limit, seconds)| (limit, Duration::from_secs(seconds)));
    quotas.into_iter().filter(move |quota| is_full || *quota == (100, Duration::from_secs(6)))
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_follows_a_halved_and_a_doubled_quota() {
    let mut misses = Vec::new();
    for (limit, window) in changed_quotas() {
        for kind in kinds().filter(|kind| *kind != Kind::Spacing) {
            for headers in [LimitHeaders::None, LimitHeaders::XRateLimit, LimitHeaders::Draft10] {
                let slow = Duration::from_secs(120).max(window * 5);
                // With `X-RateLimit`, a server that spaces requests reports its burst and not the limit of the window.
                let reports_limit = match headers {
                    LimitHeaders::None => false,
                    LimitHeaders::XRateLimit => kind != Kind::SpacingWithBurst,
                    _ => true,
                };
                // The server `Estimate` still counts the requests that it rejected during the slow start of a window of
                // 1 s.
                let least = Duration::from_secs(if kind == Kind::Estimate { 5 } else { 0 });
                let doubled = if reports_limit { least.max(window * 2) } else { slow };
                for (after, longest) in
                    [(limit / 2, Duration::from_secs(30).max(window * 3)), (limit * 2, doubled)]
                {
                    let (adapted, rejected) = recovery(kind, headers, limit, after, window).await;
                    if adapted > longest || rejected > 3.0 {
                        misses.push(format!(
                            "{kind:?} {headers:?} {limit} to {after} in {window:?}: {adapted:?}, {rejected:.1} %"
                        ));
                    }
                }
            }
        }
    }
    assert!(misses.is_empty(), "\n{}", misses.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_obeys_requested_delays_over_slow_connections() {
    let (limit, window) = (100, Duration::from_secs(6));
    let hop = (Duration::from_millis(1), Duration::from_millis(300));
    for kind in kinds() {
        let mut line = format!("{kind:?}");
        for headers in HEADERS {
            // `Traffic::run` asserts that no permit is granted during a requested delay.
            let limiter = LocalLimiter::adaptive(Quota::new(120, window).unwrap());
            let server = kind.server(limit, window, 0).with_headers(headers);
            let traffic = Traffic { hop, ..Traffic::new(Duration::ZERO, 1) };
            let counts = traffic.run(&limiter, &server, window * 20, window).await;
            let Use { useful, rejected } = Use::of(&counts, 2, limit);
            line += &format!("  {headers:?} {useful:.1}/{rejected:.1}");
        }
        println!("{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_adaptive_limiters_share_the_quota_of_one_key() {
    let (limit, window) = (100, Duration::from_secs(6));
    for kind in
        kinds().filter(|kind| [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow].contains(kind))
    {
        for headers in [LimitHeaders::None, LimitHeaders::XRateLimit] {
            let (mut accepted, mut rejected) = (0, 0);
            for seed in [1, 3, 5] {
                let server = kind.server(limit, window, 0).with_headers(headers);
                let run = async |seed| {
                    let limiter = LocalLimiter::adaptive([]);
                    let traffic = Traffic::new(kind.jitter(limit, window), seed);
                    traffic.run(&limiter, &server, window * 30, window).await;
                    limiter.snapshot().granted
                };
                let (one, other) = tokio::join!(run(seed), run(seed + 1));
                let case = format!("{kind:?} {headers:?}: {one} and {other} sent");
                assert!(one.min(other) * 4 >= one.max(other), "{case}");
                (accepted, rejected) = (accepted + server.accepted(), rejected + server.rejected());
            }
            let case = format!("{kind:?} {headers:?}: {accepted} accepted, {rejected} rejected");
            assert!(accepted >= 3 * 80 * 30, "{case}");
            assert!(rejected * 100 <= 7 * (accepted + rejected), "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_without_a_quota_starts_with_ten_requests_and_doubles_them_every_100_ms() {
    let (limiter, start) = (LocalLimiter::adaptive([]), Instant::now());
    let granted = Arc::new(AtomicUsize::new(0));
    for _ in 0..10_000 {
        let (limiter, granted) = (limiter.clone(), Arc::clone(&granted));
        tokio::spawn(async move {
            limiter.acquire().await.unwrap();
            granted.fetch_add(1, Relaxed);
        });
    }
    for (millis, expected) in [(0, 10), (100, 20), (200, 40), (500, 320), (1_100, 10_000)] {
        tokio::time::sleep_until(start + Duration::from_millis(millis + 1)).await;
        let count = granted.load(Relaxed);
        assert!(count.abs_diff(expected) <= expected / 10, "{count} after {millis} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_without_a_rate_grants_a_request_that_costs_more_than_its_start() {
    let limiter = LocalLimiter::adaptive([]);
    let start = Instant::now();
    limiter.acquire_many(NonZeroU32::new(40).unwrap()).await.unwrap();
    assert!(start.elapsed() <= Duration::from_millis(201), "{:?}", start.elapsed());
}

/// By default, nginx spaces requests and rejects excess ones with a 503 without headers.
#[tokio::test(start_paused = true)]
async fn adaptive_limiter_learns_the_rate_of_a_server_that_rejects_with_a_503() {
    let quotas = [(100, 6), (60, 60), (100, 60), (20, 1)];
    for &(limit, seconds) in some(&quotas, 1) {
        for burst in [0, 5, 20] {
            let window = Duration::from_secs(seconds);
            let server =
                ServerLimit::spacing(limit, window, burst).with_rejection(StatusCode::SERVICE_UNAVAILABLE);
            let traffic = Traffic::new(Kind::Spacing.jitter(limit, window), 1);
            let duration = duration(Kind::Spacing, LimitHeaders::None, window);
            let counts = traffic.run(&LocalLimiter::adaptive([]), &server, duration, window).await;
            let Use { useful, rejected } = Use::of(&counts, 2, limit);
            let least = if burst == 0 { 80.0 } else { 85.0 };
            let case = format!("{limit}/{seconds} s, burst {burst}: {useful:.1} {rejected:.1}");
            println!("{case}");
            assert!(useful >= least && rejected <= 3.0, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_learns_the_quota_with_few_callers() {
    for callers in [1, 8] {
        for headers in [LimitHeaders::None, LimitHeaders::XRateLimit] {
            let (limit, window) = (100, Duration::from_secs(6));
            let server = ServerLimit::sliding_window(limit, window).with_headers(headers);
            let traffic = Traffic { callers, ..Traffic::new(Duration::ZERO, 1) };
            let counts = traffic.run(&LocalLimiter::adaptive([]), &server, window * 100, window).await;
            let Use { useful, rejected } = Use::of(&counts, 2, limit);
            assert!(useful >= 85.0 && rejected <= 3.0, "{callers} {headers:?}: {useful:.1} {rejected:.1}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_slows_down_only_briefly_if_every_third_response_is_a_503() {
    let api = ScriptedService::from_fn(|seen| {
        ScriptedResponse::status(if seen.number % 3 == 2 { 503 } else { 200 })
            .with_delay(Duration::from_millis(20))
    });
    let limiter = LocalLimiter::adaptive([]);
    let service = RateLimitLayer::new(limiter.clone()).layer(api);
    let start = Instant::now();
    for _ in 0..300 {
        service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    }
    // Without a limiter, the calls take 6 s.
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    let start = Instant::now();
    for _ in 0..300 {
        service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_millis(6_500), "{:?}", start.elapsed());
}
