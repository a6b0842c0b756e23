//! Custom rules, and the idempotency key.

use std::{
    collections::HashSet,
    io::ErrorKind::ConnectionReset,
    sync::{Arc, Mutex},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    ApiKey, ExponentialBackoff, Jitter, Quota, Report,
    call::{CallContext, RequestHead, StopReason::*},
    limit::{RateLimitLayer, TokenBucket},
    preset,
    request_id::RequestIdLayer,
    retry::{AttemptResult, IdempotencyKey, RetryDecision, RetryLayer, RetryOverride},
    timeout::TimeoutLayer,
};

use super::{
    URI, report, rule,
    support::{Content, Scripted::*, ScriptedService, get, millis, request, secs},
};

const NAME: &str = "idempotency-key";

fn keyed() -> RetryLayer {
    RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare())
}

/// Returns the value of this header on each attempt of a call. Each attempt has at most one.
async fn sent(layer: &RetryLayer, name: &str, request: Request<Content>) -> Vec<Option<HeaderValue>> {
    let probe = ScriptedService::new([Status(503), Io(ConnectionReset), Status(200)]);
    let _ = layer.layer(probe.clone()).oneshot(request).await;
    let one = |headers: &HeaderMap| {
        assert!(headers.get_all(name).iter().count() <= 1, "{headers:?}");
        headers.get(name).cloned()
    };
    probe.seen().iter().map(|seen| one(&seen.head.headers)).collect()
}

