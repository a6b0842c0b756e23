//! The auth layer, over doubles: the key to its own origin, and nowhere else.

use crate::support::{self};
use std::{
    error::Error as _,
    fmt,
    future::Future as _,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::support::{Broken, Content, Scripted::*, ScriptedService, get, request};
use http::{
    HeaderValue, Request, Response, Uri,
    header::{AUTHORIZATION, LOCATION},
    request::Parts,
};
use http_body_util::Full;
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    ApiKey, Body, BoxError, Error, Report,
    auth::{AuthLayer, FreshKey, KeyPlacement, KeySource, Origin, RefreshingKey},
    call::{Outcome, StopReason},
    preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
};

const KEY: &str = "s3cret-0123456789";
const URI: &str = "https://api.example.com/v1";

fn key() -> ApiKey {
    ApiKey::new(KEY).unwrap()
}

fn origin(url: &str) -> Origin {
    Origin::parse(url).unwrap()
}

fn bearer(url: &str) -> AuthLayer {
    AuthLayer::new(key(), origin(url)).unwrap()
}

fn query_key() -> AuthLayer {
    bearer(URI).with_placement("query:api_key".parse().unwrap())
}

fn own(credential: impl Fn(&mut Parts) -> Result<(), BoxError> + Send + Sync + 'static) -> AuthLayer {
    AuthLayer::from_fn(credential, origin(URI)).unwrap()
}

/// The head that the inner service saw.
async fn sent(layer: &AuthLayer, request: Request<Content>) -> Parts {
    let probe = ScriptedService::new([Status(200)]);
    layer.layer(probe.clone()).oneshot(request).await.unwrap();
    probe.seen().remove(0).head
}

#[tokio::test]
async fn the_key_goes_to_its_own_scheme_host_and_port_and_nowhere_else() {
    let (https, odd, plain) =
        ("https://api.example.com", "https://api.example.com:8443", "http://127.0.0.1:8080");
    for (own, to, has_key) in [
        (https, "https://api.example.com", true),
        (https, "https://api.example.com/", true),
        (https, "https://api.example.com/v1/x?q=1", true),
        (https, "https://api.example.com:443/v1", true),
        (https, "https://API.Example.COM/v1", true),
        ("https://API.example.com:443/base", "https://api.example.com/v1", true),
        (https, "http://api.example.com/v1", false),
        (https, "http://api.example.com:443/v1", false),
        (https, "https://api.example.com:8443/v1", false),
        (https, "https://api.example.com:80/v1", false),
        (https, "https://example.com/v1", false),
        (https, "https://www.api.example.com/v1", false),
        (https, "https://api.example.com.evil.test/v1", false),
        (https, "https://api.example.com./v1", false),
        (https, "https://evil.test/https://api.example.com", false),
        (https, "https://evil.test/?u=https://api.example.com", false),
        (https, "https://api.example.com@evil.test/", false),
        (https, "https://evil.test:443/", false),
        (odd, "https://api.example.com:8443/v1", true),
        (odd, "https://api.example.com/v1", false),
        (odd, "https://api.example.com:443/v1", false),
        (plain, "http://127.0.0.1:8080/v1", true),
        (plain, "http://127.0.0.1:8081/v1", false),
        (plain, "http://127.0.0.1/v1", false),
        (plain, "https://127.0.0.1:8080/v1", false),
        (plain, "http://localhost:8080/v1", false),
        ("http://localhost", "http://localhost:80/v1", true),
        ("http://[::1]:8080", "http://[::1]:8080/v1", true),
        ("http://[::1]:8080", "http://127.0.0.1:8080/v1", false),
    ] {
        let head = sent(&bearer(own), get(to)).await;
        let value = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let expected = has_key.then(|| format!("Bearer {KEY}"));
        assert_eq!(value, expected.as_deref().map(str::as_bytes), "{own} {to}");
        assert_eq!(head.uri, to.parse::<Uri>().unwrap(), "the uri is passed on as it is");
    }
}

#[tokio::test]
async fn the_value_is_marked_sensitive() {
    let head = sent(&bearer(URI), get(URI)).await;
    assert!(head.headers[AUTHORIZATION].is_sensitive());
    assert_eq!(head.headers.len(), 1);
}

