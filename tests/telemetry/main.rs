//! The spans of a call and its attempts, and the manual of `request_id` as the contract of all that is logged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod filters;
#[path = "../support/mod.rs"]
mod support;

use crate::support::{capture, store};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    env, fs,
    future::{Ready, ready},
    io::ErrorKind::*,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use crate::support::capture::{Capture, Row};
use crate::support::{
    Content,
    Scripted::{self, *},
    ScriptedService, get, millis, request, secs,
};
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    ApiKey, BoxError, Quota,
    attempt_span::AttemptSpanLayer,
    auth::{FreshKey, KeySource, RefreshingKey},
    limit::{RateLimitLayer, TokenBucket},
    preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    test_util,
    timeout::TimeoutLayer,
};

const URI: &str = "https://api.example.com/v1";

// ---- the contract

/// The rows of the manual's two tables.
fn documented(manual: &str) -> BTreeSet<Row> {
    let mut kind = None;
    let mut rows = BTreeSet::new();
    let mut lines = manual.lines();
    while let Some(line) = lines.next() {
        let Some(line) = line.strip_prefix("//! |").filter(|line| line.matches(" | ").count() > 2) else {
            kind = None;
            continue;
        };
        let cells: Vec<_> = line.trim().trim_end_matches(['|', ' ']).split(" | ").collect();
        let [target, level, name, _, ref fields @ ..] = cells[..] else { panic!("{line}") };
        let fields = fields.concat();
        if kind.is_none() {
            let rule = lines.next().and_then(|line| line.strip_prefix("//! |-"));
            assert!(target == "target" && rule.is_some(), "rustdoc makes no table of this: {line}");
            kind = Some(if name == "span" { "span" } else { "event" });
            continue;
        }
        let plain = |cell: &str| cell.trim_matches('`').to_owned();
        let fields = fields.split_whitespace().map(plain).collect();
        rows.insert((kind.unwrap(), plain(target), level.to_owned(), plain(name), fields));
    }
    rows
}

#[test]
#[should_panic(expected = "rustdoc makes no table of this")]
fn a_row_outside_a_table_is_no_row() {
    let head = "//! | target | level | event | when | fields |\n//! |---|---|---|---|---|\n";
    let row = "//! | `a` | info | b | c | `d` |\n";
    assert_eq!(documented(&[head, row].concat()).len(), 1);
    documented(&[head, "//!\n", row].concat());
}

/// A whole stack, and calls that bring it to say all that it can say.
#[tokio::test(start_paused = true)]
async fn what_is_logged_is_what_the_manual_says() {
    let (capture, _guard) = Capture::all();
    let script = [
        Headers(429, &[("retry-after", "3")]),
        Status(200),
        Status(404),
        Status(503),
        Status(503),
        Status(503),
    ];
    let quota = Quota::per_minute(2).unwrap().with_burst(1).unwrap();
    let preset = preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    let preset = preset.with_quota(quota).with_total_timeout(secs(600));
    let service = preset.layer().unwrap().layer(ScriptedService::new(script));
    for _ in 0..3 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    tell_of_keys().await;
    let with_store = with_store().await;
    let (heard, documented) = (capture.rows(), documented(include_str!("../../src/request_id/mod.rs")));
    assert_eq!(documented.len(), 16);
    // Only this level depends on a feature.
    let level = |(kind, target, level, name, fields): Row| match cfg!(feature = "otel") && name == "attempt" {
        true => (kind, target, "info".to_owned(), name, fields),
        false => (kind, target, level, name, fields),
    };
    let mut documented: BTreeSet<_> = documented.into_iter().map(level).collect();
    if !with_store {
        documented.retain(|row| !format!("{row:?}").contains("limiter's store"));
    }
    assert_eq!(heard, documented);
}

/// Loses and restores the store of a shared limiter. Returns `false` if redis-server is missing.
async fn with_store() -> bool {
    #[cfg(feature = "redis")]
    return store::lost_and_found().await;
    #[cfg(not(feature = "redis"))]
    false
}

