//! Tests of the adaptive limiter's pauses and probes, of its settings, and of one limiter for each key.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Request, StatusCode, header::RETRY_AFTER};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Body, Quota,
    call::RequestHead,
    limit::{Keyed, Limiter, LocalLimiter, Permit, PermitRequest, RateLimitLayer, ResponseInfo},
    test_util::{ScriptedResponse, ScriptedService},
};

/// Returns a limiter whose probe is in flight, and the permit of the probe.
async fn probing() -> (LocalLimiter, Permit<'static>) {
    let limiter = LocalLimiter::adaptive([]);
    let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("1"))]);
    limiter.acquire().await.unwrap().complete(&ResponseInfo::new(StatusCode::TOO_MANY_REQUESTS, &headers));
    let mut probe = limiter.acquire().await.unwrap();
    probe.mark_sent(Instant::now());
    (limiter, probe)
}

#[tokio::test(start_paused = true)]
async fn waiter_behind_a_probe_is_refused_at_its_max_wait() {
    let (limiter, _probe) = probing().await;
    let start = Instant::now();
    for millis in [0, 1, 700] {
        let request = PermitRequest::new().with_max_wait(Duration::from_millis(millis));
        assert!(limiter.acquire_with(&request).await.is_err());
    }
    assert!(start.elapsed() < Duration::from_millis(710), "{:?}", start.elapsed());
    assert!(limiter.try_acquire().is_err());
}