#[tokio::test]
async fn the_callers_own_authorization_is_kept() {
    let mut own = get(URI);
    own.headers_mut().insert(AUTHORIZATION, HeaderValue::from_static("Basic b3du"));
    let head = sent(&bearer(URI), own).await;
    assert!(head.headers.get_all(AUTHORIZATION).iter().eq(["Basic b3du"]));
}

#[tokio::test]
async fn the_rest_of_the_request_is_passed_on() {
    let mut request = request("DELETE", URI);
    request.headers_mut().insert("x-other", HeaderValue::from_static("1"));
    request.extensions_mut().insert(7_u8);
    let probe = ScriptedService::new([Status(200)]);
    bearer(URI).layer(probe.clone()).oneshot(request).await.unwrap();
    let seen = probe.seen().remove(0);
    assert_eq!((seen.head.method.as_str(), &seen.head.headers["x-other"]), ("DELETE", &"1".parse().unwrap()));
    assert_eq!(seen.head.extensions.get(), Some(&7_u8));
    assert_eq!(seen.body.unwrap(), "hello");
}

#[tokio::test]
async fn a_uri_that_names_no_origin_is_an_error_and_nothing_is_sent() {
    let probe = ScriptedService::new([Status(200)]);
    for uri in ["/v1/x", "/", "*"] {
        let error = bearer(URI).layer(probe.clone()).oneshot(get(uri)).await.unwrap_err();
        assert!(error.is_auth() && !error.is_service(), "{error:?}");
        assert_eq!(error.to_string(), "credential could not be attached");
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("names no origin"), "{cause}");
    }
    assert_eq!(probe.calls(), 0);
    // A host and a port without a scheme is none of ours: passed on, as `CONNECT` has it, without the key.
    let head = sent(&bearer(URI), request("CONNECT", "api.example.com:443")).await;
    assert!(!head.headers.contains_key(AUTHORIZATION));
}

#[test]
fn an_origin_that_everybody_can_read_is_refused_at_construction() {
    for (url, shown) in [
        ("http://api.example.com", "http://api.example.com:80"),
        ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
        ("http://192.168.0.1/v1", "http://192.168.0.1:80"),
        ("http://0.0.0.0:80", "http://0.0.0.0:80"),
        ("http://[::]:80", "http://[::]:80"),
        ("http://localhost.evil.test", "http://localhost.evil.test:80"),
        ("http://127.0.0.1.evil.test", "http://127.0.0.1.evil.test:80"),
    ] {
        let error = AuthLayer::new(key(), origin(url)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "invalid origin `{shown}`: expected https, or loopback, or Origin::with_plaintext, for a key to be sent there"
            )
        );
        assert_eq!(error.field(), "origin");
    }
}

#[tokio::test]
async fn with_plaintext_sends_the_key_without_tls() {
    let url = "http://gateway.internal:8080";
    let layer = AuthLayer::new(key(), origin(url).with_plaintext()).unwrap();
    assert!(sent(&layer, get(url)).await.headers.contains_key(AUTHORIZATION));
    for other in ["http://other.internal:8080", "https://gateway.internal:8080", "http://gateway.internal"] {
        assert!(!sent(&layer, get(other)).await.headers.contains_key(AUTHORIZATION), "{other}");
    }
}

#[tokio::test]
async fn loopback_needs_no_tls_in_any_of_its_forms() {
    for url in [
        "http://localhost",
        "http://LOCALHOST:3000",
        "http://127.0.0.1",
        "http://127.255.255.254:1",
        "http://[::1]",
        "http://[::1]:8080/v1",
        "http://[0:0:0:0:0:0:0:1]",
    ] {
        assert!(sent(&bearer(url), get(url)).await.headers.contains_key(AUTHORIZATION), "{url}");
    }
}

#[tokio::test]
async fn a_query_key_goes_into_the_query_of_its_own_origin_only() {
    let layer = query_key();
    for (uri, expected) in [
        ("https://api.example.com/v1", "https://api.example.com/v1?api_key=s3cret-0123456789"),
        ("https://api.example.com", "https://api.example.com/?api_key=s3cret-0123456789"),
        ("https://api.example.com/v1?q=1", "https://api.example.com/v1?q=1&api_key=s3cret-0123456789"),
        ("https://api.example.com/v1?api_key=own", "https://api.example.com/v1?api_key=own"),
        (
            "https://api.example.com/v1?my_api_key=1",
            "https://api.example.com/v1?my_api_key=1&api_key=s3cret-0123456789",
        ),
        ("https://api.example.com:8443/v1?q=1", "https://api.example.com:8443/v1?q=1"),
        ("http://api.example.com/v1", "http://api.example.com/v1"),
        ("https://other.example.com/v1", "https://other.example.com/v1"),
    ] {
        let head = sent(&layer, get(uri)).await;
        assert_eq!(head.uri, expected.parse::<Uri>().unwrap());
        assert!(head.headers.is_empty());
    }
}

