//! Tests of the rate-limit headers of responses, which `RateLimitLayer` passes to its limiter.

use super::*;

/// Returns a server that responds with `first` once, and then with 200.
fn api(first: ScriptedResponse) -> ScriptedService {
    ScriptedService::new([first, ScriptedResponse::status(200)])
}

/// Asserts that the requests arrived at the `expected` times, in seconds since `start`.
#[track_caller]
fn assert_arrivals(api: &ScriptedService, start: Instant, expected: &[f64]) {
    let arrivals: Vec<_> = api.arrivals().times().iter().map(|at| (*at - start).as_secs_f64()).collect();
    // A request may arrive up to 2 ms late, because tokio's timer rounds up to the next millisecond. No request may be
    // early.
    let fits = |(at, due): (&f64, &f64)| (*due..=due + 0.002).contains(at);
    let same = arrivals.len() == expected.len() && arrivals.iter().zip(expected).all(fits);
    assert!(same, "requests arrived at {arrivals:?} s, expected {expected:?} s");
}

fn request() -> Request<Body> {
    Request::new(Body::empty())
}

/// Returns a limiter that obeys the remaining permits of the server, and whose own quota delays no request of the
/// tests.
fn ample_limiter() -> LocalLimiter {
    LocalLimiter::paced_window(quota(1_000, 1_000, 500)).with_server_remaining()
}

fn response(status: u16, headers: &[(&str, &str)]) -> ScriptedResponse {
    let response = ScriptedResponse::status(status);
    headers.iter().fold(response, |response, (name, value)| response.with_header(name, value))
}

