//! Tests the delay before a retry: the backoff with its jitter, the delay that the server requests, and the deadline. A
//! timeout layer, the caller or a custom layer can set the deadline.

use std::time::SystemTime;

use tower_outbound::test_util::ScriptedResponse;

use super::{support::Scripted::*, *};

/// Makes 1,000 concurrent calls. Returns, for each call, the delay between the first attempt and the retry.
async fn delays_of_1000_calls(layer: RetryLayer, status: u16, retry_after: &'static str) -> Vec<Duration> {
    let calls = (0..1_000).map(|_| {
        // Each call has its own service, as in an application that creates a service for each task.
        let inner = ScriptedService::new([RetryAfter(status, retry_after), Status(200)]);
        let service = layer.clone().without_budget().layer(inner);
        tokio::spawn(
            async move { report(&service.oneshot(get(URI)).await.unwrap()).attempts()[0].delay.unwrap() },
        )
    });
    futures_util::future::join_all(calls).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_the_retries_of_calls_that_fail_at_the_same_time() {
    let second = secs(1);
    let always_at_the_cap = ExponentialBackoff::new(second, second).unwrap();
    for (layer, status, retry_after, from, to) in [
        (RetryLayer::new(), 503, "", 50, 100),
        (RetryLayer::new(), 429, "", 500, 1_000),
        (RetryLayer::new(), 429, "5", 5_000, 5_500),
        (RetryLayer::new().with_backoff(always_at_the_cap), 503, "", 500, 1_000),
        (RetryLayer::new().with_seed(1), 503, "", 50, 100),
    ] {
        let delays = delays_of_1000_calls(layer, status, retry_after).await;
        let distinct: HashSet<_> = delays.iter().collect();
        assert!(distinct.len() >= 900, "only {} of 1,000 delays are distinct", distinct.len());
        // Each tenth of the delay range contains about a tenth of the 1,000 delays.
        let mut tenths = [0; 10];
        for delay in &delays {
            assert!((millis(from)..=millis(to)).contains(delay), "{delay:?}");
            let share = (delay.as_secs_f64() - millis(from).as_secs_f64()) / millis(to - from).as_secs_f64();
            tenths[((share * 10.0) as usize).min(9)] += 1;
        }
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_waits_for_a_requested_delay_of_three_years() {
    // A single timer of tokio covers at most 2.2 years.
    let inner = ScriptedService::new([Headers(503, &[("retry-after", "100000000")]), Status(200)]);
    let service = RetryLayer::new().with_max_retry_after(Duration::MAX).layer(inner.clone());
    service.oneshot(get(URI)).await.unwrap();
    let seen = inner.seen();
    let waited = seen[1].at - seen[0].at;
    assert!((secs(100_000_000)..secs(100_000_001)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_after_date_is_compared_with_wall_clock_if_date_header_is_missing() {
    #[allow(
        clippy::disallowed_methods,
        reason = "the layer compares the `retry-after` date with the wall clock"
    )]
    let now = SystemTime::now();
    tokio::time::advance(secs(3_600)).await;
    let until = httpdate::fmt_http_date(now + secs(3_600 + 30));
    let unavailable = ScriptedResponse::status(503).with_header("retry-after", &until);
    let inner = ScriptedService::new([unavailable, 200.into()]);
    let response = RetryLayer::new().layer(inner).oneshot(get(URI)).await.unwrap();
    let requested = report(&response).attempts()[0].requested_delay.unwrap();
    // A `retry-after` date has whole seconds, and the wall clock runs on while tokio's clock is paused.
    assert!((secs(25)..=secs(30)).contains(&requested), "{requested:?}");
}

fn get_with_deadline(deadline: Instant) -> Request<Content> {
    let mut request = get(URI);
    request.extensions_mut().insert(Deadline(deadline));
    request
}

#[tokio::test(start_paused = true)]
async fn retry_layer_obeys_a_deadline_that_a_custom_layer_inserts() {
    let inner = ScriptedService::new([RetryAfter(503, "3"), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .map_request(|mut request: Request<Content>| {
            request.extensions_mut().insert(Deadline::after(secs(1)));
            request
        })
        .layer(RetryLayer::new())
        .service(inner.clone());
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(inner.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn attempt_can_start_at_the_deadline_but_not_after_it() {
    for (late, calls) in [(0, 1), (1, 0)] {
        let inner = ScriptedService::new([Status(200)]);
        let deadline = Instant::now();
        tokio::time::advance(millis(late)).await;
        let result = RetryLayer::new().layer(inner.clone()).oneshot(get_with_deadline(deadline)).await;
        assert_eq!(
            (result.is_ok(), inner.calls()),
            (late == 0, calls),
            "the call starts {late} ms after the deadline"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn request_deadline_limits_waits_but_cancels_no_attempt() {
    let start = Instant::now();
    let inner = ScriptedService::new([Delayed(5_000, 200)]);
    let response = RetryLayer::new().layer(inner).oneshot(get_with_deadline(start + secs(1))).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), report(&response).stop_reason()),
        (200, Some(StopReason::Success))
    );
    let start = Instant::now();
    let inner = ScriptedService::new([Delayed(5_000, 503)]);
    let response =
        RetryLayer::new().layer(inner.clone()).oneshot(get_with_deadline(start + secs(1))).await.unwrap();
    assert_eq!((inner.calls(), report(&response).stop_reason()), (1, Some(StopReason::Deadline)));
}

#[tokio::test(start_paused = true)]
async fn call_that_is_polled_after_its_deadline_makes_no_further_attempt() {
    let inner = ScriptedService::new([Status(503)]);
    let service = RetryLayer::new().layer(inner.clone());
    let mut call = tokio_test::task::spawn(service.oneshot(get_with_deadline(Instant::now() + secs(2))));
    tokio_test::assert_pending!(call.poll());
    tokio::time::advance(secs(60)).await;
    assert!(tokio_test::assert_ready!(call.poll()).unwrap_err().is_deadline());
    assert_eq!(inner.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn timeout_or_limit_layer_without_a_retry_layer_obeys_the_request_deadline() {
    let start = Instant::now();
    let never_responds = || {
        ScriptedService::new([NoResponse])
            .map_request(|request: Request<Content>| request.map(ReplayBody::new))
    };
    let attempt = AttemptTimeoutLayer::new(secs(10)).unwrap().layer(never_responds());
    assert!(attempt.oneshot(get_with_deadline(start + secs(1))).await.unwrap_err().is_deadline());
    assert!(start.elapsed() < secs(2), "{:?}", start.elapsed());
    let bucket =
        LocalLimiter::token_bucket(Quota::new(2, secs(60)).unwrap().without_margin()).with_initial_burst(0);
    let limit = RateLimitLayer::new(bucket).layer(never_responds());
    assert!(limit.oneshot(get_with_deadline(Instant::now() + secs(1))).await.unwrap_err().is_rate_limited());
}

#[tokio::test(start_paused = true)]
async fn requested_delay_of_zero_does_not_hide_the_reset_of_an_empty_quota() {
    const EMPTY: [(&str, &str); 2] = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")];
    const ZERO: HeaderPairs = &[("retry-after", "0"), EMPTY[0], EMPTY[1]];
    const PAST: HeaderPairs = &[
        ("date", "Thu, 01 Jan 2026 01:00:00 GMT"),
        ("retry-after", "Thu, 01 Jan 2026 00:59:59 GMT"),
        EMPTY[0],
        EMPTY[1],
    ];
    for headers in [ZERO, PAST] {
        let inner = ScriptedService::new([Headers(429, headers), Status(200)]);
        RetryLayer::new().layer(inner.clone()).oneshot(get(URI)).await.unwrap();
        let seen = inner.seen();
        let waited = seen[1].at - seen[0].at;
        assert!((secs(30)..secs(32)).contains(&waited), "{headers:?}: {waited:?}");
    }
}
