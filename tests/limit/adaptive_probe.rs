//! Tests of the adaptive limiter's pauses and probes, of its settings, and of one limiter for each key.

use super::*;

#[tokio::test(start_paused = true)]
async fn limiter_probes_again_if_a_probe_is_cancelled_or_fails() {
    // The first request is throttled, and the second one is the probe.
    let timed_out = ScriptedResponse::io_error(io::ErrorKind::TimedOut).with_delay(millis(300));
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
        let cancelled = timeout(millis(1_200), call()).await;
        assert!(cancelled.is_err() || cancelled.unwrap().is_err(), "{case}");
        assert_eq!(call().await.unwrap().status(), StatusCode::OK, "{case}");
        let elapsed = start.elapsed().as_millis() as u64;
        assert!((1_000..=latest).contains(&elapsed), "{case}: {elapsed} ms");
    }
}

/// Sends `number` requests in turn, each of which takes 10 ms. Returns how long they took.
async fn send(limiter: &LocalLimiter, number: usize, status: u16, headers: &HeaderMap) -> Duration {
    let start = Instant::now();
    for _ in 0..number {
        let mut permit = limiter.acquire().await.unwrap();
        permit.mark_sent(Instant::now());
        sleep(millis(10)).await;
        permit.complete(&ResponseInfo::new(StatusCode::from_u16(status).unwrap(), headers));
    }
    start.elapsed()
}

/// Returns the headers of a quota, as names and values.
fn fields(limit: u32, seconds: u64, remaining: u32) -> [(&'static str, String); 2] {
    let policy = format!("\"a\";q={limit};w={seconds}");
    [("ratelimit", format!("\"a\";r={remaining};t={seconds}")), ("ratelimit-policy", policy)]
}

fn quota_headers(limit: u32, seconds: u64, remaining: u32) -> HeaderMap {
    let field = |(name, value)| (HeaderName::from_static(name), HeaderValue::try_from(value).unwrap());
    fields(limit, seconds, remaining).map(field).into_iter().collect()
}

/// An idle key that has a learned rate is kept.
#[tokio::test(start_paused = true)]
async fn rate_is_learned_and_kept_for_each_key() {
    let api = ScriptedService::from_fn(|seen| {
        let limit = if seen.head.uri.path() == "/slow" { 20 } else { 1_000 };
        let [remaining, policy] = fields(limit, 10, limit);
        let response = ScriptedResponse::status(200).with_header(remaining.0, &remaining.1);
        response.with_header(policy.0, &policy.1)
    });
    let made = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&made);
    let by_path = Keyed::new(
        |head: RequestHead<'_>| head.uri.path().to_owned(),
        move |_: &String| {
            counted.fetch_add(1, Relaxed);
            LocalLimiter::adaptive([])
        },
    );
    let service = RateLimitLayer::new(by_path).layer(api);
    let call = async |path: &str| {
        service.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    };
    for (path, least, most) in [("/slow", 19_000, 21_000), ("/fast", 150, 300)] {
        let start = Instant::now();
        for _ in 0..40 {
            call(path).await;
        }
        let elapsed = start.elapsed().as_millis();
        assert!((least..=most).contains(&elapsed), "{path}: {elapsed} ms");
    }
    for number in 0..200 {
        sleep(seconds(1)).await;
        call(&format!("/{number}")).await;
    }
    call("/fast").await;
    assert_eq!(made.load(Relaxed), 202);
}

#[tokio::test(start_paused = true)]
async fn lower_quota_lowers_the_learned_rate() {
    let limiter = LocalLimiter::adaptive([]);
    send(&limiter, 1, 200, &quota_headers(102, 1, 90)).await;
    let rate = || limiter.snapshot().learned.unwrap().rate();
    assert!((rate() - 100.0).abs() < 0.1, "{}", rate());
    limiter.set_quotas([Quota::new(20, seconds(1)).unwrap().without_margin()]);
    assert!((rate() - 20.0).abs() < 0.1, "{}", rate());
    limiter.set_quotas([]);
    let elapsed = send(&limiter, 20, 200, &HeaderMap::new()).await;
    assert!(elapsed >= millis(850), "the learned rate was lost: {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn resume_ends_a_pause_and_forgets_a_rate_only_if_a_quota_was_reported() {
    for quota in [HeaderMap::new(), quota_headers(102, 1, 90)] {
        let limiter = LocalLimiter::adaptive([]);
        send(&limiter, 20, 200, &quota).await;
        let mut headers = quota.clone();
        headers.insert("retry-after", "60".parse().unwrap());
        send(&limiter, 1, 429, &headers).await;
        assert!(limiter.try_acquire().is_err());
        if quota.is_empty() {
            send(&limiter, 1, 200, &quota).await;
        }
        let learned = limiter.snapshot().learned.is_some();
        limiter.resume();
        let elapsed = send(&limiter, 2, 200, &HeaderMap::new()).await;
        assert!(elapsed < seconds(30), "{elapsed:?}");
        assert_eq!((learned, limiter.snapshot().learned.is_some()), (true, quota.is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn remaining_permits_delay_requests_only_with_server_remaining() {
    let adaptive = || LocalLimiter::adaptive([]);
    for (limiter, obeys) in [(adaptive(), false), (adaptive().with_server_remaining(), true)] {
        send(&limiter, 1, 200, &quota_headers(100, 10, 0)).await;
        let elapsed = send(&limiter, 1, 200, &HeaderMap::new()).await;
        assert_eq!(elapsed >= seconds(9), obeys, "{elapsed:?}");
    }
}
