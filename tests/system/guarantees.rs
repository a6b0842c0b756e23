//! Contains one test for each of the README's ten guarantees. The tests run whole preset stacks on tokio's paused
//! clock.

use crate::support::capture;
use std::{
    collections::HashSet,
    error::Error as StdError,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{BoxError, ServiceExt, util::BoxCloneSyncService};
use tower_layer::Layer;
use tower_outbound::{
    ApiKey, Body, Error, Quota, Report,
    auth::{FreshKey, RefreshingKey},
    body::{IdleBody, ReplayBody},
    call::{Outcome, StopReason},
    limit::InFlightBody,
    preset,
    retry::{IdempotencyKey, RetryLayer, RetryRejected},
    stack::StackBuilder,
    test_util::{ScriptedResponse, ScriptedService, Seen},
};

const KEY: &str = "s3cret-k3y";
const RATES_URL: &str = "https://rates.example.com/v1/resources";
const REALTIME_URL: &str = "https://push.example.com/";

type Stack = BoxCloneSyncService<Request<Full<Bytes>>, Response<IdleBody<InFlightBody<Body>>>, Error>;

/// Builds the stack over a service that responds as scripted and records each request.
fn stack(builder: &StackBuilder, service: ScriptedService) -> (Stack, ScriptedService) {
    (BoxCloneSyncService::new(builder.layer().unwrap().layer(service.clone())), service)
}

/// Builds the stack over a service that returns these responses in order, and repeats the last one.
fn scripted<const N: usize>(
    builder: &StackBuilder,
    responses: [ScriptedResponse; N],
) -> (Stack, ScriptedService) {
    stack(builder, ScriptedService::new(responses))
}

fn rates() -> StackBuilder {
    preset::currency_rates("https://rates.example.com").unwrap().with_api_key(ApiKey::new(KEY).unwrap())
}

fn realtime() -> StackBuilder {
    preset::realtime_messaging("https://push.example.com").unwrap().with_api_key(ApiKey::new(KEY).unwrap())
}

fn request(method: Method, url: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(url).body(Full::from(body)).unwrap()
}

fn get(url: &str) -> Request<Full<Bytes>> {
    request(Method::GET, url, "")
}

fn status(status: u16) -> ScriptedResponse {
    ScriptedResponse::status(status)
}

fn retry_after(code: u16, seconds: &str) -> ScriptedResponse {
    status(code).with_header("retry-after", seconds)
}

fn bodies(service: &ScriptedService) -> Vec<Bytes> {
    service.seen().into_iter().map(|seen| seen.body.unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn guarantee_1_no_window_exceeds_its_quota() {
    let builder = rates().with_total_timeout(Duration::from_secs(600));
    let (service, received) = scripted(&builder, [status(200)]);
    let start = Instant::now();
    let calls: Vec<_> = (0..350).map(|_| tokio::spawn(service.clone().oneshot(get(RATES_URL)))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(received.calls(), 350);
    received.arrivals().assert_within(Quota::per_minute(100).unwrap());
    // The burst has 10 permits, and a gap of the same length follows it. The limiter grants 100 permits per 61 s.
    let expected = Duration::from_secs_f64(349.0 * 61.0 / 100.0);
    assert!(start.elapsed() < expected + Duration::from_millis(10), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn guarantee_2_queue_is_first_in_first_out() {
    let builder = rates().with_total_timeout(Duration::from_secs(3600));
    let (service, received) = scripted(&builder, [status(200)]);
    let mut calls = Vec::new();
    for number in 0..500 {
        let url = format!("{RATES_URL}?{number}");
        calls.push(tokio::spawn(service.clone().oneshot(get(&url))));
        // A new call starts every 20 ms while earlier calls are queued.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let order: Vec<_> =
        received.seen().iter().map(|seen| seen.head.uri.query().unwrap().to_owned()).collect();
    assert_eq!(order, (0..500).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn guarantee_3_dropped_call_spends_no_permit() {
    let quota = Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(1).unwrap().without_margin();
    let (service, received) = scripted(&rates().with_quota(quota), [status(200)]);
    let start = Instant::now();
    service.clone().oneshot(get(RATES_URL)).await.unwrap();

    // Nine calls are queued, and the limiter grants one permit per second. The test drops the first, the fifth and the
    // last call.
    let calls: Vec<_> = (0..9).map(|_| tokio::spawn(service.clone().oneshot(get(RATES_URL)))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for dropped in [0, 4, 8] {
        calls[dropped].abort();
    }
    let mut done = 0;
    for call in calls {
        done += usize::from(call.await.is_ok_and(|result| result.is_ok()));
    }
    assert_eq!((done, received.calls()), (6, 7), "a dropped call must not reach the inner service");
    // The six remaining calls take six seconds, because the dropped calls spent no permits.
    assert!(start.elapsed() < Duration::from_millis(6_020), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn guarantee_4_no_attempt_starts_before_a_requested_delay_ends() {
    let (service, received) = scripted(&realtime(), [retry_after(429, "7"), status(200)]);
    let first = tokio::spawn(service.clone().oneshot(get(REALTIME_URL)));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let others: Vec<_> = (0..20).map(|_| tokio::spawn(service.clone().oneshot(get(REALTIME_URL)))).collect();
    for call in others.into_iter().chain([first]) {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let arrivals: Vec<_> = received.seen().iter().map(|seen| seen.at).collect();
    assert_eq!(arrivals.len(), 22);
    for at in &arrivals[1..] {
        assert!(
            *at - arrivals[0] >= Duration::from_secs(7),
            "the server requested a pause of 7 s, but an attempt arrived after {:?}",
            *at - arrivals[0]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_ignores_the_retry_after_header_of_a_foreign_origin() {
    let (service, received) = scripted(&realtime(), [retry_after(503, "3600"), status(200)]);
    let foreign = service.clone().oneshot(get("https://evil.test/")).await.unwrap();
    assert_eq!(foreign.status(), 503);
    let start = Instant::now();
    service.oneshot(get(REALTIME_URL)).await.unwrap();
    assert_eq!((received.calls(), start.elapsed()), (2, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn guarantee_5_only_idempotent_requests_may_be_processed_twice() {
    let reset = ScriptedResponse::io_error(io::ErrorKind::ConnectionReset);
    for (name, failure) in [("503", status(503)), ("reset", reset)] {
        for method in [Method::POST, Method::PATCH] {
            let (service, received) = scripted(&realtime(), [failure.clone()]);
            let result = service.oneshot(request(method.clone(), REALTIME_URL, "pay")).await;
            let report = match &result {
                Ok(response) => response.extensions().get::<Report>(),
                Err(error) => error.report(),
            };
            assert_eq!(report.unwrap().stop_reason(), Some(StopReason::NotIdempotent), "{method} {name}");
            assert_eq!(received.calls(), 1, "{method} {name}");
        }
        let (service, received) = scripted(&realtime(), [failure.clone()]);
        let _ = service.oneshot(request(Method::PUT, REALTIME_URL, "same")).await;
        assert_eq!(received.calls(), 3, "PUT {name}");
        assert_eq!(bodies(&received), ["same"; 3]);
    }
    // A custom `retry_if` cannot make a POST retryable. The stack retries a POST only if the server honours
    // idempotency keys.
    let retry_all = RetryLayer::new().retry_if(|_, _| true);
    let (service, received) = scripted(&realtime().with_retry(retry_all), [status(503)]);
    service.oneshot(request(Method::POST, REALTIME_URL, "pay")).await.unwrap();
    assert_eq!(received.calls(), 1);
    let honoured = RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare());
    let (service, received) = scripted(&realtime().with_retry(honoured), [status(503)]);
    service.oneshot(request(Method::POST, REALTIME_URL, "pay")).await.unwrap();
    assert_eq!(received.calls(), 3);

    // A 401 means that the server did not process the request. The stack resends the request once, with a new key.
    let rotating = || {
        let number = AtomicUsize::new(0);
        realtime().with_keys(RefreshingKey::new(move || {
            let key = ApiKey::new(format!("{KEY}-{}", number.fetch_add(1, Ordering::Relaxed)));
            async { Ok::<_, BoxError>(FreshKey::new(key?)) }
        }))
    };
    for second in [200, 401, 503] {
        let (service, received) = scripted(&rotating(), [status(401), status(second)]);
        let response = service.oneshot(request(Method::POST, REALTIME_URL, "pay")).await.unwrap();
        assert_eq!((response.status().as_u16(), received.calls()), (second, 2));
        assert_eq!(bodies(&received), ["pay"; 2]);
    }
    let (service, received) = scripted(&realtime(), [status(401)]);
    service.oneshot(request(Method::POST, REALTIME_URL, "pay")).await.unwrap();
    assert_eq!(received.calls(), 1, "the stack must not resend a request with the same key");

    // A 429 and a 529 state that the server did not process the request. The stack retries even a POST, unless the
    // retry layer is restricted to idempotent requests.
    for code in [429, 529] {
        for (requests, sent) in [(RetryRejected::AnyMethod, 2), (RetryRejected::Idempotent, 1)] {
            let retry = RetryLayer::new().with_retry_rejected(requests);
            let responses = [retry_after(code, "7"), status(200)];
            let (service, received) = scripted(&realtime().with_retry(retry), responses);
            let start = Instant::now();
            let response = service.oneshot(request(Method::POST, REALTIME_URL, "pay")).await.unwrap();
            let expected = if sent == 2 { 200 } else { code };
            assert_eq!((response.status().as_u16(), received.calls()), (expected, sent), "{requests:?}");
            assert!(sent == 1 || start.elapsed() >= Duration::from_secs(7));
            assert_eq!(bodies(&received), vec!["pay"; sent]);
        }
    }

    // A refused connection delivers nothing to the server, so the stack retries even a POST.
    let (service, received) = scripted(&realtime(), [ScriptedResponse::refused(), status(200)]);
    assert_eq!(service.oneshot(request(Method::POST, REALTIME_URL, "pay")).await.unwrap().status(), 200);
    assert_eq!(received.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn guarantee_6_key_goes_only_to_its_own_origin() {
    let (log, _guard) = capture::Capture::all();

    // The stack sends the key only to the base URL's origin, in the header or in the query.
    let has_key = |seen: &Seen| {
        seen.header("authorization").is_some() || seen.head.uri.query().is_some_and(|q| q.contains(KEY))
    };
    let mut output = String::new();
    for builder in [rates(), rates().with_key_placement("query:access_key".parse().unwrap())] {
        for (url, expected) in [
            ("https://rates.example.com/v1/resources", true),
            ("https://RATES.example.com:443/v1", true),
            ("http://rates.example.com/v1", false),
            ("https://rates.example.com:8443/v1", false),
            ("https://evil.test/v1", false),
        ] {
            let (service, received) = scripted(&builder, [status(200)]);
            let response = service.oneshot(get(url)).await.unwrap();
            assert_eq!(has_key(&received.seen()[0]), expected, "{url}");
            output += &format!("{response:?}");
        }

        // `Debug` and `Display` of responses, errors and timeouts do not show the key.
        for failure in [
            status(401),
            retry_after(503, "1"),
            ScriptedResponse::io_error(io::ErrorKind::ConnectionReset),
            ScriptedResponse::never(),
        ] {
            let (service, _) = scripted(&builder, [failure]);
            match service.oneshot(get(RATES_URL)).await {
                Ok(response) => output += &format!("{response:?}"),
                Err(error) => {
                    output += &format!("{error} {error:?}");
                    let mut cause = error.source();
                    while let Some(error) = cause {
                        output += &format!("{error} {error:?}");
                        cause = error.source();
                    }
                }
            }
        }
        output += &format!("{builder:?} {:?}", builder.layer().unwrap());
        #[cfg(feature = "client")]
        {
            output += &format!("{:?}", builder.client());
        }
    }
    let log = log.text();
    assert!(log.contains("call failed") && log.contains("attempt ended"), "the test did not capture the log");
    assert!(!log.contains(KEY), "{log}");
    assert!(!output.contains(KEY), "{output}");

    let plaintext = preset::currency_rates("http://rates.example.com").unwrap();
    let error = plaintext.with_api_key(ApiKey::new(KEY).unwrap()).layer().unwrap_err();
    assert!(error.to_string().starts_with("invalid origin `http://rates.example.com:80`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn guarantee_7_call_ends_by_its_deadline() {
    // Of 100 calls, 10 spend the burst, and 49 get a permit before their deadline. A later call fails immediately.
    let builder = rates().with_total_timeout(Duration::from_secs(30));
    let (service, received) = scripted(&builder, [status(200)]);
    let calls: Vec<_> = (0..100).map(|_| tokio::spawn(service.clone().oneshot(get(RATES_URL)))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    let error = service.oneshot(get(RATES_URL)).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO, "the call did not fail immediately");
    assert!(error.is_rate_limited());
    assert!(error.retry_after().unwrap() > Duration::from_secs(30), "{:?}", error.retry_after());
    let mut done = 0;
    for call in calls {
        done += usize::from(call.await.unwrap().is_ok());
    }
    assert_eq!(done, received.calls());
    assert_eq!(done, 10 + 49, "expected a burst of 10 permits, then one permit every 610 ms for 30 s");

    // The service never responds. The call fails at its deadline, and the error's report lists the attempts.
    let builder = realtime().with_total_timeout(Duration::from_secs(25));
    let (service, received) = scripted(&builder, [ScriptedResponse::never()]);
    let start = Instant::now();
    let error = service.oneshot(get(REALTIME_URL)).await.unwrap_err();
    assert!(error.is_deadline(), "{error:?}");
    assert!(start.elapsed() <= Duration::from_millis(25_001), "{:?}", start.elapsed());
    let attempts = error.report().unwrap().attempts();
    assert_eq!((attempts.len(), received.calls()), (3, 3));
    assert_eq!(attempts[0].outcome, Some(Outcome::Timeout));

    // If a requested delay ends after the deadline, the call returns the response immediately.
    let (service, received) = scripted(&builder, [retry_after(503, "40")]);
    let start = Instant::now();
    let response = service.oneshot(get(REALTIME_URL)).await.unwrap();
    assert_eq!((response.status().as_u16(), start.elapsed(), received.calls()), (503, Duration::ZERO, 1));
    assert_eq!(response.headers()["retry-after"], "40");
    let report = Report::from_response(&response).unwrap();
    assert_eq!(report.stop_reason(), Some(StopReason::Deadline));
    let needed = report.retry_after().expect("the report has the requested delay");
    assert!(needed >= Duration::from_secs(40) && needed < Duration::from_secs(41), "{needed:?}");

    // If a backoff delay ends after the deadline, the call fails immediately.
    let builder = realtime().with_total_timeout(Duration::from_millis(10));
    let reset = ScriptedResponse::io_error(io::ErrorKind::ConnectionReset);
    let (service, _) = scripted(&builder.with_attempt_timeout(Duration::from_millis(5)), [reset]);
    let error = service.oneshot(get(REALTIME_URL)).await.unwrap_err();
    let needed = error.retry_after().expect("the error has the backoff delay");
    assert!((50..=100).contains(&needed.as_millis()), "{needed:?}");
}

#[tokio::test(start_paused = true)]
async fn guarantee_8_queue_and_replayed_bodies_and_drained_bodies_are_bounded() {
    // A full queue rejects the next call immediately.
    let builder = rates().with_limit(|limit| limit.with_max_queue(5));
    let (service, _) = scripted(&builder, [status(200)]);
    let calls: Vec<_> = (0..15).map(|_| tokio::spawn(service.clone().oneshot(get(RATES_URL)))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let error = service.oneshot(get(RATES_URL)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.to_string().contains("queue is full"));
    for call in calls {
        call.await.unwrap().unwrap();
    }

    // A request is not retried if its body exceeds the replay limit.
    let builder = realtime().with_retry(RetryLayer::new().with_replay_limit(3));
    let (service, received) = scripted(&builder, [status(503)]);
    let response = service.oneshot(request(Method::PUT, REALTIME_URL, "long")).await.unwrap();
    assert_eq!(response.extensions().get::<Report>().unwrap().stop_reason(), Some(StopReason::NotReplayable));
    assert_eq!(received.calls(), 1);

    // Before a retry, the stack reads at most 64 KiB of the failed response's body.
    let read = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&read);
    let failed = Mutex::new(Some(move || {
        let endless = futures_util::stream::repeat_with(move || {
            counter.fetch_add(1024, Ordering::Relaxed);
            Ok::<_, io::Error>(http_body::Frame::data(Bytes::from_static(&[0; 1024])))
        });
        Body::new(http_body_util::StreamBody::new(endless))
    }));
    let service = tower::service_fn(|_: Request<ReplayBody<Full<Bytes>>>| {
        let failed = failed.lock().unwrap().take();
        let status = if failed.is_some() { 503 } else { 200 };
        let response =
            Response::builder().status(status).body(failed.map_or_else(Body::empty, |body| body()));
        std::future::ready(response)
    });
    let response = realtime().layer().unwrap().layer(service).oneshot(get(REALTIME_URL)).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(read.load(Ordering::Relaxed) <= 66 * 1024, "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn guarantee_9_report_and_spans_show_every_attempt() {
    let responses = [(503, "srv-0"), (503, "srv-1"), (200, "srv-2")]
        .map(|(code, id)| status(code).with_header("request-id", id));
    let (service, received) = scripted(&realtime(), responses);
    let response = service.oneshot(get(REALTIME_URL)).await.unwrap();
    let report = response.extensions().get::<Report>().unwrap();
    let id = |seen: &Seen| seen.header("x-request-id").unwrap().to_owned();
    let ids: HashSet<_> = received.seen().iter().map(id).collect();
    assert_eq!(ids.len(), 1, "all attempts of a call must share one request id");
    assert!(ids.contains(report.request_id().unwrap().to_str().unwrap()));
    assert_eq!(report.server_request_id().unwrap(), "srv-2");
    let attempts: Vec<_> =
        report.attempts().iter().map(|a| (a.number, a.outcome.unwrap(), a.delay.is_some())).collect();
    let responded = |status: u16| Outcome::Response(status.try_into().unwrap());
    assert_eq!(attempts, [(1, responded(503), true), (2, responded(503), true), (3, responded(200), false)]);
    assert_eq!(report.stop_reason(), Some(StopReason::Success));

    let (service, received) = scripted(&realtime(), [ScriptedResponse::io_error(io::ErrorKind::BrokenPipe)]);
    let error = service.oneshot(get(REALTIME_URL)).await.unwrap_err();
    let report = error.report().unwrap();
    assert_eq!(error.request_id().unwrap(), id(&received.seen()[0]).as_str());
    assert_eq!(report.attempt_count(), 3);
    assert!(report.attempts().iter().all(|attempt| attempt.outcome == Some(Outcome::Failed)));
    assert_eq!(report.stop_reason(), Some(StopReason::Exhausted));
    assert!(error.source().unwrap().downcast_ref::<io::Error>().is_some());

    // Each attempt has a span inside the call's span. Log events of the inner service are in the attempt's span.
    let (log, _guard) = capture::Capture::all();
    let logging = ScriptedService::from_fn(|seen| {
        tracing::info!("client {}", seen.number - 1);
        status(503)
    });
    let (service, _) = stack(&realtime(), logging);
    service.oneshot(get(REALTIME_URL)).await.unwrap();
    let events: Vec<_> =
        log.lines().into_iter().filter(|event| event.message.starts_with("client ")).collect();
    assert_eq!(events.len(), 3);
    for (number, event) in events.iter().enumerate() {
        let resent = log.span(event.span.unwrap()).fields.get("http.request.resend_count").cloned();
        let expected = (number > 0).then(|| number.to_string());
        assert_eq!((event.message.clone(), resent), (format!("client {number}"), expected), "{event:?}");
        assert_eq!(event.scope, ["call", "attempt"]);
    }
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the test measures real time")]
async fn guarantee_10_whole_stack_runs_on_the_paused_clock() {
    let real = std::time::Instant::now();
    // The limiter spreads the calls over one hour of virtual time.
    let builder = rates().with_total_timeout(Duration::from_secs(7200));
    let (service, _) = scripted(&builder, [status(200)]);
    let start = Instant::now();
    let calls: Vec<_> = (0..5321).map(|_| tokio::spawn(service.clone().oneshot(get(RATES_URL)))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(
        start.elapsed().as_secs(),
        5320 * 61 / 100,
        "expected 5320 intervals of 61/100 s, because a later gap compensates for the burst"
    );

    // The `Retry-After` date of the response is one minute after the `Date` header.
    let builder = realtime().with_total_timeout(Duration::from_secs(300));
    let later = retry_after(503, "Sunday, 06-Nov-94 08:50:37 GMT");
    let later = later.with_header("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    let (service, received) = scripted(&builder, [later, status(200)]);
    assert_eq!(service.oneshot(get(REALTIME_URL)).await.unwrap().status(), 200);
    let pause = received.seen()[1].at - received.seen()[0].at;
    assert!((60_000..60_100).contains(&pause.as_millis()), "{pause:?}");

    // The virtual hour takes less than 20 s of real time.
    assert!(real.elapsed() < Duration::from_secs(20), "{:?}", real.elapsed());
}