/// A UUID in its usual form.
fn is_uuid(text: &str) -> bool {
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

#[tokio::test(start_paused = true)]
async fn all_attempts_of_a_call_have_the_same_key_and_the_next_call_another() {
    let layer = keyed();
    let mut keys = HashSet::new();
    for method in ["POST", "POST", "PATCH", "PURGE"] {
        let sent = sent(&layer, NAME, request(method, URI)).await;
        assert_eq!(sent.len(), 3, "{method}");
        let key = sent[0].clone().unwrap();
        assert!(is_uuid(key.to_str().unwrap()), "{key:?}");
        assert!(sent.iter().all(|other| other.as_ref() == Some(&key)), "{sent:?}");
        assert!(keys.insert(key), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_the_key_bare_or_quoted_in_the_chosen_header() {
    let token = HeaderName::from_static("x-request-token");
    for (key, name, quoted) in [
        (IdempotencyKey::bare(), NAME, false),
        (IdempotencyKey::quoted(), NAME, true),
        (IdempotencyKey::bare().with_header(token.clone()), "x-request-token", false),
        (IdempotencyKey::quoted().with_header(token), "x-request-token", true),
    ] {
        let layer = RetryLayer::new().with_honoured_idempotency_key(key.clone());
        let sent = sent(&layer, name, request("POST", URI)).await;
        let value = sent[0].as_ref().unwrap().to_str().unwrap();
        let within = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        assert_eq!(within.is_some(), quoted, "{key:?}: {value}");
        assert!(is_uuid(within.unwrap_or(value)), "{key:?}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn keeps_the_callers_own_key() {
    for mine in ["mine", "\"quoted\"", "not a uuid at all"] {
        for key in [IdempotencyKey::bare(), IdempotencyKey::quoted()] {
            let mut request = request("POST", URI);
            request.headers_mut().insert(NAME, HeaderValue::from_static(mine));
            let layer = RetryLayer::new().with_honoured_idempotency_key(key);
            assert_eq!(sent(&layer, NAME, request).await, vec![Some(HeaderValue::from_static(mine)); 3]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn does_not_retry_post_with_a_key_that_the_server_does_not_honour() {
    // The caller's key is in another header than the honoured one, or no key is honoured.
    let token = IdempotencyKey::bare().with_header(HeaderName::from_static("x-request-token"));
    let mut with_key = request("POST", URI);
    with_key.headers_mut().insert(NAME, HeaderValue::from_static("mine"));
    assert_eq!(sent(&RetryLayer::new(), NAME, with_key.clone()).await.len(), 1);
    let layer = RetryLayer::new().with_honoured_idempotency_key(token);
    let tokens = sent(&layer, "x-request-token", with_key).await;
    assert!(tokens.len() == 3 && tokens.iter().all(Option::is_some), "{tokens:?}");
}

#[tokio::test(start_paused = true)]
async fn sends_no_key_by_default() {
    let of_a_key = |headers: &HeaderMap| headers.keys().any(|name| name.as_str().contains("idempotency"));
    let probe = ScriptedService::new([Status(503)]);
    RetryLayer::new().layer(probe.clone()).oneshot(request("POST", URI)).await.unwrap();
    RetryLayer::default().layer(probe.clone()).oneshot(request("PATCH", URI)).await.unwrap();
    for make in [preset::currency_rates, preset::email_delivery, preset::realtime_messaging] {
        let preset = || make(URI).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
        let before = probe.calls();
        for method in ["POST", "PATCH"] {
            let service = preset().layer().unwrap().layer(probe.clone());
            let response = service.oneshot(request(method, URI)).await.unwrap();
            assert_eq!(report(&response).stop_reason(), Some(NotIdempotent));
        }
        assert_eq!(probe.calls() - before, 2, "a POST and a PATCH, once each");
        // A preset with a configured key sends it.
        let other = ScriptedService::new([Status(503), Status(200)]);
        let service = preset().with_retry(keyed()).layer().unwrap().layer(other.clone());
        service.oneshot(request("POST", URI)).await.unwrap();
        assert!(other.calls() == 2 && other.seen().iter().all(|seen| of_a_key(&seen.head.headers)));
    }
    assert_eq!(probe.calls(), 2 + 6);
    assert!(!probe.seen().iter().any(|seen| of_a_key(&seen.head.headers)));
}

#[tokio::test(start_paused = true)]
async fn sends_no_key_with_an_idempotent_method() {
    for (method, gets) in [
        ("GET", false),
        ("HEAD", false),
        ("OPTIONS", false),
        ("TRACE", false),
        ("PUT", false),
        ("DELETE", false),
        ("POST", true),
        ("PATCH", true),
    ] {
        let sent = sent(&keyed(), NAME, request(method, URI)).await;
        assert_eq!(sent.len(), 3, "{method}");
        assert!(sent.iter().all(|key| key.is_some() == gets), "{method}: {sent:?}");
    }
    // A POST that the caller declares idempotent gets a key, because the server does not know the declaration.
    let mut request = request("POST", URI);
    request.extensions_mut().insert(RetryOverride::new().with_idempotent());
    assert!(sent(&keyed(), NAME, request).await[0].is_some());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_calls_have_a_thousand_keys() {
    let probe = ScriptedService::new([Status(200)]);
    // Two layers, and clones of their services, at the same paused time.
    let services = [keyed().layer(probe.clone()), keyed().with_seed(1).layer(probe.clone())];
    let calls =
        (0..1_000).map(|number| tokio::spawn(services[number % 2].clone().oneshot(request("POST", URI))));
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    let keys: HashSet<_> = probe.seen().iter().map(|seen| seen.head.headers[NAME].clone()).collect();
    assert_eq!(keys.len(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn retry_if_receives_the_original_request_and_each_result() {
    #[derive(Clone, Debug, PartialEq)]
    struct Mark;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&heard);
    let note = move |request: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        assert_eq!((request.method, request.uri.path()), (&Method::PUT, "/v1"));
        assert_eq!(request.headers["x-mine"], "1");
        assert_eq!(request.extensions.get(), Some(&Mark));
        told.lock().unwrap().push(match (attempt.outcome.status(), attempt.headers, attempt.error) {
            (Some(status), Some(headers), None) => format!("{status} {}", headers.len()),
            (None, None, Some(error)) => format!("{error:#} {:?}", attempt.outcome.delivery()),
            _ => format!("{attempt:?}"),
        });
        false
    };
    let mut request = request("PUT", URI);
    request.headers_mut().insert("x-mine", HeaderValue::from_static("1"));
    request.extensions_mut().insert(Mark);
    let probe = ScriptedService::new([
        Headers(503, &[("x-a", "1"), ("x-b", "2")]),
        Refused,
        Io(ConnectionReset),
        Status(404),
    ]);
    let layer = RetryLayer::new().with_max_attempts(9).unwrap().retry_if(note);
    layer.layer(probe).oneshot(request).await.unwrap();
    assert_eq!(
        *heard.lock().unwrap(),
        [
            "503 Service Unavailable 2",
            "connection refused after 2 attempts: connection refused NotSent",
            "reset by the server after 3 attempts: connection reset MaybeProcessed",
            "404 Not Found 0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_classifier_can_read_the_request() {
    let once = rule(|request, _| (request.uri.path() == "/v1/once").then_some(RetryDecision::NotRetryable));
    let layer = RetryLayer::new().with_classify(once);
    for (path, attempts, ended) in [("/v1/once", 1, NotRetryable), ("/v1", 3, Exhausted)] {
        let uri = format!("https://api.example.com{path}");
        let response = layer.layer(ScriptedService::new([Status(503)])).oneshot(get(&uri)).await.unwrap();
        assert_eq!(
            (report(&response).attempt_count(), report(&response).stop_reason()),
            (attempts, Some(ended))
        );
    }
}

/// The request's extensions contain the call, even if the caller added nothing.
#[tokio::test(start_paused = true)]
async fn retry_if_receives_the_call_of_every_attempt() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&seen);
    let note = move |request: RequestHead<'_>, _: &AttemptResult<'_>| {
        let call = request.extensions.get::<CallContext>();
        noting.lock().unwrap().push(call.is_some_and(|call| call.deadline().is_none()));
        false
    };
    let probe = ScriptedService::new([Status(503), Status(503), Status(200)]);
    RequestIdLayer::new()
        .layer(RetryLayer::new().retry_if(note).layer(probe))
        .oneshot(get(URI))
        .await
        .unwrap();
    assert_eq!(*seen.lock().unwrap(), [true; 3]);
}

#[tokio::test(start_paused = true)]
async fn retry_if_receives_the_report_of_every_error() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&seen);
    let note = move |_: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        if let Some(error) = attempt.error {
            noting.lock().unwrap().push(error.report().map_or(0, Report::attempt_count));
        }
        false
    };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().retry_if(note))
        .layer(TimeoutLayer::per_attempt(secs(1)).unwrap())
        .service(ScriptedService::new([NoResponse, Refused, Status(200)]));
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [1, 2]);
}

/// The wait of a refused attempt appears neither in the next attempt's error nor in the call's.
#[tokio::test(start_paused = true)]
async fn the_wait_of_a_refusal_belongs_to_its_attempt_only() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&seen);
    let every_error = move |_: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        attempt.error.is_some_and(|error| {
            noting.lock().unwrap().push((error.is_rate_limited(), error.retry_after().is_some()));
            true
        })
    };
    let quota = Quota::new(4, secs(4)).and_then(|quota| quota.with_burst(1)).unwrap().without_margin();
    let bucket = TokenBucket::new(quota);
    bucket.try_acquire().unwrap();
    let later = ExponentialBackoff::new(secs(5), secs(5)).unwrap().with_jitter(Jitter::none());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_max_attempts(2).unwrap().with_backoff(later).retry_if(every_error))
        .layer(RateLimitLayer::new(bucket).with_max_wait(millis(1)))
        .service(ScriptedService::new([Refused]));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(*seen.lock().unwrap(), [(true, true), (false, false)]);
    assert_eq!(error.retry_after(), None, "{error}");
}

#[tokio::test(start_paused = true)]
async fn debug_of_results_and_rules_shows_no_header() {
    let shown = Arc::new(Mutex::new(String::new()));
    let told = Arc::clone(&shown);
    let layer = RetryLayer::new().retry_on(http::StatusCode::CONFLICT).retry_if(move |_, attempt| {
        told.lock().unwrap().push_str(&format!("{attempt:?}"));
        false
    });
    let said = format!("{layer:?}");
    let mut request = request("PUT", URI);
    *request.body_mut() = Full::from("s3cret");
    let probe =
        ScriptedService::new([Headers(503, &[("x-key", "s3cret")]), Io(ConnectionReset), Status(200)]);
    layer.layer(probe).oneshot(request).await.unwrap();
    let shown = shown.lock().unwrap();
    assert!(shown.contains("503") && !shown.contains("s3cret"), "{shown}");
    assert!(said.contains("409"), "{said}");
}

#[test]
fn rejects_a_maximum_of_zero_attempts_for_a_request() {
    let error = RetryOverride::new().with_max_attempts(0).unwrap_err();
    assert_eq!((error.field(), error.value()), ("max attempts", "0"));
}
