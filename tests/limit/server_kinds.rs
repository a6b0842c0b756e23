//! Tests of a limiter with the right quota against each kind of rate-limiting server, with 64 callers that always have
//! a request to send. The callers use nearly the complete quota. Only the server `estimate` may refuse requests: at
//! most one per 200 accepted requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    Body, BoxError, Quota,
    limit::{PacedWindow, RateLimitLayer},
    test_util::{LimitHeaders, ScriptedService, ServerLimit},
};

const CALLERS: usize = 64;
const WINDOWS: u32 = 12;

/// The quotas of the tests. Each quota has a limit and a window in seconds.
const QUOTAS: [(u32, u64); 4] = [(20, 1), (100, 6), (100, 60), (1_000, 60)];

const HEADERS: [LimitHeaders; 5] = [
    LimitHeaders::None,
    LimitHeaders::RetryAfter,
    LimitHeaders::XRateLimit,
    LimitHeaders::Draft7,
    LimitHeaders::Draft10,
];

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

/// Returns a generator of reproducible pseudorandom numbers from 0 to 1.
fn fractions() -> impl Fn() -> f64 + Clone {
    let state = Arc::new(AtomicU64::new(7));
    move || {
        // The multiplier and the increment of a linear congruential generator.
        let next = |x: u64| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = state.fetch_update(Relaxed, Relaxed, |x| Some(next(x))).unwrap();
        (next(before) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Sends requests from all callers for `WINDOWS` windows. A request and its response each take 20 ms plus a random time
/// of up to `jitter`.
async fn load(limiter: PacedWindow, server: &ServerLimit, jitter: Duration, window: Duration) {
    let (limit, random) = (server.clone(), fractions());
    let api = ScriptedService::from_fn(move |_| limit.respond());
    let network = service_fn(move |request: Request<Body>| {
        let (api, random) = (api.clone(), random.clone());
        async move {
            let hop = || tokio::time::sleep(Duration::from_millis(20) + jitter.mul_f64(random()));
            hop().await;
            let response: Result<Response<Body>, BoxError> = api.oneshot(request).await;
            hop().await;
            response
        }
    });
    let service = RateLimitLayer::new(limiter).layer(network);
    let end = Instant::now() + window * WINDOWS;
    let caller = async || {
        loop {
            let response = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
            assert!([StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].contains(&response.status()));
        }
    };
    let callers = (0..CALLERS).map(|_| tokio::time::timeout_at(end, caller()));
    futures_util::future::join_all(callers).await;
}

async fn assert_full_use(headers: LimitHeaders, (limit, seconds): (u32, u64)) {
    let window = Duration::from_secs(seconds);
    for (name, make, least) in SERVERS {
        let server = make(limit, window).with_headers(headers);
        // A server that spaces requests compares each request with the previous request, not with all requests of a
        // window. It therefore tolerates less jitter.
        let spaces = name.starts_with("spacing");
        let part = if spaces { 1.0 / f64::from(limit) } else { 0.5 };
        let burst = if name == "spacing without burst" { 1 } else { (limit / 50).clamp(2, 5) };
        let quota = Quota::new(limit, window).unwrap().with_burst(burst).unwrap();
        load(PacedWindow::new(quota), &server, quota.margin().mul_f64(part), window).await;
        let useful = 100.0 * server.accepted() as f64 / f64::from(limit * WINDOWS);
        let case = format!(
            "{name}, {headers:?}, {limit}/{seconds} s: {useful:.1} % of the quota used, {} requests refused",
            server.refused()
        );
        // The server `estimate` assumes that the requests of the previous window were evenly spread. With jitter, its
        // estimate can exceed the limit.
        let most_refused = if name == "estimate" { server.accepted() / 200 } else { 0 };
        assert!(server.refused() <= most_refused && useful >= least, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_with_the_right_quota_uses_nearly_all_permits_without_refusals() {
    for quota in QUOTAS {
        assert_full_use(LimitHeaders::None, quota).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_headers_do_not_lower_the_throughput_of_a_limiter_with_a_quota() {
    for headers in HEADERS {
        assert_full_use(headers, (100, 6)).await;
    }
}