#[tokio::test]
async fn a_query_key_that_makes_the_uri_too_long_is_an_error_without_the_key() {
    let long = format!("https://api.example.com/{}", "x".repeat(65_510));
    let probe = ScriptedService::new([Status(200)]);
    let error = query_key().layer(probe.clone()).oneshot(get(&long)).await.unwrap_err();
    assert!(error.is_auth());
    assert_eq!(probe.calls(), 0);
    let why = error.source().unwrap().to_string();
    assert!(!format!("{error:?} {why}").contains(KEY));
    assert_eq!(why, "the url with the key in its query is longer than 65,534 bytes");
    assert!(KeyPlacement::query("").is_err());

    // To the byte: the path, what stands before the key, and the key.
    for (longer, fits) in [(0, true), (1, false)] {
        let path = "x".repeat(65_534 - "/?api_key=".len() - KEY.len() + longer);
        let answered =
            query_key().layer(probe.clone()).oneshot(get(&format!("https://api.example.com/{path}"))).await;
        assert_eq!(answered.is_ok(), fits, "{longer}");
    }
}

#[tokio::test]
async fn a_closure_signs_the_head_at_its_own_origin_only() {
    let count = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&count);
    let sign = move |head: &mut Parts| -> Result<(), BoxError> {
        counter.fetch_add(1, Ordering::Relaxed);
        let signature = format!("{} {}", head.method, head.uri.path());
        head.headers.insert("x-signature", signature.try_into()?);
        Ok(())
    };
    let layer = own(sign);
    assert_eq!(sent(&layer, request("PUT", URI)).await.headers["x-signature"], "PUT /v1");
    assert!(sent(&layer, get("https://other.example.com/v1")).await.headers.is_empty());
    assert_eq!(count.load(Ordering::Relaxed), 1, "it is not even asked for another origin");
}