/// Returns a 200 response with a `RateLimit` header in the format of IETF draft 10.
fn remaining(permits: u64, reset_after: u64) -> ScriptedResponse {
    response(200, &[("ratelimit", &format!(r#""default";r={permits};t={reset_after}"#))])
}

#[tokio::test(start_paused = true)]
async fn each_refusal_names_the_quota_of_the_server() {
    let limiter = LocalLimiter::without_quota();
    let headers = HeaderMap::from_iter([
        (HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from_static("0")),
        (HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from_static("60")),
    ]);
    limiter.acquire().await.unwrap().complete(&ResponseInfo::new(StatusCode::OK, &headers));
    for _ in 0..3 {
        let refusal = limiter.try_acquire().unwrap_err();
        assert_eq!(refusal.quota(), Some("x-ratelimit-remaining"), "{refusal}");
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_never_sends_more_requests_than_the_server_allows() {
    // The server has one window, and reports the remaining permits with every response. Requests and responses overtake
    // one another. The first requests are sent before any limit is known.
    for seed in 0..50 {
        let limit = 1 + (seed as u32 * 7) % 40;
        for limiter in [LocalLimiter::without_quota(), ample_limiter()] {
            let server = ServerLimit::fixed_window(limit, seconds(30)).with_headers(LimitHeaders::XRateLimit);
            let callers = (1 + seed as usize % 10).min(limit as usize);
            let traffic = Traffic { callers, hop: (Duration::ZERO, millis(800)), seed };
            traffic.run(&limiter, &server, seconds(25), seconds(25)).await;
            let (accepted, rejected) = (server.accepted(), server.rejected());
            let case = format!("limit {limit}, {callers} callers: {accepted} accepted, {rejected} rejected");
            assert!(rejected == 0 && accepted <= limit.into(), "{case}");
        }
    }
}

/// If the status is not 429, 503 or 529, `Retry-After` delays only the call that received the header. Examples are a
/// redirect and the status 522 of a CDN. `Retry-After` takes precedence over an earlier reset.
#[tokio::test(start_paused = true)]
async fn retry_after_pauses_all_callers_only_if_the_status_is_429_503_or_529() {
    let reset = ("ratelimit", r#""default";r=5;t=1"#);
    for status in [429, 503, 529, 202, 301, 500, 502, 504, 520, 521, 522, 523, 524, 530] {
        for (name, value) in [("retry-after", "1.2, 3"), ("retry-after-ms", "2999.9, 7")] {
            let (start, api) = (Instant::now(), api(response(status, &[(name, value), reset])));
            let service = RateLimitLayer::new(ample_limiter()).layer(api.clone());
            for _ in 0..2 {
                service.clone().oneshot(request()).await.unwrap();
            }
            let pause = if [429, 503, 529].contains(&status) { 3.0 } else { 0.0 };
            assert_arrivals(&api, start, &[0.0, pause]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn server_limits_apply_to_all_callers_of_one_limiter_but_not_to_other_limiters() {
    for limits in [remaining(0, 5), response(429, &[("retry-after", "5")])] {
        let (start, limiter) = (Instant::now(), ample_limiter());
        let layer = RateLimitLayer::new(limiter.clone());
        let (server, other, unrelated) =
            (api(limits), ScriptedService::new([200]), ScriptedService::new([200]));
        let first = layer.layer(server.clone());
        first.clone().oneshot(request()).await.unwrap();
        let without_layer = tokio::spawn(limiter.acquire());
        let services = [
            first,
            layer.layer(server.clone()),
            layer.clone().with_max_queue(7).layer(server.clone()),
            layer.layer(other.clone()),
            RateLimitLayer::new(ample_limiter()).layer(unrelated.clone()),
        ];
        let calls: JoinSet<_> = services.into_iter().map(|service| service.oneshot(request())).collect();
        calls.join_all().await.into_iter().for_each(|response| drop(response.unwrap()));
        without_layer.await.unwrap().unwrap();
        assert_arrivals(&server, start, &[0.0, 5.0, 5.0, 5.0]);
        assert_arrivals(&other, start, &[5.0]);
        assert_arrivals(&unrelated, start, &[0.0]);
    }
}

/// Without the reported remaining permits, the limiter would send all three requests at once.
#[tokio::test(start_paused = true)]
async fn limiter_with_a_quota_obeys_only_the_remaining_permits_of_throttled_responses() {
    let quota = Quota::per_second(1_000).unwrap().with_burst(500).unwrap();
    let throttled = response(429, &[("ratelimit", r#""default";r=0;t=9"#)]);
    let api = ScriptedService::new([remaining(0, 7), throttled, ScriptedResponse::status(200)]);
    let start = Instant::now();
    let service = RateLimitLayer::new(LocalLimiter::paced_window(quota)).layer(api.clone());
    for _ in 0..3 {
        service.clone().oneshot(request()).await.unwrap();
    }
    assert_arrivals(&api, start, &[0.0, 0.0, 9.0]);
}

/// A response without a limit sets no rate, and the reset applies only after a throttled response.
#[tokio::test(start_paused = true)]
async fn presets_do_not_wait_for_the_reset_of_a_used_up_quota() {
    for preset in [
        preset::currency_rates("https://rates.example.com"),
        preset::email_delivery("https://mail.example.com"),
        preset::realtime_messaging("https://push.example.com"),
    ] {
        let preset = preset.unwrap().with_api_key(ApiKey::new("k3y").unwrap());
        let (start, api) = (Instant::now(), api(remaining(0, 7)));
        let service = preset.layer().unwrap().layer(api.clone());
        for _ in 0..2 {
            let request = Request::get(preset.base_url().clone()).body(Body::empty()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            assert!(Report::from_response(&response).is_some());
        }
        assert_arrivals(&api, start, &[0.0, 0.0]);
    }
}

/// Sends a request every 10 s for ten hours. Returns how many the limiter has let through.
async fn sent_in_ten_hours(limiter: &LocalLimiter, respond: impl Fn(u32) -> (StatusCode, HeaderMap)) -> u32 {
    let mut sent = 0;
    for _ in 0..3_600 {
        if let Ok(permit) = limiter.try_acquire() {
            let (status, headers) = respond(sent);
            sent += 1;
            permit.complete(&ResponseInfo::new(status, &headers));
        }
        advance(seconds(10)).await;
    }
    sent
}

fn head(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let fields = fields.iter();
    fields.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

/// Salesforce and RapidAPI accept requests beyond some quotas.
#[tokio::test(start_paused = true)]
async fn empty_quota_does_not_limit_requests_after_the_server_has_accepted_a_probe() {
    let salesforce = head(&[("sforce-limit-info", "api-usage=100010/100000")]);
    let rapid_api =
        head(&[("x-ratelimit-requests-remaining", "-1"), ("x-ratelimit-requests-reset", "2163603")]);
    for headers in [salesforce, rapid_api] {
        for new in [LocalLimiter::without_quota, ample_limiter] {
            // Another error does not show that the server accepts requests beyond the quota.
            for status in [StatusCode::BAD_REQUEST, StatusCode::PAYMENT_REQUIRED] {
                assert_eq!(sent_in_ten_hours(&new(), |_| (status, headers.clone())).await, 10, "{status}");
            }
            let limiter = new();
            // The first request begins a pause of an hour.
            let accept = |_| (StatusCode::OK, headers.clone());
            assert_eq!(sent_in_ten_hours(&limiter, accept).await, 3_600 - 359);
            // A rejected request shows that the quota is enforced. One probe then leaves each hour.
            let reject = |_| (StatusCode::TOO_MANY_REQUESTS, headers.clone());
            assert_eq!(sent_in_ten_hours(&limiter, reject).await, 10);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn distant_quota_applies_again_after_the_server_has_reported_permits() {
    let [empty, left] = ["api-usage=9/9", "api-usage=1/9"].map(|usage| head(&[("sforce-limit-info", usage)]));
    let limiter = LocalLimiter::without_quota();
    // The pause begins with request 0, and ends with the probe 1. The permits of request 9 replace both.
    let sent = sent_in_ten_hours(&limiter, |number| {
        (StatusCode::OK, if number == 9 { left.clone() } else { empty.clone() })
    });
    assert_eq!(sent.await, 3_600 - 2 * 359);
}

/// The limiter sees the end of the server's window in the remaining permits. A sliding window has no such end.
#[tokio::test(start_paused = true)]
async fn limiter_uses_a_quota_without_a_reset_and_never_exceeds_it() {
    type MakeServer = fn(u32, Duration) -> ServerLimit;
    let servers: [(MakeServer, u64); 3] = [
        (ServerLimit::fixed_window, 880),
        (|limit, window| ServerLimit::clock_window(limit, window, window / 3), 880),
        (ServerLimit::sliding_window, 500),
    ];
    // At most 90 % of the server's quota.
    let paced = || LocalLimiter::paced_window(quota(9, 1_000, 1)).with_server_remaining();
    for (make, least) in servers {
        for seed in 0..10 {
            let hop = (millis(10), millis(10 + 60 * seed));
            for (limiter, least) in [(paced(), least), (LocalLimiter::without_quota(), 500)] {
                let server = make(100, seconds(10)).with_headers(LimitHeaders::HubSpot);
                let traffic = Traffic { callers: 20, hop, seed };
                traffic.run(&limiter, &server, seconds(100), seconds(100)).await;
                let (accepted, rejected) = (server.accepted(), server.rejected());
                let case = format!("{hop:?}: {accepted} accepted, {rejected} rejected");
                assert!(rejected == 0 && accepted >= least, "{case}");
            }
        }
    }
}
