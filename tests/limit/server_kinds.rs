//! Tests of a limiter with the right quota against each kind of rate-limiting server, with 64 callers that always have
//! a request to send. The callers use nearly the complete quota. Only the server `estimate` may reject requests: at
//! most one per 200 accepted requests.

use std::time::Duration;

use tower_outbound::{
    Quota,
    limit::LocalLimiter,
    test_util::{LimitHeaders, ServerLimit},
};

use super::traffic::{Traffic, some};

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

async fn assert_full_use(headers: LimitHeaders, (limit, seconds): (u32, u64), is_adaptive: bool) {
    let window = Duration::from_secs(seconds);
    for (name, make, least) in SERVERS {
        let server = make(limit, window).with_headers(headers);
        // A server that spaces requests compares each request with the previous request, not with all requests of a
        // window. It therefore tolerates less jitter.
        let spaces = name.starts_with("spacing");
        let part = if spaces { 1.0 / f64::from(limit) } else { 0.5 };
        let burst = if name == "spacing without burst" { 1 } else { (limit / 50).clamp(2, 5) };
        let quota = Quota::new(limit, window).unwrap().with_burst(burst).unwrap();
        let traffic = Traffic::new(quota.margin().mul_f64(part), 7);
        if is_adaptive {
            traffic.run(&LocalLimiter::adaptive(quota), &server, window * WINDOWS, window).await;
        } else {
            traffic.run(&LocalLimiter::paced_window(quota), &server, window * WINDOWS, window).await;
        }
        let useful = 100.0 * server.accepted() as f64 / f64::from(limit * WINDOWS);
        let case = format!(
            "{name}, {headers:?}, {limit}/{seconds} s, adaptive {is_adaptive}: {useful:.1} % of the quota used, \
             {} requests rejected",
            server.rejected()
        );
        // The server `estimate` assumes that the requests of the previous window were evenly spread. With jitter, its
        // estimate can exceed the limit.
        let most_rejected = if name == "estimate" { server.accepted() / 200 } else { 0 };
        assert!(server.rejected() <= most_rejected && useful >= least, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_with_the_right_quota_uses_nearly_all_permits_without_rejections() {
    for &quota in some(&QUOTAS, 1) {
        for is_adaptive in [false, true] {
            assert_full_use(LimitHeaders::None, quota, is_adaptive).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_headers_do_not_lower_the_throughput_of_a_limiter_with_a_quota() {
    for &headers in some(&HEADERS, 1) {
        for is_adaptive in [false, true] {
            assert_full_use(headers, (100, 6), is_adaptive).await;
        }
    }
}

/// Without jitter, no margin is necessary. The server `estimate` needs one, because its estimate is not exact.
#[tokio::test(start_paused = true)]
async fn limiter_without_a_margin_uses_98_percent_of_the_quota_if_there_is_no_jitter() {
    for &(limit, seconds) in some(&QUOTAS, 2) {
        let window = Duration::from_secs(seconds);
        for (name, make, _) in SERVERS.into_iter().filter(|(name, ..)| *name != "estimate") {
            let server = make(limit, window);
            let burst = if name == "spacing without burst" { 1 } else { (limit / 50).clamp(2, 5) };
            let quota = Quota::new(limit, window).unwrap().with_burst(burst).unwrap().without_margin();
            let counts = Traffic::new(Duration::ZERO, 7)
                .run(&LocalLimiter::paced_window(quota), &server, window * WINDOWS, window)
                .await;
            let accepted = counts[counts.len() - 1].accepted - counts[0].accepted;
            let useful = 100.0 * accepted as f64 / f64::from(limit * (WINDOWS - 1));
            let case = format!("{name}, {limit}/{seconds} s: {useful:.1} %, {} rejected", server.rejected());
            assert!(useful >= 98.0 && server.rejected() == 0, "{case}");
        }
    }
}
