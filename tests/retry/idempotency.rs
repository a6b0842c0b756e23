//! Tests idempotency keys, and requests that a rule or the caller declares idempotent.

use std::{collections::HashSet, io::ErrorKind::ConnectionReset};

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey,
    call::{RequestHead, StopReason::*},
    preset,
    retry::{IdempotencyKey, RetryLayer, RetryOverride},
};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, request},
};

const KEY_HEADER: &str = "idempotency-key";

fn with_honoured_key() -> RetryLayer {
    RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare())
}

/// Makes a call that succeeds at its third attempt, unless the layer stops earlier. Returns the value of the header
/// `name` in each attempt, and asserts that no attempt contains that header twice.
async fn header_of_each_attempt(
    layer: &RetryLayer,
    name: &str,
    request: http::Request<Content>,
) -> Vec<Option<HeaderValue>> {
    let inner = ScriptedService::new([Status(503), Io(ConnectionReset), Status(200)]);
    let _ = layer.layer(inner.clone()).oneshot(request).await;
    let single_value = |headers: &HeaderMap| {
        assert!(headers.get_all(name).iter().count() <= 1, "{headers:?}");
        headers.get(name).cloned()
    };
    inner.seen().iter().map(|seen| single_value(&seen.head.headers)).collect()
}

