//! Tests the placement of the API key, the credentials that a closure adds, and the redaction of keys.

use std::{error::Error as _, sync::atomic::AtomicU32};

use http::{HeaderName, HeaderValue};
use support::Broken;
use tower::ServiceBuilder;
use tower_outbound::call::{Outcome, StopReason};

use super::*;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

#[tokio::test]
async fn auth_layer_sends_keys_from_every_source_in_every_placement() {
    let path = std::env::temp_dir().join(format!("tower-outbound-placement-{}", std::process::id()));
    std::fs::write(&path, "key-1").unwrap();
    let sources = || {
        [
            KeySource::from(ApiKey::new("key-1").unwrap()),
            KeySource::from_file(&path).unwrap(),
            KeySource::from(key_provider(Duration::ZERO, &[Fetch::Lasting]).0),
        ]
    };
    for (placement, name, value) in [
        (KeyPlacement::bearer(), "authorization", "Bearer key-1"),
        (KeyPlacement::header(X_API_KEY).unwrap(), "x-api-key", "key-1"),
        (KeyPlacement::basic("ann").unwrap(), "authorization", "Basic YW5uOmtleS0x"),
        (KeyPlacement::query("k").unwrap(), "", ""),
    ] {
        for keys in sources() {
            let case = format!("{placement:?} {keys:?}");
            let server = ScriptedService::new([Status(200)]);
            let layer = layer(keys).with_placement(placement.clone());
            layer.layer(server.clone()).oneshot(get(URI)).await.unwrap();
            let head = server.seen().remove(0).head;
            if name.is_empty() {
                assert_eq!((head.uri.query(), head.headers.len()), (Some("k=key-1"), 0), "{case}");
            } else {
                assert_eq!(head.headers[name], value, "{case}");
                assert!(head.headers[name].is_sensitive() && head.uri.query().is_none(), "{case}");
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn request_is_rejected_if_the_key_in_the_query_makes_its_uri_too_long() {
    let long = format!("https://api.example.com/{}", "x".repeat(65_510));
    let server = ScriptedService::new([Status(200)]);
    let error = query_layer().layer(server.clone()).oneshot(get(&long)).await.unwrap_err();
    assert!(error.is_auth());
    assert_eq!(server.calls(), 0);
    assert!(!format!("{error} {error:?}").contains(KEY));
    let message =
        "credential could not be attached: the url with the key in its query is longer than 65,534 bytes";
    assert_eq!((error.to_string(), error.source().is_none()), (message.to_owned(), true));
    assert!(KeyPlacement::query("").is_err());

    // A request is accepted if its path and query have 65,534 bytes in total, and rejected if they have 65,535 bytes.
    for (excess, fits) in [(0, true), (1, false)] {
        let path = "x".repeat(65_534 - "/?api_key=".len() - KEY.len() + excess);
        let result = query_layer()
            .layer(server.clone())
            .oneshot(get(&format!("https://api.example.com/{path}")))
            .await;
        assert_eq!(result.is_ok(), fits, "{excess} bytes over the limit");
    }
}

#[tokio::test]
async fn key_with_every_allowed_character_reaches_the_server() {
    let characters: String = (b'!'..=b'~').map(char::from).collect();
    let layer = AuthLayer::new(ApiKey::new(&characters).unwrap(), origin(URI)).unwrap();
    assert_eq!(forwarded_head(&layer, get(URI)).await.headers[AUTHORIZATION], format!("Bearer {characters}"));
    let layer = layer.with_placement("query:k".parse().unwrap());
    let head = forwarded_head(&layer, get(URI)).await;
    let value = head.uri.query().unwrap().strip_prefix("k=").unwrap();
    assert_eq!(percent_encoding::percent_decode_str(value).decode_utf8().unwrap(), characters);
    assert!(!value.contains(['&', '#', '+', '?', '/', '=']));
}

#[tokio::test]
async fn auth_layer_forwards_the_method_and_headers_and_extensions_and_body() {
    let mut request = request("DELETE", URI);
    request.headers_mut().insert("x-other", HeaderValue::from_static("1"));
    request.extensions_mut().insert(7_u8);
    let server = ScriptedService::new([Status(200)]);
    bearer_layer(URI).layer(server.clone()).oneshot(request).await.unwrap();
    let seen = server.seen().remove(0);
    assert_eq!((seen.head.method.as_str(), &seen.head.headers["x-other"]), ("DELETE", &"1".parse().unwrap()));
    assert_eq!(seen.head.extensions.get(), Some(&7_u8));
    assert_eq!(seen.body.unwrap(), "hello");
}

#[tokio::test]
async fn credential_closure_is_called_only_for_requests_to_the_allowed_origin() {
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let sign = move |head: &mut Parts| -> Result<(), BoxError> {
        counter.fetch_add(1, Ordering::Relaxed);
        let signature = format!("{} {}", head.method, head.uri.path());
        head.headers.insert("x-signature", signature.try_into()?);
        Ok(())
    };
    let layer = closure_layer(sign);
    assert_eq!(forwarded_head(&layer, request("PUT", URI)).await.headers["x-signature"], "PUT /v1");
    assert!(forwarded_head(&layer, get("https://other.example.com/v1")).await.headers.is_empty());
    assert_eq!(calls.load(Ordering::Relaxed), 1, "the layer does not call the closure for another origin");
}

#[tokio::test(start_paused = true)]
async fn credential_closure_is_called_for_every_attempt() {
    let count = AtomicU32::new(0);
    let layer = closure_layer(move |head: &mut Parts| -> Result<(), BoxError> {
        head.headers.insert("x-key", count.fetch_add(1, Ordering::Relaxed).into());
        Ok(())
    });
    let server = ScriptedService::new([Status(503), Status(503), Status(200)]);
    (RetryLayer::new(), layer).layer(server.clone()).oneshot(get(URI)).await.unwrap();
    let keys: Vec<_> = server.seen().iter().map(|seen| seen.head.headers["x-key"].clone()).collect();
    assert_eq!(keys, ["0", "1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn failing_credential_closure_ends_the_call_before_sending() {
    let fail = |_: &mut Parts| -> Result<(), BoxError> { Err(Broken.into()) };
    let layer = closure_layer(fail);
    let server = ScriptedService::new([Status(200)]);
    let error = layer.layer(server.clone()).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_auth() && !error.is_service() && !error.is_timeout());
    assert_eq!(error.source().unwrap().downcast_ref(), Some(&Broken));

    // The retry layer does not retry a request whose credential closure failed, not even a GET.
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(layer).service(server.clone());
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_auth());
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(StopReason::NotRetryable)));
    assert_eq!(report.attempts()[0].outcome, Some(Outcome::NotSent));
    assert_eq!(server.calls(), 0);
}
