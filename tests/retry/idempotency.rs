//! Tests idempotency keys, and requests that a rule or the caller declares idempotent.

use http::HeaderName;

use super::{
    support::{Scripted::*, request},
    *,
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
async fn all_attempts_of_a_call_with_a_method_that_is_not_idempotent_send_one_key() {
    let layer = with_honoured_key();
    for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "PURGE"] {
        let keys = header_of_each_attempt(&layer, KEY_HEADER, request(method, URI)).await;
        assert!(keys.len() == 3 && keys.iter().all(|key| *key == keys[0]), "{method}: {keys:?}");
        let has_key = ["POST", "PATCH", "PURGE"].contains(&method);
        assert_eq!(keys[0].is_some(), has_key, "{method}");
        assert!(keys.iter().flatten().all(HeaderValue::is_sensitive), "HTTP/2 must not index unique values");
    }
    // The server does not see that the caller declares a POST idempotent.
    let mut declared = request("POST", URI);
    declared.extensions_mut().insert(RetryOverride::new().with_idempotent());
    assert!(header_of_each_attempt(&layer, KEY_HEADER, declared).await[0].is_some());
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_of_layers_with_the_same_seed_send_different_idempotency_keys() {
    let inner = ScriptedService::new([Status(200)]);
    // All calls start at the same time of the paused clock, on clones of the services of two retry layers.
    let services = [(); 2].map(|()| with_honoured_key().with_seed(1).layer(inner.clone()));
    let calls =
        (0..1_000).map(|number| tokio::spawn(services[number % 2].clone().oneshot(request("POST", URI))));
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    let keys: HashSet<_> = inner.seen().iter().map(|seen| seen.head.headers[KEY_HEADER].clone()).collect();
    assert_eq!(keys.len(), 1_000);
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
        let mut request = request("POST", URI);
        if name != KEY_HEADER {
            // The server honours only the other header.
            request.headers_mut().insert(KEY_HEADER, HeaderValue::from_static("caller-key"));
        }
        let keys = header_of_each_attempt(&layer, name, request).await;
        let value = keys[2].as_ref().unwrap().to_str().unwrap();
        let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        assert_eq!(unquoted.is_some(), quoted, "{key:?}: {value}");
        assert!(is_uuid(unquoted.unwrap_or(value)), "{key:?}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_layer_keeps_an_idempotency_key_that_the_caller_set_unless_it_is_empty() {
    for (caller_key, is_kept) in [
        ("caller-key", true),
        ("\"quoted\"", true),
        ("not a uuid", true),
        ("", false),
        (" ", false),
        ("\"\"", false),
    ] {
        for key in [IdempotencyKey::bare(), IdempotencyKey::quoted()] {
            let mut request = request("POST", URI);
            let given: HeaderValue = caller_key.parse().unwrap();
            request.headers_mut().insert(KEY_HEADER, given.clone());
            let layer = RetryLayer::new().with_honoured_idempotency_key(key);
            let keys = header_of_each_attempt(&layer, KEY_HEADER, request).await;
            assert_eq!(keys == vec![Some(given); 3], is_kept, "{caller_key:?}: {keys:?}");
            assert!(
                is_kept || keys[2].as_ref().is_some_and(|key| key.len() >= 36),
                "{caller_key:?}: {keys:?}"
            );
        }
    }
    let mut put = request("PUT", URI);
    put.headers_mut().insert(KEY_HEADER, HeaderValue::from_static("caller-key"));
    let layer = RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare());
    let keys = header_of_each_attempt(&layer, KEY_HEADER, put).await;
    assert_eq!(keys, vec![Some(HeaderValue::from_static("caller-key")); 3]);
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
}