/// Returns whether `text` is a UUID in hexadecimal digits with hyphens.
fn is_uuid(text: &str) -> bool {
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

#[tokio::test(start_paused = true)]
async fn each_call_sends_its_own_idempotency_key_in_all_attempts() {
    let layer = with_honoured_key();
    let mut all_keys = HashSet::new();
    for method in ["POST", "POST", "PATCH", "PURGE"] {
        let keys = header_of_each_attempt(&layer, KEY_HEADER, request(method, URI)).await;
        assert_eq!(keys.len(), 3, "{method}");
        let key = keys[0].clone().unwrap();
        assert!(is_uuid(key.to_str().unwrap()), "{key:?}");
        assert!(keys.iter().flatten().all(HeaderValue::is_sensitive), "HTTP/2 must not index unique values");
        assert!(keys.iter().all(|other| other.as_ref() == Some(&key)), "{keys:?}");
        assert!(all_keys.insert(key), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_send_different_idempotency_keys() {
    let inner = ScriptedService::new([Status(200)]);
    // All calls start at the same time of the paused clock, on clones of the services of two retry layers.
    let services =
        [with_honoured_key().layer(inner.clone()), with_honoured_key().with_seed(1).layer(inner.clone())];
    let calls =
        (0..1_000).map(|number| tokio::spawn(services[number % 2].clone().oneshot(request("POST", URI))));
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    let keys: HashSet<_> = inner.seen().iter().map(|seen| seen.head.headers[KEY_HEADER].clone()).collect();
    assert_eq!(keys.len(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn two_retry_layers_with_the_same_seed_send_different_idempotency_keys() {
    let inner = ScriptedService::new([Status(200)]);
    for _ in 0..2 {
        let layer = RetryLayer::new().with_seed(1).with_honoured_idempotency_key(IdempotencyKey::bare());
        layer.layer(inner.clone()).oneshot(request("POST", URI)).await.unwrap();
    }
    let keys: Vec<_> = inner.seen().iter().map(|seen| seen.head.headers[KEY_HEADER].clone()).collect();
    assert_ne!(keys[0], keys[1]);
}

#[tokio::test(start_paused = true)]
async fn retry_layer_sends_bare_or_quoted_idempotency_key_in_configured_header() {
    let token = HeaderName::from_static("x-request-token");
    for (key, name, quoted) in [
        (IdempotencyKey::bare(), KEY_HEADER, false),
        (IdempotencyKey::quoted(), KEY_HEADER, true),
        (IdempotencyKey::bare().with_header(token.clone()), "x-request-token", false),
        (IdempotencyKey::quoted().with_header(token), "x-request-token", true),
    ] {
        let layer = RetryLayer::new().with_honoured_idempotency_key(key.clone());
        let keys = header_of_each_attempt(&layer, name, request("POST", URI)).await;
        let value = keys[0].as_ref().unwrap().to_str().unwrap();
        let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        assert_eq!(unquoted.is_some(), quoted, "{key:?}: {value}");
        assert!(is_uuid(unquoted.unwrap_or(value)), "{key:?}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_layer_keeps_an_idempotency_key_that_the_caller_set() {
    for caller_key in ["caller-key", "\"quoted\"", "not a uuid at all"] {
        for key in [IdempotencyKey::bare(), IdempotencyKey::quoted()] {
            let mut request = request("POST", URI);
            request.headers_mut().insert(KEY_HEADER, HeaderValue::from_static(caller_key));
            let layer = RetryLayer::new().with_honoured_idempotency_key(key);
            assert_eq!(
                header_of_each_attempt(&layer, KEY_HEADER, request).await,
                vec![Some(HeaderValue::from_static(caller_key)); 3]
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retry_layer_replaces_an_empty_idempotency_key_of_the_caller() {
    for caller_key in ["", " ", "\"\""] {
        let inner = ScriptedService::new([Io(ConnectionReset), Status(200)]);
        let layer = RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare());
        let mut request = request("POST", URI);
        request.headers_mut().insert(KEY_HEADER, caller_key.parse().unwrap());
        layer.layer(inner.clone()).oneshot(request).await.unwrap();
        let keys: Vec<_> = inner.seen().iter().map(|seen| seen.head.headers[KEY_HEADER].len()).collect();
        assert_eq!(keys, [36, 36], "{caller_key:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn idempotency_key_in_a_header_that_the_server_ignores_allows_no_retry() {
    let token = IdempotencyKey::bare().with_header(HeaderName::from_static("x-request-token"));
    let mut with_key = request("POST", URI);
    with_key.headers_mut().insert(KEY_HEADER, HeaderValue::from_static("caller-key"));
    // The caller's idempotency key does not make a POST idempotent, because the layer does not know whether the server
    // honours the key.
    assert_eq!(header_of_each_attempt(&RetryLayer::new(), KEY_HEADER, with_key.clone()).await.len(), 1);
    // The layer adds an idempotency key in the header that the server honours.
    let layer = RetryLayer::new().with_honoured_idempotency_key(token);
    let tokens = header_of_each_attempt(&layer, "x-request-token", with_key).await;
    assert!(tokens.len() == 3 && tokens.iter().all(Option::is_some), "{tokens:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_layer_sends_no_idempotency_key_by_default() {
    let has_key = |headers: &HeaderMap| headers.keys().any(|name| name.as_str().contains("idempotency"));
    let inner = ScriptedService::new([Status(503)]);
    RetryLayer::new().layer(inner.clone()).oneshot(request("POST", URI)).await.unwrap();
    RetryLayer::default().layer(inner.clone()).oneshot(request("PATCH", URI)).await.unwrap();
    for make in [preset::currency_rates, preset::email_delivery, preset::realtime_messaging] {
        let preset = || make(URI).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
        let before = inner.calls();
        for method in ["POST", "PATCH"] {
            let service = preset().layer().unwrap().layer(inner.clone());
            let response = service.oneshot(request(method, URI)).await.unwrap();
            assert_eq!(report(&response).stop_reason(), Some(NotIdempotent));
        }
        assert_eq!(inner.calls() - before, 2, "the preset should send the POST once and the PATCH once");
        // A preset sends an idempotency key if the retry layer of the preset is configured to send one.
        let keyed = ScriptedService::new([Status(503), Status(200)]);
        let service = preset().with_retry(with_honoured_key()).layer().unwrap().layer(keyed.clone());
        service.oneshot(request("POST", URI)).await.unwrap();
        assert!(keyed.calls() == 2 && keyed.seen().iter().all(|seen| has_key(&seen.head.headers)));
    }
    assert_eq!(inner.calls(), 2 + 6);
    assert!(!inner.seen().iter().any(|seen| has_key(&seen.head.headers)));
}

#[tokio::test(start_paused = true)]
async fn retry_layer_sends_no_idempotency_key_with_an_idempotent_method() {
    for (method, has_key) in [
        ("GET", false),
        ("HEAD", false),
        ("OPTIONS", false),
        ("TRACE", false),
        ("PUT", false),
        ("DELETE", false),
        ("POST", true),
        ("PATCH", true),
    ] {
        let keys = header_of_each_attempt(&with_honoured_key(), KEY_HEADER, request(method, URI)).await;
        assert_eq!(keys.len(), 3, "{method}");
        assert!(keys.iter().all(|key| key.is_some() == has_key), "{method}: {keys:?}");
    }
    // A POST that the caller declares idempotent also gets an idempotency key, because the server does not see the
    // declaration.
    let mut request = request("POST", URI);
    request.extensions_mut().insert(RetryOverride::new().with_idempotent());
    assert!(header_of_each_attempt(&with_honoured_key(), KEY_HEADER, request).await[0].is_some());
}

#[tokio::test(start_paused = true)]
async fn retry_layer_retries_a_post_that_a_rule_declares_idempotent() {
    let search = |head: RequestHead<'_>| head.uri.path() == "/v1/searches" && *head.method == Method::POST;
    let layer = RetryLayer::new().with_idempotent(search);
    for (method, path, attempts) in [
        ("POST", "/v1/searches", 3),
        ("PATCH", "/v1/searches", 1),
        ("POST", "/v1/orders", 1),
        ("GET", "/v1", 3),
    ] {
        let inner = ScriptedService::new([Status(503)]);
        let uri = format!("https://api.example.com{path}");
        layer.layer(inner.clone()).oneshot(request(method, &uri)).await.unwrap();
        assert_eq!(inner.calls(), attempts, "{method} {path}");
    }
    // An override in the request's extensions also declares a POST idempotent.
    let inner = ScriptedService::new([Status(503)]);
    let mut order = request("POST", URI);
    order.extensions_mut().insert(RetryOverride::new().with_idempotent());
    layer.layer(inner.clone()).oneshot(order).await.unwrap();
    assert_eq!(inner.calls(), 3);
}
