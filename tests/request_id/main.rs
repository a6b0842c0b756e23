//! The request id layer, over doubles, and the log contract of its manual.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::HashSet,
    fmt,
    io::ErrorKind::*,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::support::capture::{Capture, Line};
use crate::support::{
    Content,
    Scripted::{self, *},
    ScriptedService, get, millis, request, secs,
};
use http::{HeaderName, HeaderValue, Request, Response};
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    ApiKey, Quota, Report,
    auth::{AuthLayer, Origin},
    call::{CallContext, StopReason},
    limit::{RateLimitLayer, TokenBucket},
    preset,
    request_id::{RequestId, RequestIdLayer},
    retry::RetryLayer,
    stack::StackBuilder,
    timeout::TimeoutLayer,
};
use tracing::{Level, Metadata, level_filters::LevelFilter};
use tracing_subscriber::{Registry, filter::filter_fn, layer::SubscriberExt};

const URI: &str = "https://api.example.com/v1";

fn id_of(head: &http::request::Parts) -> HeaderValue {
    let mut all = head.headers.get_all("x-request-id").iter();
    let id = all.next().expect("no id").clone();
    assert!(all.next().is_none(), "one id");
    id
}

fn header(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

fn report<B>(response: &Response<B>) -> &Report {
    response.extensions().get().expect("no report in the answer")
}

// ---- the id

#[tokio::test]
async fn an_id_is_added_a_uuid_of_version_7_in_36_characters() {
    let probe = ScriptedService::new([Status(200)]);
    for _ in 0..100 {
        RequestIdLayer::new().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    }
    #[allow(clippy::disallowed_methods, reason = "the id tells the time of the machine's clock")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    for seen in probe.seen() {
        let id = id_of(&seen.head);
        let id = id.to_str().unwrap();
        assert_eq!(id.len(), 36);
        for (at, character) in id.chars().enumerate() {
            match at {
                8 | 13 | 18 | 23 => assert_eq!(character, '-', "{id}"),
                14 => assert_eq!(character, '7', "the version: {id}"),
                19 => assert!("89ab".contains(character), "the variant: {id}"),
                _ => assert!(character.is_ascii_digit() || ('a'..='f').contains(&character), "{id}"),
            }
        }
        let stamp = u128::from_str_radix(&id.replace('-', "")[..12], 16).unwrap();
        assert!(now.abs_diff(stamp) < 60_000, "{stamp} is not about {now}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_id_is_the_same_on_all_attempts_and_another_on_the_next_call() {
    let probe =
        ScriptedService::new([Status(503), Io(ConnectionReset), Status(200), Status(503), Status(200)]);
    let service =
        ServiceBuilder::new().layer(RequestIdLayer::new()).layer(RetryLayer::new()).service(probe.clone());
    service.clone().oneshot(get(URI)).await.unwrap();
    service.oneshot(get(URI)).await.unwrap();
    let ids: Vec<_> = probe.seen().iter().map(|seen| id_of(&seen.head)).collect();
    assert_eq!(ids.len(), 5);
    assert!(ids[0] == ids[1] && ids[1] == ids[2] && ids[3] == ids[4] && ids[0] != ids[3], "{ids:?}");
}

#[tokio::test]
async fn the_callers_own_id_is_kept_and_is_the_calls() {
    let probe = ScriptedService::new([Status(200)]);
    let mut own = get(URI);
    own.headers_mut().insert("x-request-id", HeaderValue::from_static("mine-1"));
    let response = RequestIdLayer::new().layer(probe.clone()).oneshot(own).await.unwrap();
    assert_eq!(id_of(&probe.seen()[0].head), "mine-1");
    assert_eq!(report(&response).request_id().unwrap(), "mine-1");
}

#[tokio::test(start_paused = true)]
async fn an_id_that_the_caller_holds_is_the_calls_on_success_and_on_error() {
    let held = || {
        let mut request = get(URI);
        request.extensions_mut().insert(RequestId(HeaderValue::from_static("held-1")));
        request
    };
    let layers = (RequestIdLayer::new().with_maker(|| unreachable!("there is one")), RetryLayer::new());
    let probe = ScriptedService::new([Status(503), Status(200), Io(ConnectionReset)]);
    let service = layers.layer(probe.clone());
    let response = service.clone().oneshot(held()).await.unwrap();
    assert_eq!(report(&response).request_id().unwrap(), "held-1");
    let error = service.clone().oneshot(held()).await.unwrap_err();
    assert_eq!(error.request_id().unwrap(), "held-1");
    // What the caller has put where it is sent goes before.
    let mut both = held();
    both.headers_mut().insert("x-request-id", HeaderValue::from_static("sent-1"));
    let error = service.oneshot(both).await.unwrap_err();
    assert_eq!(error.request_id().unwrap(), "sent-1");
    let ids: Vec<_> = probe.seen().iter().map(|seen| id_of(&seen.head)).collect();
    let held = ["held-1"; 5].into_iter();
    assert!(ids.iter().eq(held.chain(["sent-1"; 3])), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn another_maker_is_asked_once_for_each_call_that_brings_no_id() {
    let count = AtomicU64::new(7);
    let maker = move || HeaderValue::from(count.fetch_add(1, Ordering::Relaxed));
    let probe = ScriptedService::new([Status(503), Status(200)]);
    let service = (RequestIdLayer::new().with_maker(maker), RetryLayer::new()).layer(probe.clone());
    let mut own = get(URI);
    own.headers_mut().insert("x-request-id", HeaderValue::from_static("own"));
    for request in [get(URI), own, get(URI)] {
        service.clone().oneshot(request).await.unwrap();
    }
    let ids: Vec<_> = probe.seen().iter().map(|seen| id_of(&seen.head)).collect();
    assert_eq!(ids, ["7", "7", "own", "8"]);
}

#[tokio::test]
async fn another_header_may_carry_it() {
    let probe = ScriptedService::new([Status(200)]);
    let layer = RequestIdLayer::new().with_header(header("x-correlation-id"));
    let response = layer.layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    let head = &probe.seen()[0].head;
    assert_eq!(head.headers.len(), 1);
    assert_eq!(head.headers["x-correlation-id"].len(), 36);
    assert_eq!(report(&response).request_id().as_ref(), Some(&head.headers["x-correlation-id"]));
}

#[tokio::test]
async fn two_layers_draw_different_random_parts() {
    let random_part = |layer: RequestIdLayer| async move {
        let response = layer.layer(ScriptedService::new([Status(200)])).oneshot(get(URI)).await.unwrap();
        report(&response).request_id().unwrap().to_str().unwrap()[14..].to_owned()
    };
    assert_ne!(random_part(RequestIdLayer::new()).await, random_part(RequestIdLayer::new()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_calls_at_once_have_a_thousand_ids() {
    let (layer, probe) = (RequestIdLayer::new(), ScriptedService::new([Status(200)]));
    let calls: Vec<_> =
        (0..1_000).map(|_| tokio::spawn(layer.clone().layer(probe.clone()).oneshot(get(URI)))).collect();
    let mut reported = HashSet::new();
    for call in calls {
        reported.insert(report(&call.await.unwrap().unwrap()).request_id().unwrap());
    }
    let sent: HashSet<_> = probe.seen().iter().map(|seen| id_of(&seen.head)).collect();
    assert_eq!((sent.len(), reported.len()), (1_000, 1_000));
    assert_eq!(sent, reported);
}

// ---- the server's id, and the report

#[tokio::test]
async fn the_id_is_not_written_into_an_answer_that_has_none() {
    let response =
        RequestIdLayer::new().layer(ScriptedService::new([Status(200)])).oneshot(get(URI)).await.unwrap();
    assert!(response.headers().is_empty(), "{:?}", response.headers());
    assert_eq!(report(&response).server_request_id(), None);
    assert!(report(&response).request_id().is_some());
}

#[tokio::test]
async fn the_servers_id_is_found_in_the_first_known_header() {
    type Case = (&'static [(&'static str, &'static str)], Option<&'static str>);
    let all: [Case; 8] = [
        (&[("x-request-id", "a")], Some("a")),
        (&[("request-id", "b")], Some("b")),
        (&[("x-amzn-requestid", "c")], Some("c")),
        (&[("x-correlation-id", "d")], Some("d")),
        (&[("cf-ray", "e")], Some("e")),
        (&[("x-trace", "f")], None),
        // In the documented order, whatever theirs.
        (&[("cf-ray", "e"), ("x-correlation-id", "d"), ("request-id", "b")], Some("b")),
        (
            &[
                ("cf-ray", "e"),
                ("x-correlation-id", "d"),
                ("x-amzn-requestid", "c"),
                ("request-id", "b"),
                ("x-request-id", "a"),
            ],
            Some("a"),
        ),
    ];
    for (headers, expected) in all {
        let service = RequestIdLayer::new().layer(ScriptedService::new([Headers(200, headers)]));
        let response = service.oneshot(get(URI)).await.unwrap();
        let id = report(&response).server_request_id();
        assert_eq!(id.as_ref().map(|id| id.to_str().unwrap()), expected, "{headers:?}");
        assert_eq!(response.headers().len(), headers.len(), "the answer is not changed");
        for (name, value) in headers {
            assert_eq!(response.headers()[*name], value);
        }
    }
}

/// A client below that makes a call of its own leaves its report in the answer.
#[tokio::test]
async fn the_servers_id_is_kept_beside_another_calls_report() {
    let inner =
        RequestIdLayer::new().layer(ScriptedService::new([Headers(200, &[("x-request-id", "theirs")])]));
    let (told, tells) = std::sync::mpsc::channel();
    let service = RequestIdLayer::new().layer(tower::service_fn(move |request: Request<Content>| {
        told.send(request.extensions().get::<CallContext>().unwrap().report()).unwrap();
        inner.clone().oneshot(get(URI))
    }));
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(tells.recv().unwrap().server_request_id().unwrap(), "theirs");
}

/// A layer in between answers by itself in the end, from a cache, say.
#[tokio::test(start_paused = true)]
async fn the_servers_id_is_the_last_attempts_whatever_answer_is_made_of_it() {
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .map_response(|_: Response<_>| {
            Response::builder().header("x-request-id", "cached").body(Content::default()).unwrap()
        })
        .layer(RetryLayer::new())
        .service(ScriptedService::new([Headers(200, &[("x-request-id", "theirs")])]));
    let response = service.oneshot(get(URI)).await.unwrap();
    assert_eq!(report(&response).server_request_id().unwrap(), "theirs");
}

/// All that is said of the call afterwards, by whatever handle on it.
#[tokio::test]
async fn of_two_layers_in_a_stack_the_inner_one_names_the_call() {
    let outer = RequestIdLayer::new().with_service("outer").with_header(header("x-outer-id"));
    let inner = RequestIdLayer::new()
        .with_service("inner")
        .with_header(header("x-inner-id"))
        .with_server_headers([header("x-theirs")]);
    let probe =
        ScriptedService::new([Headers(200, &[("x-request-id", "not looked for"), ("x-theirs", "theirs")])]);
    let service = ServiceBuilder::new().layer(outer).layer(inner).service(probe.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let head = &probe.seen()[0].head;
    assert_eq!(head.extensions.get::<CallContext>().unwrap().service().as_deref(), Some("inner"));
    let report = report(&response);
    assert_eq!(
        (report.service().as_deref(), report.request_id()),
        (Some("inner"), Some(head.headers["x-inner-id"].clone()))
    );
    assert_ne!(head.headers["x-inner-id"], head.headers["x-outer-id"]);
    assert_eq!(report.server_request_id().unwrap(), "theirs");
    let shown = format!("{report:?}");
    assert!(shown.contains(r#"service: Some("inner")"#), "{shown}");
}

#[tokio::test]
async fn keeps_the_next_headers_id_if_the_first_is_too_long() {
    for (length, kept) in [(128, true), (129, false), (65_536, false)] {
        let long = "x".repeat(length);
        let answer = tower_outbound::test_util::ScriptedResponse::status(200)
            .with_header("x-request-id", &long)
            .with_header("cf-ray", "e");
        let response =
            RequestIdLayer::new().layer(ScriptedService::new([answer])).oneshot(get(URI)).await.unwrap();
        let id = report(&response).server_request_id().unwrap();
        assert_eq!(id, if kept { long.as_str() } else { "e" }, "{length}");
        assert_eq!(response.headers()["x-request-id"], long, "the answer is not changed");
    }
}

#[tokio::test]
async fn other_headers_may_be_searched_for_the_servers_id() {
    let answer = Headers(200, &[("x-request-id", "a"), ("x-trace", "t"), ("x-span", "s")]);
    for (headers, expected) in [
        (vec![header("x-trace")], Some("t")),
        (vec![header("x-span"), header("x-trace")], Some("s")),
        (vec![header("x-none"), header("x-trace")], Some("t")),
        (vec![], None),
    ] {
        let layer = RequestIdLayer::new().with_server_headers(headers);
        let response = layer.layer(ScriptedService::new([answer])).oneshot(get(URI)).await.unwrap();
        let id = report(&response).server_request_id();
        assert_eq!(id.as_ref().map(|id| id.to_str().unwrap()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_report_is_in_the_answer_and_in_the_error_with_the_id() {
    let probe = ScriptedService::new([
        Headers(503, &[("request-id", "theirs-1")]),
        Headers(200, &[("request-id", "theirs-2")]),
    ]);
    let service =
        ServiceBuilder::new().layer(RequestIdLayer::new()).layer(RetryLayer::new()).service(probe.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = report(&response);
    assert_eq!(report.request_id(), Some(id_of(&probe.seen()[0].head)));
    assert_eq!(report.server_request_id().unwrap(), "theirs-2");
    assert_eq!((report.attempt_count(), report.stop_reason()), (2, Some(StopReason::Success)));

    for retry in [false, true] {
        let probe = ScriptedService::new([Io(ConnectionReset)]);
        let layer = RequestIdLayer::new();
        let error = match retry {
            true => layer.layer(RetryLayer::new().layer(probe.clone())).oneshot(get(URI)).await,
            false => layer.layer(probe.clone()).oneshot(get(URI)).await,
        }
        .unwrap_err();
        assert!(error.is_service());
        assert_eq!(error.request_id(), Some(id_of(&probe.seen()[0].head)));
        assert_eq!(error.report().unwrap().request_id(), error.request_id());
        assert_eq!(error.report().unwrap().attempt_count(), if retry { 3 } else { 0 });
    }
}

#[tokio::test(start_paused = true)]
async fn the_servers_id_of_the_last_answer_is_kept_when_the_call_ends_in_an_error() {
    let probe = ScriptedService::new([Headers(503, &[("request-id", "theirs")]), Io(ConnectionReset)]);
    let service = ServiceBuilder::new().layer(RequestIdLayer::new()).layer(RetryLayer::new()).service(probe);
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().server_request_id().unwrap(), "theirs");
}

#[tokio::test(start_paused = true)]
async fn each_attempt_keeps_the_id_that_the_server_gave_its_answer() {
    let answers =
        [Headers(503, &[("cf-ray", "one")]), Headers(503, &[]), Headers(200, &[("x-request-id", "three")])];
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .service(ScriptedService::new(answers));
    let response = service.oneshot(get(URI)).await.unwrap();
    let attempts = report(&response).attempts();
    let ids: Vec<_> =
        attempts.iter().map(|a| a.server_request_id.as_ref().map(|id| id.to_str().unwrap())).collect();
    assert_eq!(ids, [Some("one"), None, Some("three")]);
    assert_eq!(report(&response).server_request_id().unwrap(), "three");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_and_a_refusal_have_the_id_too() {
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TimeoutLayer::total(secs(1)).unwrap())
        .service(ScriptedService::new([NoResponse]));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_deadline() && error.request_id().is_some_and(|id| id.len() == 36));

    let bucket = TokenBucket::new(Quota::per_minute(1).unwrap());
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RateLimitLayer::new(bucket).with_max_wait(secs(1)))
        .service(ScriptedService::new([Status(200)]));
    service.clone().oneshot(get(URI)).await.unwrap();
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.request_id().is_some());
}

#[tokio::test]
async fn the_inner_service_reads_the_id_while_the_call_runs() {
    let probe = ScriptedService::new([Status(200)]);
    RequestIdLayer::new().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    let head = &probe.seen()[0].head;
    let call = head.extensions.get::<CallContext>().unwrap();
    assert_eq!(call.report().request_id(), Some(id_of(head)));
}

#[test]
fn debug_of_a_running_call_shows_no_query() {
    let uri = "https://me:passw0rd@api.example.com/v1?key=s3cret";
    let never =
        tower::service_fn(|_: Request<Content>| std::future::pending::<Result<Response<Content>, Never>>());
    let mut service = RequestIdLayer::new().layer(never);
    let mut call = task::spawn(service.call(get(uri)));
    assert_pending!(call.poll());
    let shown = format!("{call:?}");
    assert!(!shown.contains("s3cret") && !shown.contains("passw0rd"), "{shown}");
}

#[derive(Debug)]
struct Never;

impl fmt::Display for Never {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl std::error::Error for Never {}

// ---- the log

const CALL: &str = "tower_outbound::call";
const ATTEMPT: &str = "tower_outbound::attempt_span";
const RETRY: &str = "tower_outbound::retry";
const LIMIT: &str = "tower_outbound::limit";

/// Runs one call through id, total deadline, retry and attempt timeout, and gives what was logged of it.
async fn log_of(level: LevelFilter, script: &[Scripted], method: &str, uri: &str) -> Capture {
    let (capture, _guard) = Capture::at(level);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(TimeoutLayer::total(secs(60)).unwrap())
        .layer(RetryLayer::new())
        .layer(TimeoutLayer::per_attempt(secs(5)).unwrap())
        .service(ScriptedService::new(script.iter().copied()));
    let _ = service.oneshot(request(method, uri)).await;
    capture
}

fn names(line: &Line) -> Vec<&str> {
    line.fields.keys().map(String::as_str).collect()
}

fn sorted<const N: usize>(mut names: [&'static str; N]) -> Vec<&'static str> {
    names.sort_unstable();
    names.to_vec()
}

#[tokio::test(start_paused = true)]
async fn logs_one_info_event_per_completed_call_without_the_fields_of_its_span() {
    let script = [Status(503), Headers(200, &[("request-id", "theirs")])];
    let capture = log_of(LevelFilter::DEBUG, &script, "PUT", "https://api.example.com:8443/v1/x?q=1").await;
    let calls = capture.of(CALL);
    assert_eq!(calls.len(), 1, "{calls:?}");
    let line = &calls[0];
    assert_eq!((line.level, line.message.as_str()), (Level::INFO, "call completed"));
    assert_eq!(
        names(line),
        sorted([
            "http.request.method",
            "url.path",
            "http.response.status_code",
            "attempts",
            "elapsed_ms",
            "server_request_id",
        ])
    );
    for (field, value) in [
        ("server_request_id", "theirs"),
        ("http.request.method", "PUT"),
        ("url.path", "/v1/x"),
        ("http.response.status_code", "200"),
        ("attempts", "2"),
    ] {
        assert_eq!(line.fields[field], value, "{field}");
    }
    let span = capture.span(line.span.unwrap());
    assert_eq!((span.name, span.fields["service"].as_str()), ("call", "rates"));
    assert_eq!(span.fields["request_id"].len(), 36);
    let elapsed: f64 = line.fields["elapsed_ms"].parse().unwrap();
    assert!((50.0..=102.0).contains(&elapsed), "{elapsed}");
    assert!((elapsed * 10.0).fract() == 0.0, "one decimal place: {elapsed}");
}

#[tokio::test(start_paused = true)]
async fn leaves_out_fields_without_a_value_and_names_the_server_without_a_service() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    RequestIdLayer::new()
        .layer(ScriptedService::new([Status(200)]))
        .oneshot(get("https://api.example.com/v1"))
        .await
        .unwrap();
    let calls = capture.of(CALL);
    assert_eq!(
        names(&calls[0]),
        sorted([
            "http.request.method",
            "server.address",
            "server.port",
            "url.path",
            "http.response.status_code",
            "elapsed_ms",
        ])
    );
    assert_eq!(capture.ours().len(), 1);
}

/// A filter disables the span.
#[tokio::test(start_paused = true)]
async fn names_the_call_in_its_event_if_the_span_is_disabled() {
    let capture = log_of(LevelFilter::WARN, &[Status(500)], "POST", URI).await;
    let [line] = &capture.ours()[..] else { panic!("one event") };
    assert_eq!((line.fields["service"].as_str(), line.fields["request_id"].len()), ("rates", 36));
    assert!(line.scope.is_empty());

    // The same for events of attempts and retries.
    let events = |metadata: &Metadata<'_>| metadata.is_event();
    let (capture, _) = Capture::subscriber(LevelFilter::OFF);
    let filtered = Registry::default().with(filter_fn(events)).with(capture.clone());
    let guard = tracing::subscriber::set_default(filtered);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(RetryLayer::new())
        .service(ScriptedService::new([Status(503), Status(404)]));
    service.oneshot(get(URI)).await.unwrap();
    drop(guard);
    let lines = capture.ours();
    assert_eq!(lines.len(), 5, "{lines:?}");
    for line in lines {
        let named = (line.fields["service"].as_str(), line.fields["request_id"].len());
        assert_eq!(named, ("rates", 36), "{}", line.message);
    }
}

#[tokio::test(start_paused = true)]
async fn logs_completed_calls_at_the_chosen_level_and_failed_ones_at_warn() {
    for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
        let (capture, _guard) = Capture::at(LevelFilter::TRACE);
        let layer = RequestIdLayer::new().with_log_level(level);
        let service = layer.layer(ScriptedService::new([Status(200), Status(500)]));
        for _ in 0..2 {
            service.clone().oneshot(get(URI)).await.unwrap();
        }
        let heard: Vec<_> = capture.of(CALL).iter().map(|line| (line.level, line.message.clone())).collect();
        assert_eq!(heard, [(level, "call completed".into()), (Level::WARN, "call failed".into())]);
    }
}

/// Measures the event of a plain GET in tracing-subscriber's default format, with its timestamp.
#[tokio::test(start_paused = true)]
async fn keeps_the_event_of_a_plain_call_within_240_characters() {
    let text = Arc::new(Mutex::new(Vec::new()));
    let writer = {
        let text = Arc::clone(&text);
        move || Text(Arc::clone(&text))
    };
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let preset = StackBuilder::new("https://api.example.com").unwrap().with_name("rates");
    let preset = preset.with_api_key(ApiKey::new("k3y").unwrap());
    let service = preset.layer().unwrap().layer(ScriptedService::new([Delayed(1_234, 200)]));
    service.oneshot(get("https://api.example.com/v1/rates/EUR?q=1")).await.unwrap();
    drop(guard);
    let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
    let [line] = &text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(line.len() <= 240, "{}: {line}", line.len());
    assert!(line.contains("call completed") && line.contains("elapsed_ms=123"), "{line}");
    assert_eq!((line.matches("request_id=").count(), line.matches("service=").count()), (1, 1), "{line}");
}

struct Text(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn logs_a_failed_call_at_warn_and_a_rejected_request_at_info() {
    let (warn, info) = (Level::WARN, Level::INFO);
    for (script, method, level, status, error, attempts, ended) in [
        ([Status(404), Status(404), Status(404)], "GET", info, Some("404"), None, 1, None),
        ([Status(401), Status(401), Status(401)], "GET", info, Some("401"), None, 1, None),
        ([Status(400), Status(400), Status(400)], "POST", info, Some("400"), None, 1, None),
        ([Status(501), Status(501), Status(501)], "GET", warn, Some("501"), None, 1, Some("not_retryable")),
        ([Status(503), Status(503), Status(503)], "GET", warn, Some("503"), None, 3, Some("exhausted")),
        ([Status(503), Status(503), Status(503)], "POST", warn, Some("503"), None, 1, Some("not_idempotent")),
        ([Status(429), Status(429), Status(429)], "GET", warn, Some("429"), None, 3, Some("exhausted")),
        ([Status(408), Status(408), Status(408)], "POST", warn, Some("408"), None, 1, Some("not_idempotent")),
        (
            [Headers(429, &[("retry-after", "999")]), Status(200), Status(200)],
            "GET",
            warn,
            Some("429"),
            None,
            1,
            Some("requested_delay_too_long"),
        ),
        (
            [Headers(429, &[("retry-after", "90")]), Status(200), Status(200)],
            "GET",
            warn,
            Some("429"),
            None,
            1,
            Some("deadline"),
        ),
        (
            [Status(503), Io(BrokenPipe), Io(BrokenPipe)],
            "GET",
            warn,
            None,
            Some("closed"),
            3,
            Some("exhausted"),
        ),
        (
            [NoResponse, NoResponse, NoResponse],
            "GET",
            warn,
            None,
            Some("attempt_timeout"),
            3,
            Some("exhausted"),
        ),
        (
            [NoResponse, NoResponse, NoResponse],
            "POST",
            warn,
            None,
            Some("attempt_timeout"),
            1,
            Some("not_idempotent"),
        ),
        ([Status(500), NoResponse, Status(400)], "GET", info, Some("400"), None, 3, None),
    ] {
        let capture = log_of(LevelFilter::DEBUG, &script, method, URI).await;
        let calls = capture.of(CALL);
        assert_eq!(calls.len(), 1, "{calls:?}");
        let line = &calls[0];
        let message = if level == warn { "call failed" } else { "call completed" };
        assert_eq!((line.level, line.message.as_str()), (level, message), "{script:?}");
        let field = |name: &str| line.fields.get(name).map(String::as_str);
        assert_eq!(field("http.response.status_code"), status, "{script:?}");
        assert_eq!(field("error.type"), error, "{script:?}");
        let counted = (attempts > 1).then(|| attempts.to_string());
        assert_eq!(field("attempts"), counted.as_deref(), "{script:?}");
        assert_eq!(field("ended"), ended, "{script:?}");
        assert_eq!(capture.of(ATTEMPT).len(), attempts, "one line an attempt: {script:?}");
    }
}

/// gRPC failures are HTTP 200.
#[tokio::test(start_paused = true)]
async fn logs_a_grpc_failure_of_the_server_at_warn() {
    for code in 0..=16 {
        let answer = tower_outbound::test_util::ScriptedResponse::status(200)
            .with_header("grpc-status", &code.to_string());
        let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
        RequestIdLayer::new()
            .layer(ScriptedService::new([answer]))
            .oneshot(request("POST", URI))
            .await
            .unwrap();
        let expected = if [2, 4, 12, 13, 14, 15].contains(&code) { Level::WARN } else { Level::INFO };
        assert_eq!(capture.of(CALL)[0].level, expected, "{code}");
    }
}

/// The request's body cannot be replayed, so the call ends with the server's 401 and without a resend.
#[tokio::test(start_paused = true)]
async fn logs_a_401_that_could_not_be_resent_with_a_new_key_at_info() {
    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let marked =
        tower::util::MapResponse::new(ScriptedService::new([Status(401)]), |mut response: Response<_>| {
            response.extensions_mut().insert(tower_outbound::call::KeyReplaced);
            response
        });
    let layers = (RequestIdLayer::new(), RetryLayer::new().with_replay_limit(1));
    layers.layer(marked).oneshot(request("POST", URI)).await.unwrap();
    let line = &capture.of(CALL)[0];
    assert_eq!((line.level, line.fields["ended"].as_str()), (Level::INFO, "not_replayable"));
}

#[tokio::test(start_paused = true)]
async fn redirects_and_upgrades_are_no_failures() {
    for status in [101, 204, 301, 304] {
        let capture = log_of(LevelFilter::DEBUG, &[Status(status)], "GET", URI).await;
        assert_eq!(capture.of(CALL)[0].level, Level::INFO, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_one_line_at_debug_with_the_documented_fields() {
    let asked = &[("retry-after", "2"), ("request-id", "theirs")];
    let script = [Headers(429, asked), Io(ConnectionReset), Delayed(30, 200)];
    let capture = log_of(LevelFilter::DEBUG, &script, "GET", URI).await;
    let lines = capture.of(ATTEMPT);
    assert_eq!(lines.len(), 3, "{lines:?}");
    let always = ["attempt", "elapsed_ms"];
    let with = |more: &[&'static str]| {
        let mut all = [always.as_slice(), more].concat();
        all.sort_unstable();
        all
    };
    assert_eq!(
        names(&lines[0]),
        with(&[
            "server_request_id",
            "http.response.status_code",
            "network.protocol.version",
            "requested_delay_ms"
        ])
    );
    assert_eq!(names(&lines[1]), with(&["error.type", "delivery"]));
    assert_eq!(names(&lines[2]), with(&["http.response.status_code", "network.protocol.version"]));
    for (index, line) in lines.iter().enumerate() {
        assert_eq!((line.level, line.message.as_str()), (Level::DEBUG, "attempt ended"));
        assert_eq!(line.fields["attempt"], (index + 1).to_string());
        assert_eq!(line.scope, ["call"], "which has the id");
    }
    assert_eq!(
        (
            lines[0].fields["http.response.status_code"].as_str(),
            lines[0].fields["requested_delay_ms"].as_str()
        ),
        ("429", "2000.0")
    );
    assert_eq!(lines[0].fields["server_request_id"], "theirs");
    assert_eq!(
        (&*lines[1].fields["error.type"], &*lines[1].fields["delivery"]),
        ("reset", "maybe_processed")
    );
    assert_eq!(lines[2].fields["network.protocol.version"], "1.1");
    assert_eq!(lines[2].fields["http.response.status_code"], "200");
    assert_eq!(lines[2].fields["elapsed_ms"].parse::<f64>().unwrap().round(), 30.0);
}

#[tokio::test(start_paused = true)]
async fn the_words_for_a_failed_attempt_are_the_documented_ones() {
    for (answer, word, delivery) in [
        (Refused, "connect_refused", "not_sent"),
        (Io(ConnectionReset), "reset", "maybe_processed"),
        (NoResponse, "attempt_timeout", "maybe_processed"),
    ] {
        let capture = log_of(LevelFilter::DEBUG, &[answer, Status(200)], "GET", URI).await;
        let fields = &capture.of(ATTEMPT)[0].fields;
        assert_eq!((&*fields["error.type"], &*fields["delivery"]), (word, delivery));
    }
    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let bucket = TokenBucket::new(Quota::per_minute(1).unwrap());
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket).with_max_wait(secs(1)))
        .service(ScriptedService::new([Status(503)]));
    service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(capture.of(ATTEMPT)[1].fields["error.type"], "rate_limited");
    assert_eq!(capture.of(CALL)[0].fields["error.type"], "rate_limited");

    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let auth = AuthLayer::new(ApiKey::new("k").unwrap(), Origin::parse(URI).unwrap()).unwrap();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(auth)
        .service(ScriptedService::new([Status(200)]));
    service.oneshot(get("/v1")).await.unwrap_err();
    assert_eq!(capture.of(CALL)[0].fields["error.type"], "auth");
}

#[tokio::test(start_paused = true)]
async fn a_back_off_and_the_end_of_trying_are_lines_at_debug() {
    let capture = log_of(LevelFilter::DEBUG, &[Status(503), Status(503), Status(503)], "GET", URI).await;
    let lines = capture.of(RETRY);
    let shown: Vec<_> = lines.iter().map(|line| (line.level, line.message.as_str(), names(line))).collect();
    let backed_off = (Level::DEBUG, "retrying", sorted(["delay_ms", "reason"]));
    let ended = (Level::DEBUG, "no further attempt", sorted(["ended"]));
    assert_eq!(shown, [backed_off.clone(), backed_off, ended]);
    assert_eq!(lines[2].fields["ended"], "exhausted");
    let delay: f64 = lines[0].fields["delay_ms"].parse().unwrap();
    assert!((50.0..=100.0).contains(&delay));
    assert_eq!(lines[0].fields["reason"], "transient");
    let success = log_of(LevelFilter::DEBUG, &[Status(200)], "GET", URI).await;
    assert!(success.of(RETRY).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_limiters_waits_are_lines_at_debug_and_a_servers_pause_one_at_info() {
    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates".to_owned()))
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::unlimited()))
        .service(ScriptedService::new([Headers(429, &[("retry-after", "3")]), Status(200)]));
    let _ = tokio::join!(service.clone().oneshot(get(URI)), async {
        tokio::time::sleep(millis(1)).await;
        service.oneshot(get(URI)).await
    });
    let lines = capture.of(LIMIT);
    assert_eq!((lines[0].level, names(&lines[0])), (Level::INFO, vec!["pause_ms", "service"]));
    assert_eq!(lines[0].fields["pause_ms"], "3000.0");
    assert!(lines.len() > 1, "the second call waited");
    for line in &lines[1..] {
        assert_eq!((line.level, names(line)), (Level::DEBUG, vec!["service", "waited_ms"]));
    }
    assert!(lines.iter().all(|line| line.fields["service"] == "rates"));
    let calls = capture.of(CALL);
    let waited: Vec<_> = calls.iter().filter_map(|line| line.fields.get("waited_ms").cloned()).collect();
    assert!(waited.iter().any(|waited| waited.parse::<f64>().unwrap() >= 2_999.0), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn logs_no_attempt_at_level_info() {
    let capture = log_of(LevelFilter::INFO, &[Status(503), Status(503), Status(503)], "GET", URI).await;
    let lines = capture.ours();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((lines[0].target.as_str(), lines[0].level), (CALL, Level::WARN));
    let capture = log_of(LevelFilter::INFO, &[Status(503), Status(200)], "GET", URI).await;
    assert_eq!((capture.ours().len(), capture.of(CALL).len()), (1, 1));
    let capture = log_of(LevelFilter::WARN, &[Status(503), Status(200)], "GET", URI).await;
    assert!(capture.ours().is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_query_key_header_body_or_user_info_is_ever_logged() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let secret = |answer: &[Scripted]| ScriptedService::new(answer.iter().copied());
    let uri = "https://me:s3cret-user@api.example.com/v1?token=s3cret-query";
    let answers: [&[Scripted]; 5] = [
        &[Headers(200, &[("set-cookie", "s3cret-cookie")])],
        &[Headers(429, &[("retry-after", "1"), ("x-hint", "s3cret-hint")]), Status(404)],
        &[Refused],
        &[Io(ConnectionReset)],
        &[NoResponse],
    ];
    for in_query in [false, true] {
        for answers in answers {
            let mut preset =
                preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("s3cret-key").unwrap());
            if in_query {
                preset = preset.with_key_placement("query:api_key".parse().unwrap());
            }
            let service = preset.layer().unwrap().layer(secret(answers));
            let mut request = request("GET", uri);
            request.headers_mut().insert("x-private", HeaderValue::from_static("s3cret-header"));
            *request.body_mut() = Content::from("s3cret-body");
            let _ = service.oneshot(request).await;
        }
    }
    let shown = capture.text();
    assert_eq!(capture.of(CALL).len(), 10);
    assert!(capture.of(ATTEMPT).len() > 10);
    assert!(!shown.contains("s3cret") && !shown.contains("token="), "{shown}");
    assert!(capture.of(CALL).iter().all(|line| line.fields["url.path"] == "/v1"));
    let spans = capture.spans("call");
    assert!(spans.iter().all(|span| span.fields["service"] == "currency_rates"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_its_caller_drops_ends_without_a_line() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let mut call =
        task::spawn(RequestIdLayer::new().layer(ScriptedService::new([NoResponse])).oneshot(get(URI)));
    assert_pending!(call.poll());
    drop(call);
    assert!(capture.ours().is_empty());
}
