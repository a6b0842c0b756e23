//! Tests which redirected requests contain the key, with tower-http's `FollowRedirect` above or below the auth layer.

use http::{Response, Uri, header::LOCATION};
use http_body_util::Full;
use tower::util::BoxCloneSyncService;
use tower_http::follow_redirect::policy::{FilterCredentials, Limited, PolicyExt};
use tower_outbound::auth::AuthLayer;

use super::*;

const KEY: &str = "s3cret-0123456789";
/// The base64 form of `ann:` followed by the key, as basic authentication sends the key.
const BASE64_KEY: &str = "YW5uOnMzY3JldC0wMTIzNDU2Nzg5";

const URI: &str = "https://api.example.com/v1";
const SAME_ORIGIN: &str = "https://api.example.com/v2";
const OTHER_ORIGIN: &str = "https://evil.test/collect";
/// A redirect target that redirects again, to another path of the target's origin.
const TWO_REDIRECTS: &str = "https://evil.test/twice";

type Content = Full<Bytes>;
type Client = BoxCloneSyncService<Request<Content>, Response<Content>, BoxError>;
type Seen = Arc<Mutex<Vec<(Uri, bool)>>>;

/// Returns a service that redirects `/v1` to `target` and `/twice` to `/thrice`, and responds to other paths with 200.
/// The service records the URI of each request, and whether the request contained the key.
fn server(target: &'static str) -> (Client, Seen) {
    let seen = Seen::default();
    let record = Arc::clone(&seen);
    let server = service_fn(move |request: Request<Content>| {
        let values = request.headers().values().map(|value| String::from_utf8_lossy(value.as_bytes()).into());
        let parts: Vec<String> = values.chain([request.uri().to_string()]).collect();
        let has_key = parts.iter().any(|part| part.contains(KEY) || part.contains(BASE64_KEY));
        record.lock().unwrap().push((request.uri().clone(), has_key));
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
fn get(uri: &str) -> Request<Content> {
    Request::get(uri).body(Content::default()).unwrap()
}

/// Returns for each request whether it contained the key.
fn has_key(seen: &Seen) -> Vec<bool> {
    seen.lock().unwrap().iter().map(|(_, has_key)| *has_key).collect()
}

#[tokio::test]
async fn key_is_sent_only_to_allowed_origins_with_follow_redirect_layer_above_auth() {
    let files = Origin::parse("https://files.example.com").unwrap();
    for (name, placement) in placements() {
        for (target, expected) in [
            (OTHER_ORIGIN, &[true, false][..]),
            (TWO_REDIRECTS, &[true, false, false]),
            (SAME_ORIGIN, &[true, true]),
            ("/v2", &[true, true]),
            ("https://files.example.com/v2", &[true, true]),
            ("http://api.example.com/v2", &[true, false]),
            ("https://api.example.com:8443/v2", &[true, false]),
            ("https://api.example.com.evil.test/v2", &[true, false]),
        ] {
            let (server, seen) = server(target);
            let auth = auth(placement.clone()).with_allowed_origin(files.clone()).unwrap();
            let service = FollowRedirectLayer::new().layer(auth.layer(server));
            assert_eq!(service.oneshot(get(URI)).await.unwrap().status(), 200);
            assert_eq!(has_key(&seen), expected, "{name} to {target}");
        }
    }
}

/// The documentation of the `auth` module describes which redirects leak the key. If tower-http becomes stricter, this
/// test fails and the documentation needs a change. In tower-http 0.6, the second redirect sent the key that the first
/// redirect had removed.
#[tokio::test]
async fn follow_redirect_layer_below_auth_leaks_only_a_custom_header_unless_its_policy_removes_all_headers() {
    for (name, placement) in placements() {
        let leaks = name == "x-api-key";
        for (target, expected) in [
            (OTHER_ORIGIN, &[true, leaks][..]),
            (SAME_ORIGIN, &[true, name != "query"]),
            (TWO_REDIRECTS, &[true, leaks, leaks]),
        ] {
            let (server, seen) = server(target);
            let service = auth(placement.clone()).layer(FollowRedirectLayer::new().layer(server.clone()));
            assert_eq!(service.oneshot(get(URI)).await.unwrap().status(), 200);
            assert_eq!(has_key(&seen), expected, "{name} to {target}");

            seen.lock().unwrap().clear();
            let policy = Limited::new(5).and::<_, Content, BoxError>(FilterCredentials::new().remove_all());
            let strict = FollowRedirectLayer::with_policy(policy).layer(server);
            assert_eq!(auth(placement.clone()).layer(strict).oneshot(get(URI)).await.unwrap().status(), 200);
            assert!(target == SAME_ORIGIN || !has_key(&seen)[1..].contains(&true), "{name} to {target}");
        }
    }
}
