//! Tests the features of a reqwest client inside the layers: redirects, reqwest's own retries, proxies, default
//! headers, `https_only` and gzip.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method, Request, request::Parts};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, Error, Quota,
    adapter::Reqwest,
    auth::{AuthLayer, KeyPlacement, Origin},
    call::{Outcome, StopReason},
    limit::{LocalLimiter, RateLimitLayer},
};

use super::{
    Site, builder, builder_of, error_texts, inner, ok_site, reply,
    server::{CLOSE_IN_BODY, RESET_IN_HEADERS, Script, Server, Step, refusing},
    site,
    stack::{Wire, quick_retry},
    within,
};

const KEY: &str = "s3cret-0123456789";

type Content = Full<Bytes>;

fn request(method: Method, url: &str) -> Request<Content> {
    let body = if method == Method::POST { Content::from("letter") } else { Content::default() };
    Request::builder().method(method).uri(url).body(body).unwrap()
}

fn auth(placement: KeyPlacement, url: &str) -> AuthLayer {
    let layer = AuthLayer::new(ApiKey::new(KEY).unwrap(), Origin::parse(url).unwrap());
    layer.unwrap().with_placement(placement)
}

fn placements() -> [KeyPlacement; 3] {
    let header = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
    [KeyPlacement::bearer(), header, KeyPlacement::query("k").unwrap()]
}

fn has_key(head: &Parts) -> bool {
    let is_key = |value: &http::HeaderValue| value.to_str().is_ok_and(|value| value.contains(KEY));
    head.uri.to_string().contains(KEY) || head.headers.values().any(is_key)
}

/// Starts a server that redirects every request to another one. Returns both.
async fn redirecting(status: u16) -> (Site, Site) {
    let elsewhere = ok_site().await;
    let location = format!("{}/there", elsewhere.url());
    let site = Site::start(site::Wire::Http1, move |_, _| {
        let mut redirect = reply(status, "");
        redirect.headers_mut().insert("location", location.parse().unwrap());
        async { Some(redirect) }
    });
    (site.await, elsewhere)
}

/// Returns a builder whose client follows redirects. `Reqwest::new` overrides this setting.
fn following_redirects() -> reqwest::ClientBuilder {
    builder().redirect(reqwest::redirect::Policy::limited(5))
}

#[tokio::test]
async fn adapter_returns_a_redirect_response_without_following_it() {
    for placement in placements() {
        for method in [Method::GET, Method::POST] {
            for status in [301, 302, 303, 307, 308] {
                let (site, elsewhere) = redirecting(status).await;
                let service =
                    auth(placement.clone(), &site.url()).layer(Reqwest::new(following_redirects()).unwrap());
                let response = within(service.oneshot(request(method.clone(), &site.url()))).await.unwrap();
                assert_eq!(response.status(), status);
                assert!(site.heads().iter().all(has_key) && elsewhere.heads().is_empty());
            }
        }
    }
}

/// The docs of `from_client` describe this case: the key leaks, but the first redirect makes the call fail.
#[tokio::test]
async fn call_over_a_client_that_follows_redirects_fails_at_the_first_redirect_without_a_retry() {
    for (status, method) in [(307, Method::GET), (302, Method::POST), (303, Method::POST)] {
        let (site, elsewhere) = redirecting(status).await;
        let client = Reqwest::from_client(following_redirects().build().unwrap());
        let placement = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
        let service = quick_retry().layer(auth(placement, &site.url()).layer(client));
        let error = within(service.oneshot(request(method, &site.url()))).await.unwrap_err();
        let cause = "reqwest followed a redirect: build its client with redirect::Policy::none()";
        assert!(error.is_service(), "{error:?}");
        assert_eq!(error.to_string(), format!("service failed: {cause}"));
        assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotRetryable));
        assert_eq!(site.requests() + elsewhere.requests(), 2);
        assert!(
            elsewhere.heads().iter().all(has_key),
            "reqwest no longer sends the key to the redirect target: update the docs of `from_client`"
        );
    }
}

/// By default, reqwest resends a bytes body after REFUSED_STREAM and GOAWAY. Such retries take no permit and are not in
/// the report.
#[tokio::test]
async fn adapter_disables_the_retries_of_reqwest() {
    const REFUSED: Script = &[&[Step::Reset(7)]];
    const GOAWAY: Script = &[&[Step::Process, Step::GoAway { reason: 0, id_offset: -2 }, Step::Close]];
    let prior_knowledge = || builder_of(Wire::Http2);
    for failure in [REFUSED, GOAWAY] {
        for method in [Method::POST, Method::GET] {
            for reqwest in [
                Reqwest::new(prior_knowledge().retry(reqwest::retry::for_host("127.0.0.1").classify_fn(
                    |failed| if failed.status().is_none() { failed.retryable() } else { failed.success() },
                )))
                .unwrap(),
                Reqwest::from_client(prior_knowledge().build().unwrap()),
            ] {
                let server = Server::start(Wire::Http2, &[failure]).await;
                let bucket = LocalLimiter::token_bucket(Quota::per_minute(100).unwrap());
                let service = RateLimitLayer::new(bucket.clone()).layer(reqwest);
                let error = within(service.oneshot(request(method.clone(), server.url()))).await.unwrap_err();
                assert!(error.is_service(), "{error:?}");
                assert_eq!(server.connections(), 1, "{failure:?}");
            }
        }
    }
    // Without the adapter, reqwest retries. If this assertion fails, update the adapter's docs.
    let server = Server::start(Wire::Http2, &[REFUSED]).await;
    let bare = prior_knowledge().build().unwrap().post(server.url()).body("letter").send();
    assert_eq!(within(bare).await.unwrap().status(), 200);
}