/// A provider that gives a key, which is refused, and then fails; and a file whose key changes.
async fn tell_of_keys() {
    let asked = AtomicBool::new(false);
    let provided = RefreshingKey::new(move || {
        let first = !asked.swap(true, Relaxed);
        let fetched = ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from);
        ready(if first { fetched } else { Err("closed".into()) })
    });
    let file = env::temp_dir().join(format!("tower-outbound-told-{}", std::process::id()));
    fs::write(&file, "key-1").unwrap();
    let changing = KeySource::from_file_every(&file, secs(1)).unwrap();
    for keys in [KeySource::from(provided), changing] {
        let preset = preset::currency_rates(URI).unwrap().with_keys(keys);
        let service = preset.layer().unwrap().layer(ScriptedService::new([Status(401)]));
        for _ in 0..2 {
            let _ = service.clone().oneshot(get(URI)).await;
            fs::write(&file, "key-2").unwrap();
            tokio::time::advance(secs(2)).await;
        }
    }
    fs::remove_file(&file).unwrap();
}

// ---- the spans

/// Runs one call through the whole stack, and gives what was heard of it.
async fn heard(script: &[Scripted], method: &str, uri: &str) -> Capture {
    let (capture, _guard) = Capture::all();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(TimeoutLayer::total(secs(60)).unwrap())
        .layer(RetryLayer::new())
        .layer(AttemptSpanLayer::new())
        .layer(TimeoutLayer::per_attempt(secs(5)).unwrap())
        .service(ScriptedService::new(script.iter().copied()));
    let _ = service.oneshot(request(method, uri)).await;
    capture
}

