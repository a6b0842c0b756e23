//! Tests which redirect targets receive the key. tower-http 0.6 copies the headers of the first request to each target.
//! `tests/client/redirects.rs` tests tower-http 0.7.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, header::LOCATION};
use http_body_util::Full;
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_http_06::follow_redirect::{
    FollowRedirectLayer,
    policy::{FilterCredentials, Limited, PolicyExt},
};
use tower_outbound::{
    ApiKey, BoxError,
    auth::{AuthLayer, KeyPlacement, Origin},
};

const KEY: &str = "s3cret-0123456789";
const URI: &str = "https://api.example.com/v1";

type Content = Full<Bytes>;
type Client = BoxCloneSyncService<Request<Content>, Response<Content>, BoxError>;

/// Starts a server that redirects from the API to another origin, and once more within that origin. The list records
/// for each request whether the request contained the key.
fn redirecting_server() -> (Client, Arc<Mutex<Vec<bool>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&seen);
    let server = service_fn(move |request: Request<Content>| {
        let text = format!("{} {:?}", request.uri(), header_values(request.headers()));
        // The second text is the base64 encoding of `ann:` and the key.
        recorded.lock().unwrap().push(text.contains(KEY) || text.contains("YW5uOnMzY3JldC0wMTIzNDU2Nzg5"));
        let mut response = Response::new(Content::default());
        let next = match request.uri().path() {
            "/v1" => Some("https://evil.test/1"),
            "/1" => Some("https://evil.test/2"),
            _ => None,
        };
        if let Some(next) = next {
            *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
            response.headers_mut().insert(LOCATION, next.parse().unwrap());
        }
        async { Ok::<_, BoxError>(response) }
    });
    (BoxCloneSyncService::new(server), seen)
}

/// Returns the values of all headers. The headers' own `Debug` output would redact sensitive values.
fn header_values(headers: &http::HeaderMap) -> Vec<String> {
    headers.values().map(|value| String::from_utf8_lossy(value.as_bytes()).into()).collect()
}

fn placements() -> [(&'static str, KeyPlacement); 4] {
    let header = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
    [
        ("bearer", KeyPlacement::bearer()),
        ("basic", KeyPlacement::basic("ann").unwrap()),
        ("x-api-key", header),
        ("query", KeyPlacement::query("k").unwrap()),
    ]
}

fn auth(placement: KeyPlacement) -> AuthLayer {
    let layer = AuthLayer::new(ApiKey::new(KEY).unwrap(), Origin::parse(URI).unwrap());
    layer.unwrap().with_placement(placement)
}

async fn get<S>(client: S)
where
    S: Service<Request<Content>, Response = Response<Content>, Error: std::fmt::Debug>,
{
    let request = Request::get(URI).body(Content::default()).unwrap();
    assert_eq!(client.oneshot(request).await.unwrap().status(), 200);
}

/// The docs of `auth` describe this leak. If this test fails because tower-http 0.6 became stricter, update those docs.
#[tokio::test]
async fn key_in_a_header_leaks_if_redirects_are_followed_inside_the_auth_layer() {
    for (name, placement) in placements() {
        let (server, seen) = redirecting_server();
        let service = auth(placement.clone()).layer(FollowRedirectLayer::new().layer(server));
        get(service).await;
        let expected = match name {
            "bearer" | "basic" => [true, false, true], // The key leaks.
            "x-api-key" => [true, true, true],         // The key leaks.
            _ => [true, false, false],
        };
        assert_eq!(*seen.lock().unwrap(), expected, "{name}");

        let (server, seen) = redirecting_server();
        let strict = Limited::new(5).and::<_, Content, BoxError>(FilterCredentials::new().remove_all());
        let service = auth(placement).layer(FollowRedirectLayer::with_policy(strict).layer(server));
        get(service).await;
        let leaks = name != "query";
        assert_eq!(
            *seen.lock().unwrap(),
            [true, false, leaks],
            "key placement {name}, redirect policy that removes all headers"
        );
    }
}
