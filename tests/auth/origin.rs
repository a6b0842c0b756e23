//! Tests of the origins to which the auth layer sends a key.

use http::{HeaderValue, Uri};

use super::*;

#[tokio::test]
async fn key_is_sent_only_to_the_allowed_scheme_host_and_port() {
    let (https, other_port, loopback) =
        ("https://api.example.com", "https://api.example.com:8443", "http://127.0.0.1:8080");
    for (allowed, uri, has_key) in [
        (https, "https://api.example.com", true),
        (https, "https://api.example.com/", true),
        (https, "https://api.example.com/v1/x?q=1", true),
        (https, "https://api.example.com:443/v1", true),
        ("https://API.example.com:443/base", "https://api.example.com/v1", true),
        (https, "http://api.example.com:443/v1", false),
        (https, "https://api.example.com:80/v1", false),
        (https, "https://example.com/v1", false),
        (https, "https://www.api.example.com/v1", false),
        (https, "https://api.example.com./v1", false),
        (https, "https://evil.test/?u=https://api.example.com", false),
        (https, "https://api.example.com@evil.test/", false),
        (https, "https://evil.test:443/", false),
        (other_port, "https://api.example.com:8443/v1", true),
        (other_port, "https://api.example.com/v1", false),
        (other_port, "https://api.example.com:443/v1", false),
        (loopback, "http://127.0.0.1:8080/v1", true),
        (loopback, "http://127.0.0.1:8081/v1", false),
        (loopback, "http://127.0.0.1/v1", false),
        (loopback, "https://127.0.0.1:8080/v1", false),
        (loopback, "http://localhost:8080/v1", false),
        ("http://localhost", "http://localhost:80/v1", true),
        ("http://[::1]:8080", "http://[::1]:8080/v1", true),
        ("http://[::1]:8080", "http://127.0.0.1:8080/v1", false),
    ] {
        let head = forwarded_head(&bearer_layer(allowed), get(uri)).await;
        let value = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let expected = has_key.then(|| format!("Bearer {KEY}"));
        assert_eq!(value, expected.as_deref().map(str::as_bytes), "{allowed} {uri}");
        assert_eq!(head.uri, uri.parse::<Uri>().unwrap(), "the auth layer does not change the URI");
    }
}

#[tokio::test]
async fn request_whose_uri_has_no_origin_is_rejected_before_sending() {
    let server = ScriptedService::new([Status(200)]);
    for uri in ["/v1/x", "/", "*"] {
        let error = bearer_layer(URI).layer(server.clone()).oneshot(get(uri)).await.unwrap_err();
        assert!(error.is_auth() && !error.is_service(), "{error:?}");
        let message = "credential could not be attached: the request's uri names no origin";
        assert!(error.to_string().starts_with(message), "{error}");
    }
    assert_eq!(server.calls(), 0);
    // The URI of a `CONNECT` request has a host and a port but no scheme. The auth layer forwards the request without
    // the key.
    let head = forwarded_head(&bearer_layer(URI), request("CONNECT", "api.example.com:443")).await;
    assert!(!head.headers.contains_key(AUTHORIZATION));
}

#[test]
fn auth_layer_construction_rejects_a_plaintext_origin() {
    for (url, displayed) in [
        ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
        ("http://192.168.0.1/v1", "http://192.168.0.1:80"),
        ("http://0.0.0.0:80", "http://0.0.0.0:80"),
        ("http://[::]:80", "http://[::]:80"),
    ] {
        let error = AuthLayer::new(key(), origin(url)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "invalid origin `{displayed}`: expected https, a loopback host or Origin::with_plaintext, because a credential is sent to it"
            )
        );
        assert_eq!(error.field(), "origin");
    }
}

#[tokio::test]
async fn key_is_sent_without_tls_only_to_the_origin_that_allows_plaintext() {
    let url = "http://gateway.internal:8080";
    let layer = AuthLayer::new(key(), origin(url).with_plaintext()).unwrap();
    assert!(forwarded_head(&layer, get(url)).await.headers.contains_key(AUTHORIZATION));
    for other in ["http://other.internal:8080", "https://gateway.internal:8080", "http://gateway.internal"] {
        assert!(!forwarded_head(&layer, get(other)).await.headers.contains_key(AUTHORIZATION), "{other}");
    }
}
