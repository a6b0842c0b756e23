//! No attempt starts before the delay that the server requested has passed.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderValue, Request, Response};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    ExponentialBackoff, body::ReplayBody, call::StopReason::RequestedDelayTooLong, retry::RetryLayer,
    timeout::TimeoutLayer,
};

use super::{
    DATE, Headers, URI,
    drained::{Kind, Recorded, failing_first},
    report,
    support::{Content, Scripted::*, ScriptedService, get, millis, secs},
};

/// Returns the time from the failed response to the next attempt.
async fn waited_for(headers: Headers, status: u16, seed: u64) -> Duration {
    let probe = ScriptedService::new([Headers(status, headers), Status(200)]);
    let service = RetryLayer::new().with_seed(seed).layer(probe.clone());
    service.oneshot(get(URI)).await.unwrap();
    let seen = probe.seen();
    seen[1].at - seen[0].at
}

#[tokio::test(start_paused = true)]
async fn no_attempt_starts_before_the_requested_delay_with_any_seed() {
    type Asked = (u64, Headers);
    let asks: [Asked; 5] = [
        (1_000, &[("retry-after", "1")]),
        (7_000, &[("retry-after", "7")]),
        (120_000, &[("retry-after", "120")]),
        (1_234, &[("retry-after-ms", "1234")]),
        (60_000, &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT")]),
    ];
    for (asked, headers) in asks {
        for seed in 0..200 {
            // The timer ticks in milliseconds, so the call starts anywhere within a tick.
            tokio::time::advance(Duration::from_micros(seed * 37 % 1_000)).await;
            for status in [429, 503] {
                let waited = waited_for(headers, status, seed).await;
                assert!(
                    waited >= millis(asked),
                    "{status}: {waited:?} after a requested delay of {asked} ms"
                );
            }
        }
    }
}

/// The backoff already contains jitter.
#[tokio::test(start_paused = true)]
async fn adds_no_jitter_to_a_requested_delay_within_the_backoff() {
    for (asked, exact) in [("2", true), ("1", true), ("3", false)] {
        let mut waits = Vec::new();
        for seed in 0..20 {
            let probe = ScriptedService::new([RetryAfter(503, asked), Status(200)]);
            let retry = RetryLayer::new().with_seed(seed).with_custom_backoff(|| std::iter::repeat(secs(2)));
            retry.layer(probe.clone()).oneshot(get(URI)).await.unwrap();
            let seen = probe.seen();
            waits.push(seen[1].at - seen[0].at);
        }
        let short = waits.iter().all(|wait| *wait <= millis(2_002));
        assert_eq!(short, exact, "requested {asked} s: {waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_only_adds_to_a_requested_delay() {
    let mut waits = Vec::new();
    for seed in 0..200 {
        waits.push(waited_for(&[("retry-after", "3")], 429, seed).await);
    }
    let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!((secs(3)..millis(3_020)).contains(least), "{least:?}");
    assert!((millis(3_480)..millis(3_502)).contains(most), "{most:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_while_drained_delays_no_attempt() {
    let bodies = Recorded::new(Kind::Stalled);
    let starts = Rc::new(Cell::new(Vec::new()));
    let service = failing_first(&bodies, &[("retry-after", "3")], &starts);
    RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    let starts = starts.take();
    let waited = starts[1] - starts[0];
    assert!((secs(3)..millis(3_052)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn reads_a_date_relative_to_the_wall_clock_if_the_response_has_no_date() {
    #[allow(clippy::disallowed_methods, reason = "the wall clock is what the test is about")]
    let now = SystemTime::now();
    tokio::time::advance(secs(3_600)).await;
    let until = HeaderValue::try_from(http_date(now + secs(3_600 + 30))).unwrap();
    let calls = Rc::new(Cell::new(0));
    let service = service_fn(|_: Request<ReplayBody<Content>>| {
        let (until, status) = (until.clone(), if calls.replace(calls.get() + 1) == 0 { 503 } else { 200 });
        async move { Response::builder().status(status).header("retry-after", until).body(Content::default()) }
    });
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    let asked = report(&response).attempts()[0].requested_delay.unwrap();
    // A date has no fraction of a second, and the machine's clock continues to run.
    assert!((secs(25)..=secs(30)).contains(&asked), "{asked:?}");
}

/// Formats a time of this century, as in `Sun, 06 Nov 1994 08:49:37 GMT`.
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
    panic!("a year has twelve months");
}

#[tokio::test(start_paused = true)]
async fn waits_for_years_if_the_settings_allow_it() {
    // Longer than tokio's timer wheel spans, which is 2.2 years.
    let probe = ScriptedService::new([Headers(503, &[("retry-after", "100000000")]), Status(200)]);
    let service = RetryLayer::new().with_max_retry_after(Duration::MAX).layer(probe.clone());
    service.oneshot(get(URI)).await.unwrap();
    let seen = probe.seen();
    let waited = seen[1].at - seen[0].at;
    assert!((secs(100_000_000)..secs(100_000_001)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn no_deadline_cap_or_backoff_shortens_a_requested_delay() {
    let short = ExponentialBackoff::new(millis(1), millis(2)).unwrap();
    for layer in [
        RetryLayer::new().with_backoff(short).with_throttled_backoff(short),
        RetryLayer::new().with_max_retry_after(secs(5)),
        RetryLayer::new().with_custom_backoff(|| [secs(1)].into_iter()),
    ] {
        for status in [503, 429] {
            let answer = RetryAfter(status, "5");
            // The call waits for the whole delay if the deadline allows it. Otherwise it makes no further attempt.
            for (total, attempts) in [(secs(4), 1), (secs(5), 1), (secs(9), 2)] {
                let probe = ScriptedService::new([answer, Status(200)]);
                let service = TimeoutLayer::total(total).unwrap().layer(layer.layer(probe.clone()));
                let response = service.oneshot(get(URI)).await.unwrap();
                let seen = probe.seen();
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
async fn returns_the_response_at_once_if_the_requested_delay_is_too_long() {
    let start = Instant::now();
    let probe = ScriptedService::new([Headers(429, &[("retry-after", "3600"), ("x-why", "quota")])]);
    let response = RetryLayer::new().layer(probe).oneshot(get(URI)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let report = report(&response).clone();
    assert_eq!(report.stop_reason(), Some(RequestedDelayTooLong));
    assert_eq!(report.attempts()[0].requested_delay, Some(secs(3600)));
    assert_eq!((response.status().as_u16(), &response.headers()["x-why"]), (429, &"quota".parse().unwrap()));
    assert_eq!(response.into_body().collect(64).await.unwrap(), "answer");
}