#[tokio::test(start_paused = true)]
async fn keeps_the_servers_request_id_unless_it_contains_the_key() {
    async fn kept(auth: &AuthLayer, headers: &'static [(&'static str, &'static str)]) -> bool {
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new())
            .layer(RetryLayer::new())
            .layer(auth)
            .service(ScriptedService::new([Headers(200, headers)]));
        let response = service.oneshot(get(URI)).await.unwrap();
        let report = response.extensions().get::<Report>().unwrap();
        let attempt = report.attempts()[0].server_request_id.is_some();
        assert_eq!(report.server_request_id().is_some(), attempt);
        attempt
    }
    let provided = RefreshingKey::new(|| async { Ok::<_, BoxError>(FreshKey::new(key())) });
    let refreshing = AuthLayer::new(provided, origin(URI)).unwrap();
    for auth in [bearer(URI), query_key(), refreshing] {
        for (headers, expected) in [
            (&[("x-request-id", "0f8fad5b-d9cb-469f-a165-70867728950e")], true),
            (&[("x-request-id", "for:api_key=s3cret-0123456789;")], false),
            (&[("x-request-id", "%73%33cret%2D0123456789")], false),
            (&[("x-request-id", "two words")], false),
        ] {
            assert_eq!(kept(&auth, headers).await, expected, "{headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_fails_ends_the_call_and_nothing_is_sent() {
    let fail = |_: &mut Parts| -> Result<(), BoxError> { Err(Broken.into()) };
    let layer = own(fail);
    let probe = ScriptedService::new([Status(200)]);
    let error = layer.layer(probe.clone()).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_auth() && !error.is_service() && !error.is_timeout());
    assert_eq!(error.source().unwrap().downcast_ref(), Some(&Broken));

    // Under retry, too, even for a GET: it would fail the same way again.
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(layer).service(probe.clone());
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_auth());
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(StopReason::NotRetryable)));
    assert_eq!(report.attempts()[0].outcome, Some(Outcome::NotSent));
    assert_eq!(probe.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn every_attempt_reads_the_credential_anew() {
    let count = AtomicU32::new(0);
    let rotate = move |head: &mut Parts| -> Result<(), BoxError> {
        let version = count.fetch_add(1, Ordering::Relaxed);
        head.headers.insert("x-key", version.into());
        Ok(())
    };
    let probe = ScriptedService::new([Status(503), Status(503), Status(200)]);
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(own(rotate)).service(probe.clone());
    service.oneshot(get(URI)).await.unwrap();
    let keys: Vec<_> = probe.seen().iter().map(|seen| seen.head.headers["x-key"].clone()).collect();
    assert_eq!(keys, ["0", "1", "2"]);
}

/// Follows redirects and strips nothing but what a redirect layer that doesn't know of keys would strip.
async fn follow<S>(mut service: S, mut next: Request<Content>) -> Response<Body>
where
    S: Service<Request<Content>, Response = Response<Body>, Error = Error>,
{
    for _ in 0..5 {
        let headers = next.headers().clone();
        let response = service.ready().await.unwrap().call(next).await.unwrap();
        let Some(location) = response.headers().get(LOCATION) else { return response };
        next = get(location.to_str().unwrap());
        *next.headers_mut() = headers;
    }
    panic!("too many redirects");
}

#[tokio::test]
async fn under_redirects_no_other_origin_gets_the_key() {
    const THERE: &[(&str, &str)] = &[("location", "https://evil.test/collect?from=api")];
    const BACK: &[(&str, &str)] = &[("location", "https://api.example.com/v2")];
    const DOWN: &[(&str, &str)] = &[("location", "http://api.example.com/v2")];
    let closure = own(|head: &mut Parts| -> Result<(), BoxError> {
        head.headers.insert("x-api-key", KEY.parse()?);
        Ok(())
    });
    for (hops, with_key) in [
        (vec![Headers(307, THERE), Status(200)], vec![true, false]),
        (vec![Headers(307, THERE), Headers(307, BACK), Status(200)], vec![true, false, true]),
        (vec![Headers(301, DOWN), Status(200)], vec![true, false]),
    ] {
        let has_key = |probe: &ScriptedService| -> Vec<bool> {
            let heads = probe.seen().into_iter().map(|seen| seen.head);
            heads.map(|head| format!("{:?} {}", bare(&head), head.uri).contains(KEY)).collect()
        };
        let probe = ScriptedService::new(hops.clone());
        follow(bearer(URI).layer(probe.clone()), get(URI)).await;
        assert_eq!(has_key(&probe), with_key, "bearer");
        let probe = ScriptedService::new(hops.clone());
        follow(query_key().layer(probe.clone()), get(URI)).await;
        assert_eq!(has_key(&probe), with_key, "query");
        let probe = ScriptedService::new(hops);
        follow(closure.layer(probe.clone()), get(URI)).await;
        assert_eq!(has_key(&probe), with_key, "closure");
    }
}

/// The headers' values in plain, sensitive or not.
fn bare(head: &Parts) -> Vec<String> {
    head.headers.values().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn debug_of_nothing_shows_the_key() {
    fn hidden(shown: &dyn fmt::Debug) {
        for shown in [format!("{shown:?}"), format!("{shown:#?}")] {
            assert!(!shown.contains(KEY) && !shown.contains("0123456789"), "{shown}");
        }
    }
    hidden(&key());
    hidden(&KeyPlacement::query("api_key").unwrap());
    let (bearer, query) = (bearer(URI), query_key());
    hidden(&bearer);
    hidden(&query);
    hidden(&bearer.layer(ScriptedService::new([Status(200)])));
    hidden(&query.layer(ScriptedService::new([Status(200)])));

    for (shown, name) in [
        (format!("{:?}", key()), "ApiKey(redacted)"),
        (format!("{bearer:?}"), "AuthLayer"),
        (format!("{:?}", bearer.layer(ScriptedService::new([Status(200)]))), "Auth {"),
        (format!("{:?}", KeySource::from(key())), r#"KeySource { source: "value""#),
    ] {
        assert!(shown.starts_with(name), "{shown}");
    }

    // A future that holds the request, as a client's may.
    let holding = tower::service_fn(|request: Request<Content>| Holding(request));
    let mut call = task::spawn(bearer.layer(holding).call(get(URI)));
    assert_pending!(call.poll());
    hidden(&call);
    // An error with the head in it.
    let failing = tower::service_fn(|request: Request<Content>| async move {
        Err::<Response<Content>, _>(BoxError::from(format!("failed: {request:?}")))
    });
    let error = bearer.layer(failing).oneshot(get(URI)).await.unwrap_err();
    hidden(&error);
    assert!(error.source().unwrap().to_string().contains("authorization"), "the name may be shown");

    let preset = preset::currency_rates(URI).unwrap().with_api_key(key());
    hidden(&preset);
    let layer = preset.layer().unwrap();
    hidden(&layer);
    hidden(&preset.with_key_placement("query:api_key".parse().unwrap()).layer().unwrap());
    let mut call = task::spawn(layer.layer(ScriptedService::new([NoResponse])).call(get(URI)));
    assert_pending!(call.poll());
    hidden(&call);
}

#[derive(Debug)]
#[allow(dead_code, reason = "shown by Debug")]
struct Holding(Request<Content>);

impl std::future::Future for Holding {
    type Output = Result<Response<Content>, BoxError>;

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn no_error_and_no_panic_says_the_key() {
    for bad in ["s3cret-0123456789\n", "s3cret 0123456789", "s3cret-0123456789ü", "\0s3cret-0123456789"] {
        let error = ApiKey::new(bad).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("s3cret") && !shown.contains("0123456789"), "{shown}");
    }
    for url in ["http://me:s3cret@host", "s3cret-0123456789@host", "ftp://host?key=s3cret-0123456789"] {
        let error = Origin::parse(url).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    let error = AuthLayer::new(key(), origin("http://host")).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(KEY));
}

#[tokio::test]
async fn every_key_that_is_accepted_is_sent_as_it_is() {
    let all: String = (b'!'..=b'~').map(char::from).collect();
    let layer = AuthLayer::new(ApiKey::new(&all).unwrap(), origin(URI)).unwrap();
    assert_eq!(sent(&layer, get(URI)).await.headers[AUTHORIZATION], format!("Bearer {all}"));
    let layer = layer.with_placement("query:k".parse().unwrap());
    let head = sent(&layer, get(URI)).await;
    let value = head.uri.query().unwrap().strip_prefix("k=").unwrap();
    assert_eq!(percent_encoding::percent_decode_str(value).decode_utf8().unwrap(), all);
    assert!(!value.contains(['&', '#', '+', '?', '/', '=']));
}

#[tokio::test]
async fn an_error_of_the_inner_service_is_passed_on() {
    let error = bearer(URI).layer(ScriptedService::new([Refused])).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_service());
    assert!(support::cause::<std::io::Error>(&error).is_some());
}

#[test]
fn clones_share_the_credential() {
    fn shared<T: Clone + Send + Sync>(_: &T) {}
    let layer = bearer(URI);
    shared(&layer);
    shared(&layer.layer(ScriptedService::new([Status(200)])).clone());
    let _: Request<Full<bytes::Bytes>> = get(URI);
}

/// Whatever the source: a key that is there costs a request no allocation.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_there_allocates_nothing() {
    let provided = RefreshingKey::new(|| async { Ok::<_, BoxError>(FreshKey::new(ApiKey::new("k")?)) });
    let provided = KeySource::from(provided);
    provided.current().await.unwrap();
    let inner = tower::service_fn(|_: Request<()>| std::future::ready(Ok::<_, BoxError>(Response::new(()))));
    for keys in [KeySource::from(key()), provided] {
        let layer = AuthLayer::new(keys, origin(URI)).unwrap();
        let mut service = layer.layer(inner);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut allocated = 0;
        // The first one makes the header's value.
        for _ in 0..2 {
            let mut request = Request::get(URI).body(()).unwrap();
            request.headers_mut().reserve(4);
            let counted = allocation_counter::measure(|| {
                assert!(service.poll_ready(&mut cx).is_ready());
                let response = std::pin::pin!(service.call(request)).poll(&mut cx);
                assert!(matches!(response, std::task::Poll::Ready(Ok(_))));
            });
            allocated = counted.count_total;
        }
        assert_eq!(allocated, 0, "{layer:?}");
    }
}
