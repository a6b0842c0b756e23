//! Tests of where a request carries the API key: in a header or in the query.

use std::error::Error as _;

use http::{HeaderName, HeaderValue, Uri};
use support::{Scripted::Status, ScriptedService};
use tower_outbound::preset;

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

#[tokio::test(start_paused = true)]
async fn preset_sends_keys_from_every_source_in_the_chosen_placement() {
    let preset = || preset::currency_rates(URI).unwrap();
    let provider = || key_provider(millis(10), &[Fetch::Lasting]).0;
    let key = ApiKey::new("key-1").unwrap();
    for (preset, expected) in [
        (preset().with_keys(provider()), "Bearer key-1"),
        (
            preset().with_key_placement(KeyPlacement::header(X_API_KEY).unwrap()).with_keys(provider()),
            "key-1",
        ),
        (
            preset().with_api_key(key.clone()).with_key_placement(KeyPlacement::header(X_API_KEY).unwrap()),
            "key-1",
        ),
        (
            preset().with_api_key(key).with_key_placement(KeyPlacement::basic("ann").unwrap()),
            "Basic YW5uOmtleS0x",
        ),
        (
            preset().with_keys(RefreshingKey::new(|| async {
                Ok::<_, BoxError>(FreshKey::new(ApiKey::new("key-of-closure").unwrap()))
            })),
            "Bearer key-of-closure",
        ),
    ] {
        let server = ScriptedService::new([Status(200)]);
        let service = preset.layer().unwrap().layer(server.clone());
        service.oneshot(get(URI)).await.unwrap();
        let head = server.seen().remove(0).head;
        let sent = head.headers.get(AUTHORIZATION).or(head.headers.get(X_API_KEY)).unwrap();
        assert_eq!(sent, expected);
    }
    assert!(KeyPlacement::basic("a:b").is_err() && KeyPlacement::header(http::header::HOST).is_err());
}

#[tokio::test]
async fn auth_layer_marks_the_authorization_header_as_sensitive() {
    let head = forwarded_head(&bearer_layer(URI), get(URI)).await;
    assert!(head.headers[AUTHORIZATION].is_sensitive());
    assert_eq!(head.headers.len(), 1);
}

#[tokio::test]
async fn auth_layer_keeps_an_authorization_header_set_by_the_caller() {
    let mut request = get(URI);
    request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_static("Basic b3du"));
    let head = forwarded_head(&bearer_layer(URI), request).await;
    assert!(head.headers.get_all(AUTHORIZATION).iter().eq(["Basic b3du"]));
}

#[tokio::test]
async fn api_key_is_added_to_the_query_only_for_the_allowed_origin() {
    let layer = query_layer();
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
        let head = forwarded_head(&layer, get(uri)).await;
        assert_eq!(head.uri, expected.parse::<Uri>().unwrap());
        assert!(head.headers.is_empty());
    }
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
