//! The presets: errors at construction, shared limiters, and the whole stack on paused time.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod fields;
mod headers;
mod limiter;
#[path = "../support/mod.rs"]
mod support;

use std::{
    convert::Infallible,
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use http_body_util::Empty;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_outbound::{
    ApiKey, BoxError, Client, Error, ExponentialBackoff, InvalidConfig, Jitter, Quota, Report,
    auth::{AppCredentials, FreshKey, KeyPlacement, RefreshingKey, Sign, Signing},
    body::{IdleBody, ReplayBody},
    call::{DelayReason, Outcome, StopReason},
    preset,
    retry::RetryLayer,
    stack::StackBuilder,
    test_util::Arrivals,
};

use crate::support::server::{Seen, Server, Wire, reply, within};

const KEY: &str = "k3y-of-the-tests";
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

type Make = fn(&str) -> Result<StackBuilder, InvalidConfig>;

const PRESETS: [(&str, Make); 3] = [
    ("CURRENCY_RATES_API_KEY", preset::currency_rates),
    ("EMAIL_DELIVERY_API_KEY", preset::email_delivery),
    ("REALTIME_MESSAGING_API_KEY", preset::realtime_messaging),
];

fn key() -> ApiKey {
    ApiKey::new(KEY).unwrap()
}

fn keyed(base_url: &str) -> StackBuilder {
    preset::currency_rates(base_url).unwrap().with_api_key(key())
}

async fn server() -> Server {
    Server::with_statuses(Wire::Http1, [200]).await
}

async fn get(client: &Client, path: &str) -> Result<StatusCode, Error> {
    within(client.get(path)).await.map(|response| response.status())
}

async fn only_seen(server: &Server) -> Seen {
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    seen[0].clone()
}

// Errors at construction.

#[test]
fn the_error_names_a_missing_variable() {
    for (variable, make) in PRESETS {
        let preset = make("http://localhost").unwrap();
        let error = preset.clone().with_key_env("TOWER_OUTBOUND_NOT_SET").client().unwrap_err();
        assert_eq!(error.field(), "api key");
        assert!(error.to_string().contains("TOWER_OUTBOUND_NOT_SET"), "{error}");
        // The environment of the test may have the real variable.
        if env::var_os(variable).is_none() {
            let error = preset.layer().unwrap_err();
            assert!(error.to_string().contains(variable), "{error}");
        }
    }
}

#[test]
fn the_error_for_a_missing_key_names_the_alternatives() {
    let preset =
        StackBuilder::new("https://host").unwrap().with_name("custom").with_key_env("TOWER_OUTBOUND_NOT_SET");
    let error = preset.layer().unwrap_err().to_string();
    for way in
        ["TOWER_OUTBOUND_NOT_SET", "with_api_key", "with_key_env", "with_key_file", "without_credential"]
    {
        assert!(error.contains(way), "{way}: {error}");
    }
}

#[tokio::test]
async fn sends_no_credential_where_none_is_needed() {
    let server = server().await;
    let preset =
        StackBuilder::new(&server.url()).unwrap().with_name("custom").with_key_env("TOWER_OUTBOUND_NOT_SET");
    let client = preset.clone().without_credential().client().unwrap();
    assert_eq!(get(&client, "/v1").await.unwrap(), 200);
    let seen = only_seen(&server).await;
    assert_eq!((seen.header("authorization"), seen.path_and_query()), (None, "/v1"));
    let keyed_again = preset.without_credential().with_api_key(key()).client().unwrap();
    get(&keyed_again, "/").await.unwrap();
    assert!(server.seen()[1].header("authorization").is_some(), "the later setter wins");
}

#[test]
fn needs_no_tls_without_a_credential() {
    let elsewhere = tower_outbound::auth::Origin::parse("http://elsewhere.example.com").unwrap();
    let preset =
        StackBuilder::new("http://api.example.com").unwrap().with_name("custom").without_credential();
    assert!(preset.client().is_ok());
    let allowed = preset.with_allowed_origin(elsewhere);
    assert!(allowed.layer().is_ok());
}

#[test]
fn rejects_a_name_that_logs_cannot_show() {
    let named = |name: &str| keyed("https://host").with_name(name);
    for (name, valid) in [("", false), ("a b", false), ("a\n", false), ("é", false), ("a", true)] {
        assert_eq!(
            named(name).layer().err().map(|error| error.field().to_owned()),
            (!valid).then_some("name".to_owned()),
            "{name:?}"
        );
    }
    assert!(named(&"n".repeat(253)).layer().is_ok());
    let error = named(&"n".repeat(254)).layer().unwrap_err().to_string();
    assert!(error.contains("expected 1 to 253 visible ascii characters"), "{error}");
}

#[test]
fn rejects_an_attempt_timeout_longer_than_the_total_timeout() {
    let preset = keyed("https://host").with_total_timeout(SECOND).with_attempt_timeout(2 * SECOND);
    let error = preset.layer().unwrap_err();
    assert_eq!((error.field(), error.value()), ("attempt timeout", "2s"));
    assert!(error.to_string().contains("1s"), "{error}");
    assert!(preset.with_attempt_timeout(SECOND).layer().is_ok(), "the same length is allowed");
    assert!(
        keyed("https://host").with_total_timeout(SECOND).layer().is_ok(),
        "the default attempt timeout is shortened"
    );
}

#[test]
fn rejects_timeouts_of_zero() {
    let attempt = keyed("https://host").with_attempt_timeout(Duration::ZERO);
    assert_eq!(attempt.layer().unwrap_err().field(), "attempt timeout");
    assert_eq!(attempt.with_total_timeout(Duration::ZERO).layer().unwrap_err().field(), "total timeout");
    let body = keyed("https://host").with_body_idle_timeout(Duration::ZERO);
    assert_eq!(body.layer().unwrap_err().field(), "body idle timeout");
}

#[test]
fn sends_a_key_without_tls_only_to_loopback_or_if_allowed() {
    for url in ["http://api.example.com", "http://10.0.0.1:8080", "http://127.0.0.1.example.com"] {
        let preset = keyed(url);
        let error = preset.client().unwrap_err();
        assert!(error.to_string().contains(url), "{error}");
        assert!(preset.clone().with_key_placement("query:key".parse().unwrap()).layer().is_err());
        assert!(preset.clone().with_authorize(|_: &mut request::Parts| Ok(())).layer().is_err());
        assert!(preset.with_plaintext().client().is_ok());
    }
    for url in ["https://api.example.com", "http://localhost:1", "http://127.0.0.1", "http://[::1]:8080/api"]
    {
        assert!(keyed(url).layer().is_ok(), "{url}");
    }
}

#[tokio::test]
async fn sends_the_key_without_tls_if_allowed() {
    let layer = keyed("http://api.example.com").with_plaintext().layer().unwrap();
    let service =
        ServiceBuilder::new().layer(layer).service_fn(|request: Request<ReplayBody<_>>| async move {
            assert_eq!(request.headers()["authorization"], format!("Bearer {KEY}"));
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
    service.oneshot(to("http://api.example.com/v1")).await.unwrap();
}

#[test]
fn rejects_an_invalid_base_url() {
    for url in [
        "",
        "api.example.com",
        "api.example.com:443",
        "/v1",
        "//api.example.com",
        "https:",
        "https://",
        "https:///v1",
        "ftp://api.example.com",
        "wss://api.example.com",
        "https://api example.com",
        "https://api.example.com/a b",
        "https://me:s3cret@api.example.com",
        "https://s3cret@api.example.com",
        "https://api.example.com?key=s3cret",
        "https://api.example.com/v1?key=s3cret",
        "https://api.example.com/#s3cret",
        "https://api.example.com/a/../b",
        "https://api.example.com/%2e%2e/b",
    ] {
        for (_, make) in PRESETS {
            let error = make(url).expect_err(url);
            assert_eq!(error.field(), "base url", "{url}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}

/// Otherwise the key would go to the default port of the scheme, where another server may listen.
#[test]
fn rejects_an_invalid_port() {
    for url in ["https://api.example.com:99999", "https://api.example.com:port/v1", "http://127.0.0.1:70000"]
    {
        let error = preset::currency_rates(url).map(drop).expect_err(url);
        assert_eq!(error.field(), "base url");
    }
}

#[test]
fn rejects_a_query_parameter_without_a_name() {
    let error = KeyPlacement::query("").unwrap_err();
    assert_eq!(error.field(), "query parameter");
}

// How the credential travels.

#[tokio::test]
async fn the_key_comes_from_the_environment() {
    let server = server().await;
    // A variable that cargo sets for every test.
    let client =
        preset::email_delivery(&server.url()).unwrap().with_key_env("CARGO_PKG_NAME").client().unwrap();
    get(&client, "/").await.unwrap();
    assert_eq!(only_seen(&server).await.header("authorization"), Some("Bearer tower-outbound"));
}

#[tokio::test]
async fn a_query_key_goes_into_its_parameter_and_nowhere_else() {
    // In either order of the setters.
    for preset in [preset::currency_rates, preset::email_delivery] {
        for query_first in [true, false] {
            let server = server().await;
            let preset = preset(&server.url()).unwrap();
            let client = match query_first {
                true => preset
                    .with_key_placement("query:api_key".parse().unwrap())
                    .with_api_key(ApiKey::new("a&b").unwrap()),
                false => preset
                    .with_api_key(ApiKey::new("a&b").unwrap())
                    .with_key_placement("query:api_key".parse().unwrap()),
            }
            .client()
            .unwrap();
            get(&client, "/v1?q=1").await.unwrap();
            let seen = only_seen(&server).await;
            assert_eq!(seen.path_and_query(), "/v1?q=1&api_key=a%26b");
            assert_eq!(seen.header("authorization"), None);
            assert!(seen.headers.values().all(|value| !value.to_str().unwrap().contains("a&b")));
        }
    }
}

#[tokio::test]
async fn calls_the_authorize_closure_for_every_attempt() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let credentials = AppCredentials::new("app", key(), ApiKey::new("s3cret").unwrap()).unwrap();
    let client = preset::realtime_messaging(&server.url())
        .unwrap()
        .with_retry(RetryLayer::new().with_backoff(ExponentialBackoff::new(MILLI, MILLI).unwrap()))
        .with_authorize(move |head| {
            let signature = format!("{}{}{}", head.method, head.uri.path(), credentials.secret().expose());
            head.headers.insert("x-app-id", credentials.app_id().parse()?);
            head.headers.insert("x-key", credentials.key().expose().parse()?);
            head.headers.insert("x-signature", signature.parse()?);
            Ok(())
        })
        .client()
        .unwrap();
    assert_eq!(get(&client, "/v1/events").await.unwrap(), 200);
    assert_eq!(server.seen().len(), 2);
    for seen in server.seen() {
        assert_eq!(seen.header("x-app-id"), Some("app"));
        assert_eq!(seen.header("x-key"), Some(KEY));
        assert_eq!(seen.header("x-signature"), Some("GET/v1/eventss3cret"));
        assert_eq!(seen.header("authorization"), None);
    }
}

#[tokio::test]
async fn replaces_a_rejected_key_and_resends_the_request_once() {
    let server = Server::start(Wire::Http1, |number, seen| async move {
        let status = if seen.header("authorization") == Some("Bearer key-2") { 200 } else { 401 };
        Some(reply(status, format!("answer {number}")))
    })
    .await;
    let given = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&given);
    let client = preset::email_delivery(&server.url())
        .unwrap()
        .with_keys(RefreshingKey::new(move || {
            let key = ApiKey::new(format!("key-{}", count.fetch_add(1, Ordering::Relaxed) + 1));
            async { Ok::<_, BoxError>(FreshKey::new(key?)) }
        }))
        .client()
        .unwrap();
    let response = within(client.post("/v1/resources", "a letter")).await.unwrap();
    assert_eq!(response.status(), 200);
    let report = Report::from_response(&response).unwrap();
    let attempt = &report.attempts()[0];
    assert_eq!((report.attempt_count(), report.stop_reason()), (2, Some(StopReason::Success)));
    assert_eq!((attempt.delay, attempt.delay_reason), (Some(Duration::ZERO), Some(DelayReason::KeyReplaced)));
    let seen = server.seen();
    assert!(
        seen.iter().map(|seen| seen.header("authorization")).eq([Some("Bearer key-1"), Some("Bearer key-2")])
    );
    assert!(seen.iter().all(|seen| seen.method == "POST" && seen.body == "a letter"));
    assert_eq!(seen[0].header("x-request-id"), seen[1].header("x-request-id"));
    assert_eq!(server.connections(), 1, "the body of the 401 was read");
    // Later calls send the new key.
    assert_eq!(get(&client, "/").await.unwrap(), 200);
    assert_eq!((server.seen().len(), given.load(Ordering::Relaxed)), (3, 2));
}

#[tokio::test]
async fn sends_nothing_if_the_authorize_closure_fails() {
    let server = server().await;
    let client = keyed(&server.url())
        .with_authorize(|_: &mut request::Parts| Err("the vault is shut".into()))
        .client()
        .unwrap();
    let error = get(&client, "/").await.unwrap_err();
    assert!(error.is_auth(), "{error:?}");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the vault is shut");
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(StopReason::NotRetryable)));
    assert_eq!(server.connections(), 0);
}

#[test]
fn debug_shows_no_key() {
    let credentials = AppCredentials::new("app", key(), key()).unwrap();
    let preset = keyed("http://localhost");
    for preset in [
        preset.clone(),
        preset.clone().with_key_placement("query:key".parse().unwrap()),
        preset.with_authorize(move |_| {
            let _ = &credentials;
            Ok(())
        }),
    ] {
        let layer = preset.layer().unwrap();
        let client = preset.client().unwrap();
        let shown = format!("{preset:?} {preset:#?} {layer:?} {client:?}");
        assert!(
            shown.contains("StackBuilder") && shown.contains("localhost") && !shown.contains(KEY),
            "{shown}"
        );
    }
}

// Shared limiters. Two permits, and the next one in an hour.

fn two_an_hour() -> Quota {
    Quota::new(3, HOUR).unwrap().with_burst(2).unwrap().without_margin()
}

#[tokio::test]
async fn clones_and_clients_of_one_preset_share_one_limiter() {
    let server = server().await;
    let preset = keyed(&server.url()).with_quota(two_an_hour());
    let (first, second) = (preset.client().unwrap(), preset.clone().client().unwrap());
    assert_eq!(get(&first, "/").await.unwrap(), 200);
    assert_eq!(get(&second, "/").await.unwrap(), 200);
    for client in [&first, &second, &first.clone(), &preset.client().unwrap()] {
        let error = get(client, "/").await.unwrap_err();
        assert!(error.is_rate_limited(), "{error:?}");
        let wait = error.retry_after().unwrap();
        assert!(wait > HOUR - MINUTE && wait <= HOUR, "{wait:?}");
        assert_eq!(error.report().unwrap().attempts()[0].outcome, Some(Outcome::Refused));
    }
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn presets_and_new_quotas_have_their_own_limiters() {
    let server = server().await;
    let preset = keyed(&server.url()).with_quota(two_an_hour());
    let others = [keyed(&server.url()).with_quota(two_an_hour()), preset.clone().with_quota(two_an_hour())];
    for preset in [preset].iter().chain(&others) {
        let client = preset.client().unwrap();
        assert_eq!(get(&client, "/").await.unwrap(), 200);
        assert_eq!(get(&client, "/").await.unwrap(), 200);
        assert!(get(&client, "/").await.unwrap_err().is_rate_limited());
    }
    assert_eq!(server.seen().len(), 6);
}

// The whole stack over a custom service, on paused time, which is exact and instant.

const MILLI: Duration = Duration::from_millis(1);

fn to(uri: &str) -> Request<Empty<Bytes>> {
    Request::get(uri).body(Empty::new()).unwrap()
}

/// The scripted behaviour of the service for one request.
#[derive(Clone, Copy)]
enum Does {
    Answers(u16),
    AsksFor { seconds: u64 },
    Hangs,
}

type Stack = BoxCloneService<Request<Empty<Bytes>>, Response<IdleBody<Empty<Bytes>>>, Error>;
type Times = Arc<Mutex<Vec<Instant>>>;

/// The preset's stack over a service that follows `script`, and the arrival time of each request.
fn stack<const N: usize>(preset: &StackBuilder, script: [Does; N]) -> (Stack, Times) {
    let times = Times::default();
    let came = Arc::clone(&times);
    let service = tower::service_fn(move |_: Request<ReplayBody<Empty<Bytes>>>| {
        let number = {
            let mut came = came.lock().unwrap();
            came.push(Instant::now());
            came.len()
        };
        async move {
            let mut response = Response::new(Empty::new());
            match script[(number - 1).min(N - 1)] {
                Does::Answers(status) => *response.status_mut() = StatusCode::from_u16(status).unwrap(),
                Does::AsksFor { seconds } => {
                    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                    response.headers_mut().insert("retry-after", seconds.into());
                }
                Does::Hangs => std::future::pending().await,
            }
            Ok::<_, Infallible>(response)
        }
    });
    let stack = ServiceBuilder::new().layer(preset.layer().unwrap()).service(service);
    (BoxCloneService::new(stack), times)
}

/// Delays of exactly 100 ms and 200 ms. Two permits immediately, then one per minute.
fn exact() -> StackBuilder {
    let backoff = ExponentialBackoff::new(100 * MILLI, SECOND).unwrap().with_jitter(Jitter::none());
    keyed("https://host")
        .with_quota(Quota::new(3, MINUTE).unwrap().with_burst(2).unwrap().without_margin())
        .with_retry(RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff))
}

fn since(start: Instant, times: &Mutex<Vec<Instant>>) -> Vec<Duration> {
    times.lock().unwrap().iter().map(|time| *time - start).collect()
}

#[tokio::test(start_paused = true)]
async fn limit_retry_and_timeout_work_together() {
    let preset = exact().with_total_timeout(2 * MINUTE);
    let (service, times) = stack(&preset, [Does::Answers(503), Does::Hangs, Does::Answers(200)]);
    let start = Instant::now();
    let response = service.oneshot(to("https://host/v1")).await.unwrap();

    // An immediate 503, 100 ms of backoff, 10 s of attempt timeout, 200 ms of backoff, and the wait for a permit.
    assert_eq!(since(start, &times), [Duration::ZERO, 100 * MILLI, MINUTE]);
    assert_eq!((response.status().as_u16(), start.elapsed()), (200, MINUTE));
    let report = response.extensions().get::<Report>().unwrap();
    let attempts = report.attempts();
    let outcomes: Vec<_> = attempts.iter().filter_map(|attempt| attempt.outcome).collect();
    let unavailable = Outcome::Response(StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(outcomes, [unavailable, Outcome::Timeout, Outcome::Response(StatusCode::OK)]);
    assert_eq!([attempts[0].delay, attempts[1].delay], [Some(100 * MILLI), Some(200 * MILLI)]);
    assert_eq!(attempts[1].ended, Some(10_100 * MILLI));
    assert_eq!(attempts[2].started, 10_300 * MILLI);
    assert_eq!((attempts[2].waited, report.waited()), (49_700 * MILLI, 49_700 * MILLI));
    assert_eq!(report.stop_reason(), Some(StopReason::Success));
}

#[tokio::test(start_paused = true)]
async fn refuses_a_retry_immediately_if_its_permit_would_be_too_late() {
    let preset = exact().with_total_timeout(MINUTE / 2);
    let (service, times) = stack(&preset, [Does::Answers(503), Does::Hangs]);
    let start = Instant::now();
    let error = service.oneshot(to("https://host/v1")).await.unwrap_err();

    assert_eq!(since(start, &times), [Duration::ZERO, 100 * MILLI]);
    assert_eq!(start.elapsed(), 10_300 * MILLI, "not the 30 s of the deadline");
    // The error has the failure of the last attempt as its cause. The report has the reason why no attempt followed.
    assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
    assert_eq!(error.retry_after(), Some(49_700 * MILLI));
    assert_eq!(error.report().unwrap().attempts()[2].outcome, Some(Outcome::Refused));
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
}

#[tokio::test(start_paused = true)]
async fn bounds_each_attempt_and_the_whole_call() {
    let preset = exact().with_quota(Quota::per_minute(1000).unwrap());
    let (service, times) = stack(&preset, [Does::Hangs]);
    let start = Instant::now();
    let error = service.oneshot(to("https://host/v1")).await.unwrap_err();
    assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
    assert_eq!(since(start, &times), [Duration::ZERO, 10_100 * MILLI, 20_300 * MILLI]);
    assert_eq!(start.elapsed(), 30_300 * MILLI);
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Exhausted));

    let (service, times) = stack(&preset.with_total_timeout(15 * SECOND), [Does::Hangs]);
    let start = Instant::now();
    let error = service.oneshot(to("https://host/v1")).await.unwrap_err();
    assert!(error.is_timeout() && error.is_deadline(), "{error:?}");
    assert_eq!((since(start, &times).len(), start.elapsed()), (2, 15 * SECOND));
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
}

#[tokio::test(start_paused = true)]
async fn a_requested_delay_applies_to_every_caller() {
    let preset = exact().with_quota(Quota::per_minute(1000).unwrap());
    let (service, times) = stack(&preset, [Does::AsksFor { seconds: 7 }, Does::Answers(200)]);
    let start = Instant::now();
    let told = tokio::spawn(service.clone().oneshot(to("https://host/v1")));
    tokio::time::sleep(SECOND).await;
    let other = service.oneshot(to("https://host/v2")).await.unwrap();
    assert_eq!((other.status().as_u16(), told.await.unwrap().unwrap().status().as_u16()), (200, 200));
    let times = since(start, &times);
    assert_eq!(times.len(), 3);
    assert!(times[1..].iter().all(|time| *time >= 7 * SECOND && *time < 8 * SECOND), "{times:?}");
}

/// Counts the requests of each preset in ten minutes, in windows of the documented limit.
#[tokio::test(start_paused = true)]
async fn the_documented_quotas_hold_in_every_window() {
    for (make, limit) in [(preset::currency_rates as Make, 100), (preset::email_delivery, 1000)] {
        let preset = make("https://host").unwrap().with_api_key(key()).with_total_timeout(HOUR);
        let (service, times) = stack(&preset, [Does::Answers(200)]);
        let calls = (0..4 * limit).map(|_| service.clone().oneshot(to("https://host/")));
        for answer in futures_util::future::join_all(calls).await {
            assert_eq!(answer.unwrap().status(), 200);
        }
        let times = times.lock().unwrap();
        assert_eq!(times.len(), 4 * limit);
        let documented = Quota::per_minute(limit as u32).unwrap();
        times.iter().copied().collect::<Arrivals>().assert_within(documented);
    }
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_without_a_quota() {
    let preset = preset::realtime_messaging("https://host").unwrap().with_api_key(key());
    let (service, times) = stack(&preset, [Does::Answers(200)]);
    let start = Instant::now();
    let calls = (0..5000).map(|_| service.clone().oneshot(to("https://host/")));
    assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_ok));
    assert_eq!((times.lock().unwrap().len(), start.elapsed()), (5000, Duration::ZERO));
}

#[tokio::test]
async fn sends_no_key_to_another_origin() {
    let layer = keyed("https://host").layer().unwrap();
    let service =
        ServiceBuilder::new().layer(layer).service_fn(|request: Request<ReplayBody<_>>| async move {
            assert!(!request.headers().contains_key("authorization"));
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
    service.oneshot(to("https://elsewhere/v1")).await.unwrap();
}

#[test]
fn rejects_an_invalid_transport() {
    use tower_outbound::client::Transport;

    for (transport, field) in [
        (Transport::new().with_idle_timeout(Duration::MAX), "idle timeout"),
        (Transport::new().with_idle_timeout(Duration::ZERO), "idle timeout"),
        (Transport::new().with_connect_timeout(Duration::ZERO), "connect timeout"),
    ] {
        let error = keyed("https://host").client_with_transport(transport).unwrap_err();
        assert_eq!(error.field(), field);
    }
}

#[test]
fn a_stack_gives_back_its_inner_service() {
    #[derive(Debug, Clone, PartialEq)]
    struct Inner(u8);

    struct Signer;

    impl Sign for Signer {
        fn sign<'a>(&'a self, _: &'a mut request::Parts, _: Option<&'a Bytes>) -> Signing<'a> {
            Box::pin(async { Ok(()) })
        }
    }

    let preset = keyed("https://host");
    for preset in [preset.clone(), preset.clone().with_signature(Signer), preset.without_credential()] {
        let mut stack = preset.layer().unwrap().layer(Inner(1));
        assert_eq!(stack.get_ref(), &Inner(1));
        stack.get_mut().0 = 2;
        // A clone has a clone of the inner service.
        assert_eq!(stack.clone().into_inner(), Inner(2));
        assert_eq!(stack.into_inner(), Inner(2));
    }
}
