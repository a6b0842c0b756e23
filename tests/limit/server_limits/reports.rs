//! Tests of pauses that `Retry-After` requests, and of reported remaining permits: to which callers they apply, how
//! they combine with deadlines, and the slow start after them.

use super::*;

/// If the status is not 429, 503 or 529, `Retry-After` delays only the call that received the header. Examples are a
/// redirect and the status 522 of a CDN. `Retry-After` takes precedence over an earlier reset.
#[tokio::test(start_paused = true)]
async fn retry_after_pauses_all_callers_only_if_the_status_is_429_503_or_529() {
    let reset = ("ratelimit", r#""default";r=5;t=1"#);
    for status in [429, 503, 529, 202, 301, 500, 502, 504, 520, 521, 522, 523, 524, 530] {
        for (name, value) in [("retry-after", "1.2, 3"), ("retry-after-ms", "2999.9, 7")] {
            let (server, service) = Server::behind(&ample_limiter());
            server.respond_once(&service, response(status, &[(name, value), reset])).await;
            assert_all_succeed(spawn_calls(&service, 1).await).await;
            server.assert_arrivals([if [429, 503, 529].contains(&status) { 3.0 } else { 0.0 }]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn server_limits_apply_to_all_callers_of_one_limiter_but_not_to_other_limiters() {
    for limits in [remaining(0, 5), response(429, &[("retry-after", "5")])] {
        let limiter = ample_limiter();
        let layer = RateLimitLayer::new(limiter.clone());
        let (server, first) = Server::behind(&limiter);
        let (other_server, other) = Server::behind(&limiter);
        let (unrelated_server, unrelated) = Server::behind(&ample_limiter());
        let short = layer.clone().with_max_queue(7);
        server.respond_once(&first, limits).await;
        let without_layer = tokio::spawn(limiter.acquire());
        let mut calls = Vec::new();
        for service in [first, server.with_layer(&layer), server.with_layer(&short), other, unrelated] {
            calls.extend(spawn_calls(&service, 1).await);
        }
        assert_all_succeed(calls).await;
        without_layer.await.unwrap().unwrap();
        server.assert_arrivals(times(&[(3, 5.0)]));
        other_server.assert_arrivals([5.0]);
        unrelated_server.assert_arrivals([0.0]);
    }
}

/// Without the reported remaining permits, the limiter would send all three requests at once.
#[tokio::test(start_paused = true)]
async fn limiter_with_a_quota_obeys_only_the_remaining_permits_of_throttled_responses() {
    let quota = Quota::per_second(1_000).unwrap().with_burst(500).unwrap();
    let (server, service) = Server::behind(&LocalLimiter::paced_window(quota));
    server.will_respond(0.0, remaining(0, 7));
    server.will_respond(0.0, response(429, &[("ratelimit", r#""default";r=0;t=9"#)]));
    for _ in 0..3 {
        service.clone().oneshot(costing(1)).await.unwrap();
    }
    server.assert_arrivals([0.0, 0.0, 9.0]);
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
        let (server, _) = Server::behind(&LocalLimiter::without_quota());
        let service = preset.layer().unwrap().layer(server.api.clone());
        server.will_respond(0.0, remaining(0, 7));
        for _ in 0..2 {
            let request = Request::get(preset.base_url().clone()).body(Body::empty()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            assert!(Report::from_response(&response).is_some());
        }
        server.assert_arrivals([0.0, 0.0]);
    }
}

/// The limiter's own quota is one permit per second. Each waiter has a deadline, and ends at a time in seconds. If it is
/// refused, the refusal carries the wait.
#[tokio::test(start_paused = true)]
async fn waiter_is_refused_as_soon_as_the_limits_of_a_server_make_it_late() {
    let pause = response(429, &[("retry-after", "10")]);
    type Outcome = (u64, f64, Option<f64>);
    let cases: [(f64, _, &[Outcome]); 2] = [
        // Each waiter would meet its deadline if no pause had started. The pause ends at 10.5 s.
        (0.5, pause, &[(3, 0.5, Some(10.0)), (60, 10.5, None), (10, 0.5, Some(11.0)), (60, 11.5, None)]),
        // The first waiters take the remaining permits. The next ones would be granted after the reset.
        (0.0, remaining(2, 60), &[(90, 1.0, None), (90, 2.0, None), (90, 60.0, None), (60, 0.0, Some(61.0))]),
    ];
    for (number, (delay, response, expected)) in cases.into_iter().enumerate() {
        let limiter = LocalLimiter::paced_window(Quota::per_second(1).unwrap().without_margin());
        let (server, service) = Server::behind(&limiter.with_server_remaining());
        server.will_respond(delay, response);
        let (first, mut waiting) = (spawn_calls(&service, 1).await, Vec::new());
        for (deadline, ..) in expected {
            let start = server.start;
            let total = TotalTimeoutLayer::new(seconds(*deadline)).unwrap().layer(service.clone());
            waiting.push(tokio::spawn(async move {
                let error = total.oneshot(costing(1)).await.err();
                let wait = error.map(|error| {
                    assert!(error.is_rate_limited(), "{error:#} after {:?}", start.elapsed());
                    error.retry_after().expect("the refusal carries the wait").as_secs_f64()
                });
                (start.elapsed().as_secs_f64(), wait)
            }));
            settle().await;
        }
        assert_all_succeed(first).await;
        for (waiter, (deadline, at, wait)) in waiting.into_iter().zip(expected) {
            let (ended, waited) = waiter.await.unwrap();
            // Timers are late by up to 3 ms.
            let is_same = waited.is_some() == wait.is_some()
                && (ended - at).abs() < 0.004
                && (waited.unwrap_or(0.0) - wait.unwrap_or(0.0)).abs() < 0.003;
            assert!(is_same, "case {number}, deadline {deadline}: ended at {ended}, wait {waited:?}");
        }
    }
}

/// The quota of tokens resets after six minutes.
#[tokio::test(start_paused = true)]
async fn stated_delay_takes_precedence_over_the_reset_of_a_quota_of_tokens() {
    let tokens = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s")];
    for (delay, at) in [(Some(("retry-after", "2")), 2.0), (None, 360.0)] {
        let headers: Vec<_> = tokens.into_iter().chain(delay).collect();
        let (server, service) = Server::behind(&ample_limiter());
        server.respond_once(&service, response(429, &headers)).await;
        assert_all_succeed(spawn_calls(&service, 1).await).await;
        server.assert_arrivals([at]);
    }
}