#[tokio::test(start_paused = true)]
async fn next_waiter_becomes_the_probe_if_a_probe_gets_no_response() {
    for (is_sent, wait) in [(true, 1_000), (false, 0)] {
        let (limiter, probe) = probing().await;
        let start = Instant::now();
        if !is_sent {
            probe.release();
        } else {
            drop(probe);
        }
        limiter.acquire().await.unwrap();
        assert!(start.elapsed() <= Duration::from_millis(wait), "{:?}", start.elapsed());
    }
    // The limiter counts a probe without an outcome as lost after 10 s.
    let (limiter, probe) = probing().await;
    let start = Instant::now();
    limiter.acquire().await.unwrap();
    assert!((10..=11).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    drop(probe);
}

#[tokio::test(start_paused = true)]
async fn limiter_that_knows_no_rate_sends_one_request_after_a_pause_and_doubles_every_100_ms() {
    let (limiter, probe) = probing().await;
    probe.complete(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
    for expected in [1, 1, 2, 4] {
        assert_eq!((0..10).filter(|_| limiter.try_acquire().is_ok()).count(), expected);
        tokio::time::advance(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn accepted_probe_releases_the_waiters() {
    let (limiter, probe) = probing().await;
    let waiter = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire().await.map(drop) }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = Instant::now();
    probe.complete(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
    waiter.await.unwrap().unwrap();
    assert!(start.elapsed() <= Duration::from_millis(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn limiter_probes_again_if_a_probe_is_cancelled_or_fails() {
    // The first request is throttled, and the second one is the probe.
    let timed_out = ScriptedResponse::io_error(ErrorKind::TimedOut).with_delay(Duration::from_millis(300));
    for (case, probe, latest) in [
        ("cancelled", ScriptedResponse::never(), 1_500),
        ("timed out", timed_out, 2_400),
        ("not connected", ScriptedResponse::refused(), 2_100),
    ] {
        let throttled = ScriptedResponse::status(429).with_header("retry-after", "1");
        let api = ScriptedService::new([throttled, probe, ScriptedResponse::status(200)]);
        let service = RateLimitLayer::new(LocalLimiter::adaptive([])).layer(api);
        let start = Instant::now();
        let call = || service.clone().oneshot(Request::new(Body::empty()));
        assert_eq!(call().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        let cancelled = tokio::time::timeout(Duration::from_millis(1_200), call()).await;
        assert!(cancelled.is_err() || cancelled.unwrap().is_err(), "{case}");
        assert_eq!(call().await.unwrap().status(), StatusCode::OK, "{case}");
        let elapsed = start.elapsed().as_millis() as u64;
        assert!((1_000..=latest).contains(&elapsed), "{case}: {elapsed} ms");
    }
}

/// Sends `number` requests in turn, each of which takes 10 ms.
async fn send(limiter: &impl Limiter, number: usize, status: StatusCode, headers: &HeaderMap) {
    for _ in 0..number {
        let mut permit = limiter.acquire_with(&PermitRequest::new()).await.unwrap();
        permit.mark_sent(Instant::now());
        tokio::time::sleep(Duration::from_millis(10)).await;
        permit.complete(&ResponseInfo::new(status, headers));
    }
}

fn quota_headers(limit: u32, seconds: u64, remaining: u32) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let field = format!("\"a\";r={remaining};t={seconds}");
    headers.insert("ratelimit", HeaderValue::try_from(field).unwrap());
    let policy = format!("\"a\";q={limit};w={seconds}");
    headers.insert("ratelimit-policy", HeaderValue::try_from(policy).unwrap());
    headers
}

fn with_headers(headers: &HeaderMap) -> ScriptedResponse {
    let fields = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    fields.fold(ScriptedResponse::status(200), |response, (name, value)| response.with_header(name, value))
}

#[tokio::test(start_paused = true)]
async fn rate_is_learned_for_each_key() {
    let keyed = Keyed::new(
        |head: RequestHead<'_>| head.uri.path().to_owned(),
        |_: &String| LocalLimiter::adaptive([]),
    );
    let api = ScriptedService::from_fn(|seen| {
        let limit = if seen.head.uri.path() == "/slow" { 20 } else { 1_000 };
        with_headers(&quota_headers(limit, 10, limit))
    });
    let service = RateLimitLayer::new(keyed).layer(api);
    for (path, least, most) in [("/slow", 19_000, 21_000), ("/fast", 150, 300)] {
        let start = Instant::now();
        for _ in 0..40 {
            service.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        }
        let elapsed = start.elapsed().as_millis() as u64;
        assert!((least..=most).contains(&elapsed), "{path}: {elapsed} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn lower_quota_lowers_the_learned_rate() {
    let limiter = LocalLimiter::adaptive([]);
    send(&limiter, 1, StatusCode::OK, &quota_headers(102, 1, 90)).await;
    let rate = || limiter.snapshot().learned.unwrap().rate();
    assert!((rate() - 100.0).abs() < 0.1, "{}", rate());
    limiter.set_quotas([Quota::new(20, Duration::from_secs(1)).unwrap().without_margin()]);
    assert!((rate() - 20.0).abs() < 0.1, "{}", rate());
    limiter.set_quotas([]);
    let start = Instant::now();
    send(&limiter, 20, StatusCode::OK, &HeaderMap::new()).await;
    assert!(
        start.elapsed() >= Duration::from_millis(850),
        "the learned rate was lost: {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn resume_ends_a_pause_and_keeps_the_learned_rate() {
    let limiter = LocalLimiter::adaptive([]);
    send(&limiter, 1, StatusCode::OK, &quota_headers(102, 1, 90)).await;
    let mut headers = quota_headers(102, 1, 90);
    headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
    send(&limiter, 1, StatusCode::TOO_MANY_REQUESTS, &headers).await;
    assert!(limiter.try_acquire().is_err());
    limiter.resume();
    let start = Instant::now();
    send(&limiter, 2, StatusCode::OK, &HeaderMap::new()).await;
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    assert!(limiter.snapshot().learned.is_some());
}

#[tokio::test(start_paused = true)]
async fn remaining_permits_delay_requests_only_with_server_remaining() {
    for obeys in [false, true] {
        let limiter = LocalLimiter::adaptive([]);
        let limiter = if obeys { limiter.with_server_remaining() } else { limiter };
        send(&limiter, 1, StatusCode::OK, &quota_headers(100, 10, 0)).await;
        let start = Instant::now();
        send(&limiter, 1, StatusCode::OK, &HeaderMap::new()).await;
        assert_eq!(start.elapsed() >= Duration::from_secs(9), obeys, "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn no_window_exceeds_the_configured_quota_of_an_adaptive_limiter() {
    let window = Duration::from_secs(6);
    let quota = Quota::new(80, window).unwrap();
    let limiter = LocalLimiter::adaptive(quota);
    let mut grants = Vec::new();
    for number in 0..600 {
        let permit = limiter.acquire().await.unwrap();
        grants.push(Instant::now());
        // A throttled response makes the limiter learn from the headers, whose quota is higher.
        let status = if number == 100 { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        permit.complete(&ResponseInfo::new(status, &quota_headers(1_000, 6, 999)));
    }
    assert!(grants.windows(81).all(|grants| grants[80] - grants[0] > window));
}

#[tokio::test(start_paused = true)]
async fn quota_of_an_hour_does_not_spread_the_requests() {
    let limiter = LocalLimiter::adaptive([]);
    let start = Instant::now();
    for remaining in (0..60).rev() {
        let permit = limiter.acquire().await.unwrap();
        permit.complete(&ResponseInfo::new(StatusCode::OK, &quota_headers(60, 3_600, remaining)));
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_keeps_an_idle_key_that_has_a_learned_rate() {
    let made = Arc::new(AtomicUsize::new(0));
    let keyed = Keyed::new(|head: RequestHead<'_>| head.uri.path().to_owned(), {
        let made = Arc::clone(&made);
        move |_: &String| {
            made.fetch_add(1, Relaxed);
            LocalLimiter::adaptive([])
        }
    });
    let api = ScriptedService::from_fn(|_| with_headers(&quota_headers(1_000, 10, 999)));
    let service = RateLimitLayer::new(keyed).layer(api);
    let call = async |path: String| {
        service.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    };
    call("/first".to_owned()).await;
    for number in 0..200 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        call(format!("/{number}")).await;
    }
    call("/first".to_owned()).await;
    assert_eq!(made.load(Relaxed), 201);
}
