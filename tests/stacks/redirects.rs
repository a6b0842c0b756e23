//! KeySource and the redirects that tower-http 0.6 follows, which makes each hop of the headers that the first request had.
//! The crate's own tests have those of 0.7.
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

/// The API sends on to another origin, and that one to itself. KeepsBody whether the key was anywhere in each request.
fn chain() -> (Client, Arc<Mutex<Vec<bool>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&seen);
    let server = service_fn(move |request: Request<Content>| {
        let all = format!("{} {:?}", request.uri(), shown(request.headers()));
        // The key, or `ann` with the key in base64.
        keep.lock().unwrap().push(all.contains(KEY) || all.contains("YW5uOnMzY3JldC0wMTIzNDU2Nzg5"));
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

/// `Debug` of the headers would hide what is marked sensitive.
fn shown(headers: &http::HeaderMap) -> Vec<String> {
    headers.values().map(|value| String::from_utf8_lossy(value.as_bytes()).into()).collect()
}

fn forms() -> [(&'static str, KeyPlacement); 4] {
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

#[tokio::test]
async fn above_every_hop_is_looked_at_anew_whatever_the_form() {
    for (name, form) in forms() {
        let (server, seen) = chain();
        get(FollowRedirectLayer::new().layer(auth(form).layer(server))).await;
        assert_eq!(*seen.lock().unwrap(), [true, false, false], "{name}");
    }
}

/// What the manual of `auth` says. When this fails because 0.6 has become stricter, so may the manual.
#[tokio::test]
async fn below_every_header_leaks_whatever_the_policy() {
    for (name, form) in forms() {
        let (server, seen) = chain();
        let service = auth(form.clone()).layer(FollowRedirectLayer::new().layer(server));
        get(service).await;
        let expected = match name {
            "bearer" | "basic" => [true, false, true], // leaks
            "x-api-key" => [true, true, true],         // leaks
            _ => [true, false, false],
        };
        assert_eq!(*seen.lock().unwrap(), expected, "{name}");

        let (server, seen) = chain();
        let strict = Limited::new(5).and::<_, Content, BoxError>(FilterCredentials::new().remove_all());
        let service = auth(form).layer(FollowRedirectLayer::with_policy(strict).layer(server));
        get(service).await;
        let leaks = name != "query";
        assert_eq!(*seen.lock().unwrap(), [true, false, leaks], "{name}, all headers stripped");
    }
}