#[tokio::test]
async fn key_in_the_query_appears_in_no_error_or_debug_output() {
    let refused = refusing();
    let refused_url = format!("http://{}/v1", refused.local_addr().unwrap());
    let reset = Server::start(Wire::Http1, &[RESET_IN_HEADERS; 2]).await;
    const SILENT: Script = &[&[Step::Process]];
    let silent = Server::start(Wire::Http2, &[SILENT; 4]).await;
    let cut = Server::start(Wire::Http1, &[CLOSE_IN_BODY]).await;
    let query = || KeyPlacement::query("k").unwrap();

    let clients = [
        (refused_url.as_str(), builder()),
        (reset.url(), builder()),
        (silent.url(), builder_of(Wire::Http2).timeout(Duration::from_millis(50))),
        (silent.url(), builder().https_only(true)),
    ];
    for (url, builder) in clients {
        for reqwest in
            [Reqwest::from_client(following_redirects().build().unwrap()), Reqwest::new(builder).unwrap()]
        {
            let service = auth(query(), url).layer(reqwest.clone());
            let call = service.oneshot(request(Method::GET, url));
            assert!(!format!("{reqwest:?}").contains(KEY));
            let error: Error = match tokio::time::timeout(Duration::from_millis(300), call).await {
                Ok(result) => result.unwrap_err(),
                Err(_) => continue, // A client without a timeout waits forever for the silent server.
            };
            assert!(!error_texts(&error).contains(KEY), "{error:?}");
        }
    }
    let service = auth(query(), cut.url()).layer(inner(Wire::Http1));
    let response = within(service.oneshot(request(Method::GET, cut.url()))).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    assert!(error.is::<reqwest::Error>() && !error_texts(&*error).contains(KEY), "{error:?}");

    // Without the adapter, reqwest's error contains the key. If this assertion fails, update the adapter's docs.
    let bare = builder().build().unwrap().get(format!("{refused_url}?k={KEY}")).send().await.unwrap_err();
    assert!(error_texts(&bare).contains(KEY));
}

/// The adapter rejects a URI that reqwest would change, because the sent request would then differ from the signed
/// request.
#[tokio::test]
async fn adapter_rejects_a_uri_that_reqwest_would_rewrite() {
    let site = ok_site().await;
    for target in ["/v1/../admin", "/v1?q='x'"] {
        let service = quick_retry().layer(inner(Wire::Http1));
        let error =
            service.oneshot(request(Method::GET, &format!("{}{target}", site.url()))).await.unwrap_err();
        assert!(error.is_invalid_request(), "{error:?}");
        assert_eq!(error.report().unwrap().attempts()[0].outcome, Some(Outcome::NotSent));
    }
    assert_eq!(site.requests(), 0);
}

/// The auth layer sends a key to loopback without TLS, so a proxy could read the key.
#[tokio::test]
async fn proxy_receives_the_key_for_loopback_unless_the_builder_disables_proxies() {
    let proxy = ok_site().await;
    let site = ok_site().await;
    let builder = || builder().proxy(reqwest::Proxy::all(proxy.url()).unwrap());
    for (builder, proxied) in [(builder(), 1), (builder().no_proxy(), 1)] {
        let service = auth(KeyPlacement::bearer(), &site.url()).layer(Reqwest::new(builder).unwrap());
        within(service.oneshot(request(Method::GET, &site.url()))).await.unwrap();
        assert_eq!(proxy.heads().iter().filter(|head| has_key(head)).count(), proxied);
    }
    assert_eq!(site.requests(), 1);
}

/// reqwest adds its default headers to requests for every origin, after the layers of this crate have run. A default
/// header does not replace an existing header.
#[tokio::test]
async fn default_headers_of_reqwest_go_to_every_origin_and_do_not_replace_the_key() {
    let default = [("x-api-key", "default"), ("x-tenant", "7")];
    let headers =
        default.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let site = ok_site().await;
    let reqwest = Reqwest::new(builder().default_headers(headers)).unwrap();
    let placement = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
    for (origin, key) in [(&*site.url(), KEY), ("https://api.example.com", "default")] {
        let service = auth(placement.clone(), origin).layer(reqwest.clone());
        within(service.oneshot(request(Method::GET, &site.url()))).await.unwrap();
        let seen = site.heads().pop().unwrap().headers;
        assert_eq!((&seen["x-api-key"], &seen["x-tenant"]), (&key.parse().unwrap(), &"7".parse().unwrap()));
    }
}

#[tokio::test]
async fn call_to_an_http_url_fails_without_retry_if_https_only_is_set() {
    let site = ok_site().await;
    let service = quick_retry().layer(Reqwest::new(builder().https_only(true)).unwrap());
    let error = service.oneshot(request(Method::GET, &site.url())).await.unwrap_err();
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotRetryable), "{error:?}");
    assert!(error.to_string().contains(": reqwest's setting `https_only` forbids the url"), "{error}");
    assert_eq!(site.requests(), 0);
}