fn shown(fields: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_a_client_span_of_its_own_in_the_span_of_the_call() {
    let script = [Status(503), Io(ConnectionReset), Status(200)];
    let capture = heard(&script, "PUT", "https://me:pw@api.example.com:8443/v1/x?key=1").await;
    let calls = capture.spans("call");
    assert_eq!((calls.len(), calls[0].parent), (1, None));
    let mut call = calls[0].fields.clone();
    assert_eq!(call.remove("request_id").unwrap().len(), 36);
    assert_eq!(shown(&call), [("attempts", "3"), ("service", "rates")]);

    let attempts = capture.spans("attempt");
    assert_eq!(attempts.len(), 3);
    let always = [
        ("http.request.method", "PUT"),
        ("otel.kind", "client"),
        ("otel.name", "PUT"),
        ("server.address", "api.example.com"),
        ("server.port", "8443"),
        ("url.full", "https://api.example.com:8443/v1/x"),
    ];
    let own: [&[(&str, &str)]; 3] = [
        &[
            ("error.type", "503"),
            ("http.response.status_code", "503"),
            ("network.protocol.version", "1.1"),
            ("otel.status_code", "error"),
        ],
        &[("error.type", "reset"), ("http.request.resend_count", "1"), ("otel.status_code", "error")],
        &[
            ("http.request.resend_count", "2"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
        ],
    ];
    for (span, own) in attempts.iter().zip(own) {
        let mut expected = [always.as_slice(), own].concat();
        expected.sort_unstable();
        assert_eq!(shown(&span.fields), expected);
        assert_eq!(capture.span(span.parent.unwrap()).name, "call");
    }
    // None of them covers a back-off.
    for (earlier, later) in attempts.iter().zip(&attempts[1..]) {
        assert!(earlier.closed.unwrap() + millis(40) < later.opened);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_by_its_kind_and_a_redirect_is_none() {
    for (answer, kind) in [
        (Status(200), None),
        (Status(304), None),
        (Status(404), Some("404")),
        (Status(500), Some("500")),
        (Headers(200, &[("grpc-status", "0")]), None),
        (Headers(200, &[("grpc-status", "14")]), Some("UNAVAILABLE")),
        (Headers(404, &[("grpc-status", "12")]), Some("UNIMPLEMENTED")),
        (Io(BrokenPipe), Some("closed")),
        (NoResponse, Some("attempt_timeout")),
    ] {
        let capture = heard(&[answer], "POST", URI).await;
        for span in ["call", "attempt"] {
            let spans = capture.spans(span);
            let field = |name| spans[0].fields.get(name).map(String::as_str);
            assert_eq!(field("error.type"), kind, "{span} {answer:?}");
            assert_eq!(field("otel.status_code"), kind.map(|_| "error"), "{span} {answer:?}");
            assert!(spans.len() == 1 && spans[0].closed.is_some());
        }
    }
}

/// HTTP says 200 of it.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_grpc_call_is_in_its_line_and_in_the_attempts_span() {
    for (code, named, told) in [
        ("0", "OK", "call completed"),
        ("7", "PERMISSION_DENIED", "call completed"),
        ("14", "UNAVAILABLE", "call failed"),
    ] {
        let script = [test_util::ScriptedResponse::status(200).with_header("grpc-status", code)];
        let (capture, _guard) = Capture::all();
        let layers = (RequestIdLayer::new(), AttemptSpanLayer::new());
        layers.layer(ScriptedService::new(script)).oneshot(request("POST", URI)).await.unwrap();
        let line = capture.lines().pop().unwrap();
        let fields = [&line.fields, &capture.spans("attempt")[0].fields];
        for fields in fields {
            assert_eq!(
                (&*fields["http.response.status_code"], &*fields["rpc.response.status_code"]),
                ("200", named)
            );
        }
        assert_eq!(line.message, told);
    }
}

#[tokio::test]
async fn what_is_no_absolute_uri_or_known_method_is_told_as_such() {
    let (capture, _guard) = Capture::all();
    for (method, uri) in [("PURGE", "http://[::1]/a"), ("GET", "/v1?key=s3cret"), ("GET", "http://API.test")]
    {
        AttemptSpanLayer::new()
            .layer(ScriptedService::new([Status(200)]))
            .oneshot(request(method, uri))
            .await
            .unwrap();
    }
    let spans = capture.spans("attempt");
    assert_eq!(
        shown(&spans[0].fields),
        [
            ("http.request.method", "_OTHER"),
            ("http.request.method_original", "PURGE"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("otel.kind", "client"),
            ("otel.name", "HTTP"),
            ("server.address", "::1"),
            ("server.port", "80"),
            ("url.full", "http://[::1]/a"),
        ]
    );
    assert_eq!(
        shown(&spans[1].fields),
        [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("otel.kind", "client"),
            ("otel.name", "GET"),
        ]
    );
    assert_eq!(spans[2].fields["server.address"], "api.test");
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_the_limiter_is_in_no_attempts_span() {
    let (capture, _guard) = Capture::all();
    let quota = Quota::per_minute(2).unwrap().with_burst(1).unwrap();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::new(quota)))
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([Delayed(30, 200)]));
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    let (call, attempt) = (&capture.spans("call")[1], &capture.spans("attempt")[1]);
    let lasted = |span: &capture::Span| span.closed.unwrap() - span.opened;
    assert!(lasted(attempt) < millis(40) && lasted(call) > secs(50), "{attempt:?} {call:?}");
    let waits: Vec<_> = capture.lines().into_iter().filter(|line| line.target.ends_with("limit")).collect();
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].scope, ["call"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_client_tells_is_in_the_attempts_span_whenever_it_is_asked() {
    struct Client;

    struct Dropped;

    impl Drop for Dropped {
        fn drop(&mut self) {
            tracing::info!("dropped");
        }
    }

    impl Service<Request<Content>> for Client {
        type Response = Response<()>;
        type Error = Infallible;
        type Future = BoxFuture<'static, Result<Response<()>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Content>) -> Self::Future {
            tracing::info!("called");
            let held = Dropped;
            Box::pin(async move {
                tracing::info!("first poll");
                tokio::time::sleep(millis(1)).await;
                tracing::info!("second poll");
                tokio::time::sleep(secs(100)).await;
                drop(held);
                Ok(Response::new(()))
            })
        }
    }

    let (capture, _guard) = Capture::all();
    let layers = (RequestIdLayer::new(), AttemptSpanLayer::new());
    let call = layers.layer(Client).oneshot(get(URI));
    assert!(tokio::time::timeout(millis(10), call).await.is_err());
    let lines = capture.lines();
    let told: Vec<_> = lines.iter().map(|line| line.message.as_str()).collect();
    assert_eq!(told, ["called", "first poll", "second poll", "dropped"]);
    for line in lines {
        assert_eq!(line.scope, ["call", "attempt"], "{}", line.message);
    }
}

#[tokio::test(start_paused = true)]
async fn the_crates_own_events_are_in_the_span_of_the_call() {
    let capture = heard(&[Status(503), Status(503), Status(503)], "GET", URI).await;
    let lines = capture.lines();
    let told: Vec<_> = lines.iter().map(|line| (line.message.as_str(), line.scope.as_slice())).collect();
    let call = ["call"].as_slice();
    let (ended, again) = (("attempt ended", call), ("retrying", call));
    assert_eq!(
        told,
        [ended, again, ended, again, ended, ("no further attempt", call), ("call failed", call)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_its_caller_drops_has_not_failed() {
    let (capture, _guard) = Capture::all();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TimeoutLayer::total(secs(60)).unwrap())
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([NoResponse]));
    let mut call = task::spawn(service.oneshot(get(URI)));
    assert_pending!(call.poll());
    drop(call);
    for span in [&capture.spans("call")[0], &capture.spans("attempt")[0]] {
        assert!(span.closed.is_some());
        assert!(!span.fields.contains_key("error.type") && !span.fields.contains_key("otel.status_code"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_deadline_cuts_off_from_above_has_timed_out() {
    let (capture, _guard) = Capture::all();
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::total(secs(1)).unwrap())
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([NoResponse]));
    service.oneshot(get(URI)).await.unwrap_err();
    let fields = &capture.spans("attempt")[0].fields;
    assert_eq!((fields["error.type"].as_str(), fields["otel.status_code"].as_str()), ("deadline", "error"));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_answered_stays_so_however_late_it_is_dropped() {
    let (capture, _guard) = Capture::all();
    let mut service = (TimeoutLayer::total(secs(1)).unwrap(), AttemptSpanLayer::new())
        .layer(ScriptedService::new([Status(200)]));
    let mut call =
        task::spawn(ServiceExt::<Request<Content>>::ready(&mut service).await.unwrap().call(get(URI)));
    assert!(call.poll().is_ready());
    tokio::time::advance(secs(2)).await;
    drop(call);
    assert_eq!(capture.spans("attempt").len(), 1);
    for span in capture.spans("attempt") {
        assert!(!span.fields.contains_key("error.type"), "{span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_query_or_user_info_is_in_a_span() {
    let (capture, _guard) = Capture::all();
    let preset = preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
    for preset in [preset.clone(), preset.with_key_placement("query:s3cret-name".parse().unwrap())] {
        for script in
            [&[Status(200)][..], &[Status(401)], &[Status(503), Io(ConnectionReset), NoResponse], &[Refused]]
        {
            let service = preset.layer().unwrap().layer(ScriptedService::new(script.iter().copied()));
            let _ = service.oneshot(get("https://s3cret:s3cret@api.example.com/v1?a=s3cret")).await;
        }
    }
    assert_eq!(capture.spans("attempt").len(), 16);
    assert!(!capture.text().contains("s3cret"), "{}", capture.text());
}

#[tokio::test(start_paused = true)]
async fn at_level_warn_there_is_no_span() {
    let (capture, _guard) = Capture::at(tracing::level_filters::LevelFilter::WARN);
    let layers = (RequestIdLayer::new(), AttemptSpanLayer::new());
    layers.layer(ScriptedService::new([Status(500)])).oneshot(get(URI)).await.unwrap();
    assert!(capture.spans("call").is_empty() && capture.spans("attempt").is_empty());
    assert_eq!(capture.lines().len(), 1);
}

/// What is sent again for a key that was replaced is told as any other attempt is.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_replaced_is_told() {
    let (capture, _guard) = Capture::all();
    let probe = ScriptedService::new([Status(401), Status(200)]);
    let given = AtomicU32::new(0);
    let preset = preset::realtime_messaging(URI).unwrap().with_keys(RefreshingKey::new(move || {
        let key = ApiKey::new(format!("k3y-{}", given.fetch_add(1, Relaxed)));
        async { Ok::<_, BoxError>(FreshKey::new(key?)) }
    }));
    let numbered = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    let layer = preset.with_attempt_span(numbered).layer().unwrap();
    layer.layer(probe.clone()).oneshot(request("POST", URI)).await.unwrap();
    assert_eq!(numbers(&probe), ["1", "2"].map(|number| Some(number.to_owned())));
    let keys: Vec<_> = probe.seen().iter().map(|seen| seen.head.headers["authorization"].clone()).collect();
    assert_eq!(keys, ["Bearer k3y-0", "Bearer k3y-1"]);
    let resent: Vec<_> = capture
        .spans("attempt")
        .iter()
        .map(|span| span.fields.get("http.request.resend_count").cloned())
        .collect();
    assert_eq!(resent, [None, Some("1".to_owned())]);
    let again: Vec<_> = capture.lines().into_iter().filter(|line| line.target.ends_with("retry")).collect();
    assert_eq!(again.len(), 1);
    assert_eq!(
        (again[0].fields["reason"].as_str(), again[0].fields["delay_ms"].as_str()),
        ("key_replaced", "0.0")
    );
}

// ---- the number on the wire

fn numbers(probe: &ScriptedService) -> Vec<Option<String>> {
    let number = |head: &http::request::Parts| {
        let mut all = head.headers.get_all("x-attempt").iter();
        let number = all.next().map(|number| number.to_str().unwrap().to_owned());
        assert!(all.next().is_none(), "one number");
        number
    };
    probe.seen().iter().map(|seen| number(&seen.head)).collect()
}

#[tokio::test(start_paused = true)]
async fn the_number_of_the_attempt_is_sent_by_choice() {
    let numbered = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    let preset = preset::realtime_messaging(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    for (attempt, expected) in
        [(numbered, [Some("1"), Some("2"), Some("3")]), (AttemptSpanLayer::new(), [None; 3])]
    {
        let probe = ScriptedService::new([Status(503), Io(ConnectionReset), Status(200)]);
        let preset = preset.clone().with_attempt_span(attempt);
        preset.layer().unwrap().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
        assert_eq!(numbers(&probe), expected.map(|number| number.map(str::to_owned)));
        let own = if expected[0].is_some() { 1 } else { 0 };
        for seen in probe.seen() {
            // The id, the content type, the key.
            assert_eq!(seen.head.headers.len(), 3 + own, "on no other header: {:?}", seen.head.headers);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_our_retry_the_number_is_right_too() {
    let (capture, _guard) = Capture::all();
    let numbered = || AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    let probe = ScriptedService::new([Status(200)]);
    let mut own = get(URI);
    own.headers_mut().insert("x-attempt", HeaderValue::from_static("7"));
    numbered().layer(probe.clone()).oneshot(own).await.unwrap();
    assert_eq!(numbers(&probe), [Some("1".to_owned())], "in place of the caller's");

    // Another's retry between the two.
    let probe = ScriptedService::new([Status(503), Status(503), Status(200)]);
    let again = tower::service_fn({
        let below = numbered().layer(probe.clone());
        move |request: Request<Content>| {
            let below = below.clone();
            async move {
                loop {
                    let response = below.clone().oneshot(request.clone()).await?;
                    if response.status() == StatusCode::OK {
                        return Ok::<_, tower_outbound::Error>(response);
                    }
                }
            }
        }
    });
    RequestIdLayer::new().layer(again).oneshot(get(URI)).await.unwrap();
    assert_eq!(numbers(&probe), ["1", "2", "3"].map(|number| Some(number.to_owned())));
    let resent: Vec<_> = capture.spans("attempt")[1..]
        .iter()
        .map(|span| span.fields.get("http.request.resend_count").cloned())
        .collect();
    assert_eq!(resent, [None, Some("1".to_owned()), Some("2".to_owned())]);
}

/// An attempt that was refused before it was handed down is numbered, and yet the next one is no resend.
#[tokio::test(start_paused = true)]
async fn what_was_not_handed_down_is_not_sent_again() {
    /// Breaks once, of whichever clone it is asked.
    #[derive(Clone, Default)]
    struct Fragile(Arc<AtomicBool>);

    impl<B> Service<Request<B>> for Fragile {
        type Response = Response<Content>;
        type Error = BoxError;
        type Future = Ready<Result<Response<Content>, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(if self.0.swap(true, Relaxed) { Ok(()) } else { Err("broken".into()) })
        }

        fn call(&mut self, request: Request<B>) -> Self::Future {
            assert_eq!(request.headers()["x-attempt"], "2");
            ready(Ok(Response::new(Content::default())))
        }
    }

    let (capture, _guard) = Capture::all();
    let numbered = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    (RetryLayer::new(), numbered).layer(Fragile::default()).oneshot(get(URI)).await.unwrap();
    let spans = capture.spans("attempt");
    assert_eq!(spans.len(), 1);
    assert!(!spans[0].fields.contains_key("http.request.resend_count"));
}

#[test]
fn debug_shows_what_is_sent() {
    let layer = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    let layer = layer.with_propagation(|_: &tracing::Span, _: &mut http::HeaderMap| {});
    assert_eq!(format!("{layer:?}"), "AttemptSpanLayer { header: Some(\"x-attempt\"), propagates: true }");
}
