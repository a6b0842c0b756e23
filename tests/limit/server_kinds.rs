//! Tests of a limiter with the right quota against each kind of rate-limiting server, with 64 callers that always have
//! a request to send. The callers use nearly the complete quota. Only the server `estimate` may reject requests: at
//! most one per 200 accepted requests.

use super::*;

const WINDOWS: u32 = 12;

/// The quotas of the tests. Each quota has a limit and a window in seconds.
const QUOTAS: [(u32, u64); 4] = [(100, 6), (20, 1), (100, 60), (1_000, 60)];

const HEADERS: [LimitHeaders; 4] =
    [LimitHeaders::XRateLimit, LimitHeaders::RetryAfter, LimitHeaders::Draft7, LimitHeaders::Draft10];

type MakeServer = fn(u32, Duration) -> ServerLimit;

/// For each kind of server, the name, the constructor, and the smallest share of the quota that the callers must use,
/// in percent.
const SERVERS: [(&str, MakeServer, f64); 7] = [
    ("token bucket", ServerLimit::token_bucket, 93.0),
    // tokio's timers fire up to 1 ms late. With a burst of one permit, the limiter cannot compensate for that.
    ("spacing without burst", |limit, window| ServerLimit::spacing(limit, window, 0), 92.0),
    ("spacing with burst", |limit, window| ServerLimit::spacing(limit, window, 5), 93.0),
    ("fixed window", ServerLimit::fixed_window, 93.0),
    ("clock window", |limit, window| ServerLimit::clock_window(limit, window, window / 3), 93.0),
    ("sliding window", ServerLimit::sliding_window, 93.0),
    ("estimate", |limit, window| ServerLimit::estimate(limit, window, window / 3), 89.0),
];

/// Without jitter, no margin is necessary. The server `estimate` needs one, because its estimate is not exact.
async fn assert_full_use(
    headers: LimitHeaders,
    (limit, window): (u32, u64),
    is_adaptive: bool,
    has_jitter: bool,
) {
    let window = seconds(window);
    for (name, make, least) in SERVERS {
        if name == "estimate" && !has_jitter {
            continue;
        }
        let server = make(limit, window).with_headers(headers);
        // A server that spaces requests compares each request with the previous request, not with all requests of a
        // window. It therefore tolerates less jitter.
        let part = if name.starts_with("spacing") { 1.0 / f64::from(limit) } else { 0.5 };
        let burst = if name == "spacing without burst" { 1 } else { (limit / 50).clamp(2, 5) };
        let quota = Quota::new(limit, window).unwrap().with_burst(burst).unwrap();
        let quota = if has_jitter { quota } else { quota.without_margin() };
        let limiter =
            if is_adaptive { LocalLimiter::adaptive(quota) } else { LocalLimiter::paced_window(quota) };
        // The pause of 1 s after a rejection without a delay would cost a whole window.
        let limiter = limiter.with_throttle_pause(Duration::ZERO).unwrap();
        let traffic = Traffic::new(quota.margin().mul_f64(part), 7);
        let counts = traffic.run(&limiter, &server, window * WINDOWS, window).await;
        // Without jitter, the first window does not count.
        let skipped = u32::from(!has_jitter);
        let accepted = server.accepted() - u64::from(skipped) * counts[0].accepted;
        let useful = 100.0 * accepted as f64 / f64::from(limit * (WINDOWS - skipped));
        let least = if has_jitter { least } else { 98.0 };
        // The server `estimate` assumes that the requests of the previous window were evenly spread. With jitter, its
        // estimate can exceed the limit.
        let most_rejected = if name == "estimate" { server.accepted() / 200 } else { 0 };
        assert!(
            server.rejected() <= most_rejected && useful >= least,
            "{name}, {headers:?}, {limit} in {window:?}, adaptive {is_adaptive}, jitter {has_jitter}: \
             {useful:.1} % of the quota used, {} requests rejected",
            server.rejected()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_with_the_right_quota_uses_nearly_all_permits_without_rejections() {
    let quotas = some(&QUOTAS, 1).iter().map(|quota| (LimitHeaders::None, *quota));
    let headers = some(&HEADERS, 1).iter().map(|headers| (*headers, QUOTAS[0]));
    for (headers, quota) in quotas.chain(headers) {
        assert_full_use(headers, quota, false, true).await;
        assert_full_use(headers, quota, true, true).await;
    }
}

/// The used part of a quota with `with_server_remaining`, in percent, for each of the first three [`QUOTAS`]. The docs of
/// the setter contain this table. The first two rows run if `ADAPTIVE_CASES` is not set.
const WITH_SERVER_REMAINING: [(&str, [f64; 3]); 7] = [
    ("spacing without burst", [6.0, 5.0, 57.0]),
    ("token bucket", [94.0, 94.0, 98.0]),
    ("spacing with burst", [35.0, 30.0, 97.0]),
    ("fixed window", [86.0, 50.0, 98.0]),
    ("clock window", [92.0, 53.0, 98.0]),
    ("sliding window", [87.0, 50.0, 98.0]),
    ("estimate", [56.0, 58.0, 54.0]),
];

#[tokio::test(start_paused = true)]
async fn remaining_permits_cost_the_documented_part_of_a_quota() {
    for (name, expected) in some(&WITH_SERVER_REMAINING, 2) {
        let (_, make, _) = SERVERS.into_iter().find(|(server, ..)| server == name).unwrap();
        for ((limit, window), expected) in QUOTAS.into_iter().zip(expected) {
            let window = seconds(window);
            let server = make(limit, window).with_headers(LimitHeaders::XRateLimit);
            let limiter = LocalLimiter::paced_window(Quota::new(limit, window).unwrap());
            let traffic = Traffic::new(Duration::ZERO, 7);
            traffic.run(&limiter.with_server_remaining(), &server, window * WINDOWS, window).await;
            let useful = 100.0 * server.accepted() as f64 / f64::from(limit * WINDOWS);
            println!("{name}, {limit} in {window:?}: {useful:.1} % used, {} rejected", server.rejected());
            assert!((useful - expected).abs() < 2.0, "{name}, {limit} in {window:?}: {useful:.1} %");
        }
    }
}
