//! Tests the delay that the server requests before a retry.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderValue, Request, Response};
use tokio::time::Instant;
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_outbound::{
    ExponentialBackoff, body::ReplayBody, call::StopReason::RequestedDelayTooLong, retry::RetryLayer,
    timeout::TotalTimeoutLayer,
};

use super::{
    DATE, HeaderPairs, URI, report,
    support::{Content, Scripted::*, ScriptedService, get, millis, secs},
};

/// Returns the time from a response with `status` and `headers` to the retry.
async fn delay_before_retry(headers: HeaderPairs, status: u16, seed: u64) -> Duration {
    let inner = ScriptedService::new([Headers(status, headers), Status(200)]);
    let service = RetryLayer::new().with_seed(seed).layer(inner.clone());
    service.oneshot(get(URI)).await.unwrap();
    let seen = inner.seen();
    seen[1].at - seen[0].at
}

#[tokio::test(start_paused = true)]
async fn retry_layer_never_retries_before_the_requested_delay_has_passed() {
    /// The requested delay in milliseconds, and the headers that request the delay.
    type Case = (u64, HeaderPairs);
    let cases: [Case; 5] = [
        (1_000, &[("retry-after", "1")]),
        (7_000, &[("retry-after", "7")]),
        (120_000, &[("retry-after", "120")]),
        (1_234, &[("retry-after-ms", "1234")]),
        (60_000, &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT")]),
    ];
    for (requested, headers) in cases {
        for seed in 0..200 {
            // The ticks of tokio's timer are 1 ms apart. Each call starts at a different point within a tick.
            tokio::time::advance(Duration::from_micros(seed * 37 % 1_000)).await;
            for status in [429, 503] {
                let waited = delay_before_retry(headers, status, seed).await;
                assert!(
                    waited >= millis(requested),
                    "{status}: the retry started after {waited:?} instead of {requested} ms"
                );
            }
        }
    }
}

/// The backoff already contains jitter, so only a requested delay longer than the backoff gets additional jitter.
#[tokio::test(start_paused = true)]
async fn requested_delay_gets_jitter_only_if_longer_than_the_backoff() {
    for (requested, within_backoff) in [("2", true), ("1", true), ("3", false)] {
        let mut waits = Vec::new();
        for seed in 0..20 {
            let inner = ScriptedService::new([RetryAfter(503, requested), Status(200)]);
            let retry = RetryLayer::new().with_seed(seed).with_custom_backoff(|| std::iter::repeat(secs(2)));
            retry.layer(inner.clone()).oneshot(get(URI)).await.unwrap();
            let seen = inner.seen();
            waits.push(seen[1].at - seen[0].at);
        }
        let exact = waits.iter().all(|wait| *wait <= millis(2_002));
        assert_eq!(exact, within_backoff, "requested delay of {requested} s: the calls waited {waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_never_shortens_a_requested_delay() {
    let mut waits = Vec::new();
    for seed in 0..200 {
        waits.push(delay_before_retry(&[("retry-after", "3")], 429, seed).await);
    }
    let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!((secs(3)..millis(3_020)).contains(least), "{least:?}");
    assert!((millis(3_480)..millis(3_502)).contains(most), "{most:?}");
}

#[tokio::test(start_paused = true)]
async fn no_setting_of_the_layer_shortens_a_requested_delay() {
    let short = ExponentialBackoff::new(millis(1), millis(2)).unwrap();
    for layer in [
        RetryLayer::new().with_backoff(short).with_throttled_backoff(short),
        RetryLayer::new().with_max_retry_after(secs(5)),
        RetryLayer::new().with_custom_backoff(|| [secs(1)].into_iter()),
    ] {
        for status in [503, 429] {
            let response = RetryAfter(status, "5");
            // The call waits for the whole requested delay if that delay ends before the deadline. Otherwise, the call
            // stops.
            for (total, attempts) in [(secs(4), 1), (secs(5), 1), (secs(9), 2)] {
                let inner = ScriptedService::new([response, Status(200)]);
                let service = TotalTimeoutLayer::new(total).unwrap().layer(layer.layer(inner.clone()));
                let response = service.oneshot(get(URI)).await.unwrap();
                let seen = inner.seen();
                assert_eq!(
                    (seen.len(), report(&response).attempts()[0].requested_delay),
                    (attempts, Some(secs(5)))
                );
                assert!(seen.windows(2).all(|pair| pair[1].at - pair[0].at >= secs(5)), "{status}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn call_returns_the_response_immediately_if_the_requested_delay_is_too_long() {
    let start = Instant::now();
    let inner = ScriptedService::new([Headers(429, &[("retry-after", "3600"), ("x-why", "quota")])]);
    let response = RetryLayer::new().layer(inner).oneshot(get(URI)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let report = report(&response).clone();
    assert_eq!(report.stop_reason(), Some(RequestedDelayTooLong));
    assert_eq!(report.attempts()[0].requested_delay, Some(secs(3600)));
    assert_eq!((response.status().as_u16(), &response.headers()["x-why"]), (429, &"quota".parse().unwrap()));
    assert_eq!(response.into_body().bytes_up_to(64).await.unwrap(), "answer");
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
async fn requested_delay_is_read_from_the_rate_limit_headers_of_a_429() {
    let throttled = |rate_limit: &'static str| {
        let service = tower::service_fn(move |_: Request<ReplayBody<Content>>| async move {
            let response = Response::builder().status(429).header("ratelimit", rate_limit);
            Ok::<_, BoxError>(response.body(Content::default()).unwrap())
        });
        RetryLayer::new().with_max_attempts(2).unwrap().layer(service).oneshot(get(URI))
    };
    let response = throttled("\"d\";r=0;t=30").await.unwrap();
    let attempts = report(&response).attempts();
    assert!(attempts[1].started >= secs(30), "{attempts:?}");
    assert_eq!(attempts[0].requested_delay, Some(secs(30)));
    let response = throttled("\"d\";r=0;t=300").await.unwrap();
    assert_eq!(report(&response).stop_reason(), Some(RequestedDelayTooLong));
    assert_eq!(report(&response).retry_after(), Some(secs(300)));
    let response = throttled("\"d\";r=1;t=300").await.unwrap();
    assert_eq!(
        report(&response).attempts()[0].requested_delay,
        None,
        "no delay should be requested while a permit remains"
    );
}

#[tokio::test(start_paused = true)]
async fn retry_after_date_is_compared_with_wall_clock_if_date_header_is_missing() {
    #[allow(
        clippy::disallowed_methods,
        reason = "the layer compares the `retry-after` date with the wall clock"
    )]
    let now = SystemTime::now();
    tokio::time::advance(secs(3_600)).await;
    let until = HeaderValue::try_from(http_date(now + secs(3_600 + 30))).unwrap();
    let calls = Rc::new(Cell::new(0));
    let service = service_fn(|_: Request<ReplayBody<Content>>| {
        let (until, status) = (until.clone(), if calls.replace(calls.get() + 1) == 0 { 503 } else { 200 });
        async move { Response::builder().status(status).header("retry-after", until).body(Content::default()) }
    });
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    let requested = report(&response).attempts()[0].requested_delay.unwrap();
    // A `retry-after` date has whole seconds, and the wall clock runs on while tokio's clock is paused.
    assert!((secs(25)..=secs(30)).contains(&requested), "{requested:?}");
}

/// Formats a time between 1970 and 2099 as an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(days % 7) as usize];
    let mut year = 1970;
    let leap = |year| u64::from(year % 4 == 0);
    while days >= 365 + leap(year) {
        days -= 365 + leap(year);
        year += 1;
    }
    let mut left = days;
    for (name, length) in [
        ("Jan", 31),
        ("Feb", 28 + leap(year)),
        ("Mar", 31),
        ("Apr", 30),
        ("May", 31),
        ("Jun", 30),
        ("Jul", 31),
        ("Aug", 31),
        ("Sep", 30),
        ("Oct", 31),
        ("Nov", 30),
        ("Dec", 31),
    ] {
        if left < length {
            let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
            return format!("{weekday}, {:02} {name} {year} {hour:02}:{minute:02}:{second:02} GMT", left + 1);
        }
        left -= length;
    }
    panic!("the day is after the last month of the year");
}
