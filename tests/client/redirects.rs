//! KeySource and redirects: tower-http's `FollowRedirect` above and below the auth layer, for each form of a key.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderName, Request, Response, Uri, header::LOCATION};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_http::follow_redirect::{
    FollowRedirectLayer,
    policy::{FilterCredentials, Limited, PolicyExt},
};
use tower_outbound::{
    ApiKey, BoxError,
    auth::{AuthLayer, KeyPlacement, Origin},
};

const KEY: &str = "s3cret-0123456789";
const URI: &str = "https://api.example.com/v1";
const MOVED: &str = "https://api.example.com/v2";
const ELSEWHERE: &str = "https://evil.test/collect";
/// Sends on to itself once more.
const TWICE: &str = "https://evil.test/twice";

type Content = Full<Bytes>;
type Client = BoxCloneSyncService<Request<Content>, Response<Content>, BoxError>;
type Seen = Arc<Mutex<Vec<(Uri, bool)>>>;

/// Sends `/v1` on to `target`, `/twice` on to itself, and answers everything else; keeps the URI of each request and whether the key was
/// anywhere in it.
fn server(target: &'static str) -> (Client, Seen) {
    let seen = Seen::default();
    let keep = Arc::clone(&seen);
    let server = service_fn(move |request: Request<Content>| {
        let values = request.headers().values().map(|value| String::from_utf8_lossy(value.as_bytes()).into());
        let all: Vec<String> = values.chain([request.uri().to_string()]).collect();
        let has_key =
            all.iter().any(|part| part.contains(KEY) || part.contains("YW5uOnMzY3JldC0wMTIzNDU2Nzg5"));
        keep.lock().unwrap().push((request.uri().clone(), has_key));
        let mut response = Response::new(Full::<Bytes>::default());
        let next = match request.uri().path() {
            "/v1" => Some(target),
            "/twice" => Some("/thrice"),
            _ => None,
        };
        if let Some(next) = next {
            *response.status_mut() = http::StatusCode::TEMPORARY_REDIRECT;
            response.headers_mut().insert(LOCATION, next.parse().unwrap());
        }
        async { Ok::<_, BoxError>(response) }
    });
    (BoxCloneSyncService::new(server), seen)
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

/// Without a body: only such a request is sent on.
fn get(uri: &str) -> Request<Content> {
    Request::get(uri).body(Content::default()).unwrap()
}

fn with_key(seen: &Seen) -> Vec<bool> {
    seen.lock().unwrap().iter().map(|(_, has_key)| *has_key).collect()
}

#[tokio::test]
async fn above_every_hop_is_looked_at_anew_whatever_the_form() {
    for (name, form) in forms() {
        for (target, expected) in [
            (ELSEWHERE, [true, false]),
            (MOVED, [true, true]),
            ("/v2", [true, true]),
            ("http://api.example.com/v2", [true, false]),
            ("https://api.example.com:8443/v2", [true, false]),
            ("https://api.example.com.evil.test/v2", [true, false]),
        ] {
            let (server, seen) = server(target);
            let service = FollowRedirectLayer::new().layer(auth(form.clone()).layer(server));
            assert_eq!(service.oneshot(get(URI)).await.unwrap().status(), 200);
            assert_eq!(with_key(&seen), expected, "{name} to {target}");
        }
    }
}

#[tokio::test]
async fn above_a_listed_origin_gets_the_key_and_no_other_does() {
    let listed = Origin::parse("https://files.example.com").unwrap();
    for (name, form) in forms() {
        for (target, expected) in [("https://files.example.com/v2", true), (ELSEWHERE, false)] {
            let (server, seen) = server(target);
            let auth = auth(form.clone()).with_allowed_origin(listed.clone()).unwrap();
            FollowRedirectLayer::new().layer(auth.layer(server)).oneshot(get(URI)).await.unwrap();
            assert_eq!(with_key(&seen), [true, expected], "{name} to {target}");
        }
    }
    let plain =
        auth(KeyPlacement::bearer()).with_allowed_origin(Origin::parse("http://files.example.com").unwrap());
    assert_eq!(plain.unwrap_err().field(), "origin");
}

/// What the manual of `auth` says of the other order. When this fails because tower-http has become stricter, so
/// may the manual.
#[tokio::test]
async fn below_tower_http_decides_and_only_authorization_is_safe_by_default() {
    for (name, form) in forms() {
        let (elsewhere, seen_elsewhere) = server(ELSEWHERE);
        let (moved, seen_moved) = server(MOVED);
        for server in [elsewhere, moved] {
            let service = auth(form.clone()).layer(FollowRedirectLayer::new().layer(server));
            assert_eq!(service.oneshot(get(URI)).await.unwrap().status(), 200);
        }
        let expected = match name {
            "bearer" | "basic" => ([true, false], [true, true]),
            "x-api-key" => ([true, true], [true, true]), // leaks
            _ => ([true, false], [true, false]),
        };
        assert_eq!(
            (with_key(&seen_elsewhere), with_key(&seen_moved)),
            (expected.0.into(), expected.1.into()),
            "{name}"
        );
    }
}

#[tokio::test]
async fn below_a_policy_that_strips_all_headers_is_safe_for_every_form() {
    for (name, form) in forms() {
        let (server, seen) = server(ELSEWHERE);
        let policy = Limited::new(5).and::<_, Content, BoxError>(FilterCredentials::new().remove_all());
        let service = auth(form).layer(FollowRedirectLayer::with_policy(policy).layer(server));
        assert_eq!(service.oneshot(get(URI)).await.unwrap().status(), 200);
        assert_eq!(with_key(&seen), [true, false], "{name}");
    }
}

/// What the first hop must not have, a second one to the same place must not have either. In 0.6 it did.
#[tokio::test]
async fn a_second_hop_elsewhere_gets_no_more_than_the_first() {
    for (name, form) in forms() {
        let (server, seen) = server(TWICE);
        let above = FollowRedirectLayer::new().layer(auth(form.clone()).layer(server.clone()));
        assert_eq!(above.oneshot(get(URI)).await.unwrap().status(), 200);
        let below = auth(form.clone()).layer(FollowRedirectLayer::new().layer(server.clone()));
        assert_eq!(below.oneshot(get(URI)).await.unwrap().status(), 200);
        let policy = Limited::new(5).and::<_, Content, BoxError>(FilterCredentials::new().remove_all());
        let strict = auth(form).layer(FollowRedirectLayer::with_policy(policy).layer(server));
        assert_eq!(strict.oneshot(get(URI)).await.unwrap().status(), 200);
        let leaks = name == "x-api-key";
        let expected = [[true, false, false], [true, leaks, leaks], [true, false, false]];
        assert_eq!(with_key(&seen), expected.concat(), "{name}");
    }
}
