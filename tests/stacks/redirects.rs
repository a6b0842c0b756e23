//! Tests which redirected requests contain the key, with tower-http's `FollowRedirect` above or below the auth layer.
//! tower-http 0.6 copies the headers of the first request to each target.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, header::LOCATION};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_http::follow_redirect::FollowRedirectLayer;
use tower_outbound::{
    ApiKey, BoxError,
    auth::{AuthLayer, KeyPlacement, Origin},
};

const KEY: &str = "s3cret-0123456789";
/// The base64 form of `ann:` followed by the key, as basic authentication sends the key.
const BASE64_KEY: &str = "YW5uOnMzY3JldC0wMTIzNDU2Nzg5";
const URI: &str = "https://api.example.com/v1";
/// A redirect target that redirects again, to another path of the target's origin.
const TWO_REDIRECTS: &str = "https://evil.test/twice";

type Content = Full<Bytes>;
type Server = BoxCloneSyncService<Request<Content>, Response<Content>, BoxError>;

/// Returns a server that redirects `/v1` to `target` and `/twice` to `/thrice`, and responds to other paths with 200.
/// The list records for each request whether the request contained the key.
fn server(target: &'static str) -> (Server, Arc<Mutex<Vec<bool>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let server = service_fn(move |request: Request<Content>| {
        let values = request.headers().values().map(|value| String::from_utf8_lossy(value.as_bytes()).into());
        let parts: Vec<String> = values.chain([request.uri().to_string()]).collect();
        let has_key = parts.iter().any(|part| part.contains(KEY) || part.contains(BASE64_KEY));
        record.lock().unwrap().push(has_key);
        let mut response = Response::new(Content::default());
        let next = match request.uri().path() {
            "/v1" => Some(target),
            "/twice" => Some("/thrice"),
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

/// Creates a request without a body, because tower-http's default policy does not redirect a request with a body.
fn get() -> Request<Content> {
    Request::get(URI).body(Content::default()).unwrap()
}

#[tokio::test]
async fn key_is_sent_only_to_allowed_origins_with_follow_redirect_layer_above_auth() {
    let files = Origin::parse("https://files.example.com").unwrap();
    for (name, placement) in placements() {
        for (target, expected) in [
            ("https://evil.test/collect", &[true, false][..]),
            (TWO_REDIRECTS, &[true, false, false]),
            ("https://api.example.com/v2", &[true, true]),
            ("/v2", &[true, true]),
            ("https://files.example.com/v2", &[true, true]),
            ("http://api.example.com/v2", &[true, false]),
            ("https://api.example.com:8443/v2", &[true, false]),
            ("https://api.example.com.evil.test/v2", &[true, false]),
        ] {
            let (server, seen) = server(target);
            let auth = auth(placement.clone()).with_allowed_origin(files.clone()).unwrap();
            let service = FollowRedirectLayer::new().layer(auth.layer(server));
            assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
            assert_eq!(*seen.lock().unwrap(), expected, "{name} to {target}");
        }
    }
}

/// Follows redirects with tower-http 0.6. Its policy removes all headers at another origin if `removes_all` is `true`.
fn following_06(server: Server, removes_all: bool) -> Server {
    use tower_http_06::follow_redirect::{FollowRedirectLayer, policy::*};

    if !removes_all {
        return BoxCloneSyncService::new(FollowRedirectLayer::new().layer(server));
    }
    let policy = Limited::new(5).and::<_, Content, BoxError>(FilterCredentials::new().remove_all());
    BoxCloneSyncService::new(FollowRedirectLayer::with_policy(policy).layer(server))
}

/// Like [`following_06`], with tower-http 0.7.
fn following_07(server: Server, removes_all: bool) -> Server {
    use tower_http::follow_redirect::{FollowRedirectLayer, policy::*};

    if !removes_all {
        return BoxCloneSyncService::new(FollowRedirectLayer::new().layer(server));
    }
    let policy = Limited::new(5).and::<_, Content, BoxError>(FilterCredentials::new().remove_all());
    BoxCloneSyncService::new(FollowRedirectLayer::with_policy(policy).layer(server))
}

/// The documentation of the `auth` module describes which redirects leak the key. If tower-http becomes stricter, this
/// test fails and the documentation needs a change.
#[tokio::test]
async fn key_leaks_to_redirect_targets_with_follow_redirect_layer_below_auth() {
    type Follow = fn(Server, bool) -> Server;
    let (old, new): (Follow, Follow) = (following_06, following_07);
    for (name, placement) in placements() {
        let (is_own_header, is_query) = (name == "x-api-key", name == "query");
        for (version, follow, removes_all, target, expected) in [
            ("0.6", old, false, TWO_REDIRECTS, &[true, is_own_header, !is_query][..]),
            ("0.6", old, true, TWO_REDIRECTS, &[true, false, !is_query]),
            ("0.7", new, false, TWO_REDIRECTS, &[true, is_own_header, is_own_header]),
            ("0.7", new, true, TWO_REDIRECTS, &[true, false, false]),
            ("0.7", new, false, "https://api.example.com/v2", &[true, !is_query]),
        ] {
            let (server, seen) = server(target);
            let service = auth(placement.clone()).layer(follow(server, removes_all));
            assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
            assert_eq!(
                *seen.lock().unwrap(),
                expected,
                "{name}, tower-http {version}, removes all: {removes_all}"
            );
        }
    }
}
