//! What reqwest does by itself, below the layers, and what becomes of it here.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, Error, Quota,
    adapter::Reqwest,
    auth::{AuthLayer, KeyPlacement, Origin},
    call::{Outcome, StopReason},
    limit::{RateLimitLayer, TokenBucket},
};

use super::{
    Seen, Site, builder, empty,
    frames::{PROCESS_AND_RESPOND, Step},
    server::{Behavior, Server, refusing},
    shown,
    stack::{Wire, quick_retry, within},
    text,
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

fn forms() -> [KeyPlacement; 3] {
    let header = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
    [KeyPlacement::bearer(), header, KeyPlacement::query("k").unwrap()]
}

fn has_key(seen: &Seen) -> bool {
    format!("{seen:?}").contains(KEY)
        || seen.headers.values().any(|value| value.to_str().is_ok_and(|value| value.contains(KEY)))
}

/// With what a user may have in the builder: it is overridden.
fn following() -> reqwest::ClientBuilder {
    builder().redirect(reqwest::redirect::Policy::limited(5))
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_the_key_stays() {
    for form in forms() {
        for method in [Method::GET, Method::POST] {
            for status in [301, 302, 303, 307, 308] {
                let elsewhere = Site::start(|_, _| async { Response::new(empty()) }).await;
                let site = Site::moved(status, format!("{}/there", elsewhere.url)).await;
                let service = auth(form.clone(), &site.url).layer(Reqwest::new(following()).unwrap());
                let response = within(service.oneshot(request(method.clone(), &site.url))).await.unwrap();
                assert_eq!(response.status(), status);
                assert!(site.seen().iter().all(has_key) && elsewhere.seen().is_empty());
            }
        }
    }
}

#[tokio::test]
async fn a_location_that_is_no_url_is_an_answer_too() {
    for target in ["mailto:ann@example.com", "ftp://127.0.0.1/", "http://1.2.3.4.5/", "http://["] {
        let site = Site::moved(302, target.to_owned()).await;
        let service = quick_retry().layer(Reqwest::new(following().https_only(false)).unwrap());
        let response = within(service.oneshot(request(Method::POST, &site.url))).await.unwrap();
        assert_eq!((response.status().as_u16(), site.seen().len()), (302, 1), "{target}");
    }
}

/// To reqwest that is an error of the request as it was made, like `https_only`, but this one was processed.
#[tokio::test]
async fn a_ready_client_that_was_sent_to_another_scheme_has_sent() {
    let site = Site::moved(302, format!("ftp://127.0.0.1/?k={KEY}")).await;
    let service = quick_retry().layer(Reqwest::from_client(following().build().unwrap()));
    let error = within(service.oneshot(request(Method::POST, &site.url))).await.unwrap_err();
    let attempts = error.report().unwrap().attempts();
    let outcomes: Vec<_> = attempts.iter().filter_map(|attempt| attempt.outcome).collect();
    assert_eq!((outcomes, site.seen().len()), (vec![Outcome::Failed], 1), "{error:?}");
    assert!(!shown(&error).contains(KEY), "{error:?}");
}

/// What `from_client` says of a client that follows redirects. The key is gone, but it is heard of at once.
#[tokio::test]
async fn a_ready_client_that_follows_fails_at_the_first_redirect_and_is_not_asked_again() {
    for (status, method) in [(307, Method::GET), (302, Method::POST), (303, Method::POST)] {
        let elsewhere = Site::start(|_, _| async { Response::new(empty()) }).await;
        let site = Site::moved(status, format!("{}/there", elsewhere.url)).await;
        let client = Reqwest::from_client(following().build().unwrap());
        let form = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
        let service = quick_retry().layer(auth(form, &site.url).layer(client));
        let error = within(service.oneshot(request(method, &site.url))).await.unwrap_err();
        assert!(error.is_service() && shown(&error).contains("Policy::none()"), "{error:?}");
        assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotRetryable));
        assert_eq!(site.seen().len() + elsewhere.seen().len(), 2);
        assert!(elsewhere.seen().iter().all(has_key), "if reqwest is stricter, so may the manual be");
    }
}

/// The first address has processed the POST; that the second one refuses is no proof of anything.
#[tokio::test]
async fn a_ready_client_proves_nothing_by_a_connection_that_was_refused() {
    let nobody = refusing();
    let site = Site::moved(302, format!("http://{}/there?k={KEY}", nobody.local_addr().unwrap())).await;
    let service = quick_retry().layer(Reqwest::from_client(following().build().unwrap()));
    let error = within(service.oneshot(request(Method::POST, &site.url))).await.unwrap_err();
    assert_eq!(site.seen().iter().filter(|seen| seen.method == Method::POST).count(), 1, "{error:?}");
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotIdempotent));
    assert!(!shown(&error).contains(KEY), "{error:?}");
}

/// The error of `https_only` has the URL of the hop in its source, out of reach of `without_url`.
#[tokio::test]
async fn an_error_of_a_redirect_has_no_url_either() {
    let site = Site::moved(307, format!("http://127.0.0.1:1/?k={KEY}")).await;
    let policy = reqwest::redirect::Policy::custom(|attempt| {
        let url = attempt.url().to_string();
        attempt.error(url)
    });
    let client = builder().redirect(policy).build().unwrap();
    let service = quick_retry().layer(Reqwest::from_client(client));
    let error = within(service.oneshot(request(Method::GET, &site.url))).await.unwrap_err();
    assert_eq!(site.seen().len(), 1);
    assert!(!shown(&error).contains(KEY), "{error:?}");
}

#[tokio::test]
async fn a_ready_client_with_its_redirects_off_works() {
    let site = Site::moved(302, "/there".to_owned()).await;
    let client = builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let service = quick_retry().layer(Reqwest::from_client(client));
    let response = within(service.oneshot(request(Method::POST, &site.url))).await.unwrap();
    assert_eq!((response.status().as_u16(), site.seen().len()), (302, 1));
}

/// reqwest sends a body of bytes again after REFUSED_STREAM and GOAWAY, past the limiter and the report.
#[tokio::test]
async fn reqwest_sends_nothing_again_by_itself() {
    const REFUSED: &[Step] = &[Step::Reset(7)];
    const GONE: &[Step] = &[Step::Process, Step::GoAway { reason: 0, id_offset: -2 }, Step::Close];
    let prior_knowledge = || builder().http2_prior_knowledge();
    for what in [REFUSED, GONE] {
        let acts: &'static [Behavior] =
            Box::leak(Box::new([Behavior::Steps(Box::leak(Box::new([what, PROCESS_AND_RESPOND])))]));
        for method in [Method::POST, Method::GET] {
            for reqwest in [
                Reqwest::new(prior_knowledge().retry(reqwest::retry::for_host("127.0.0.1").classify_fn(
                    |failed| if failed.status().is_none() { failed.retryable() } else { failed.success() },
                )))
                .unwrap(),
                Reqwest::from_client(prior_knowledge().build().unwrap()),
            ] {
                let server = Server::start(Wire::Http2, acts).await;
                let bucket = TokenBucket::new(Quota::per_minute(100).unwrap());
                let service = RateLimitLayer::new(bucket.clone()).layer(reqwest);
                let error = within(service.oneshot(request(method.clone(), server.url()))).await.unwrap_err();
                assert!(error.is_service(), "{error:?}");
                assert_eq!(server.connections(), 1, "{what:?}");
            }
        }
    }
    // And the bare client does: when this fails, the manual has a trap too many.
    let acts: &'static [Behavior] = &[Behavior::Steps(&[REFUSED, PROCESS_AND_RESPOND])];
    let server = Server::start(Wire::Http2, acts).await;
    let bare = prior_knowledge().build().unwrap().post(server.url()).body("letter").send();
    assert_eq!(within(bare).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_key_in_the_query_is_in_no_error_and_no_debug() {
    let nobody = refusing();
    let nowhere = format!("http://{}/v1", nobody.local_addr().unwrap());
    let reset = Server::start(Wire::Http1, &[Behavior::ResetInHeaders; 2]).await;
    let silent = Server::start(Wire::Http2, &[Behavior::Steps(&[&[Step::Process]]); 4]).await;
    let cut = Server::start(Wire::Http1, &[Behavior::CloseInBody]).await;
    let query = || KeyPlacement::query("k").unwrap();

    let clients = [
        (nowhere.as_str(), builder()),
        (reset.url(), builder()),
        (silent.url(), builder().http2_prior_knowledge().timeout(Duration::from_millis(50))),
        (silent.url(), builder().https_only(true)),
    ];
    for (url, builder) in clients {
        for reqwest in [Reqwest::from_client(following().build().unwrap()), Reqwest::new(builder).unwrap()] {
            let service = auth(query(), url).layer(reqwest.clone());
            let called = service.oneshot(request(Method::GET, url));
            assert!(!format!("{reqwest:?}").contains(KEY));
            let error: Error = match tokio::time::timeout(Duration::from_millis(300), called).await {
                Ok(answered) => answered.unwrap_err(),
                Err(_) => continue, // The one without a timeout.
            };
            assert!(!shown(&error).contains(KEY), "{error:?}");
        }
    }
    let service = auth(query(), cut.url()).layer(Reqwest::new(builder()).unwrap());
    let response = within(service.oneshot(request(Method::GET, cut.url()))).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    assert!(error.is::<reqwest::Error>() && !shown(&*error).contains(KEY), "{error:?}");

    // And the bare client's has it: when this fails, the manual has a trap too many.
    let bare = builder().build().unwrap().get(format!("{nowhere}?k={KEY}")).send().await.unwrap_err();
    assert!(shown(&bare).contains(KEY));
}

/// A URI that a `Url` has another spelling for is refused, and not sent otherwise than it was signed.
#[tokio::test]
async fn a_uri_that_reqwest_would_rewrite_is_not_sent() {
    let site = Site::start(|_, _| async { Response::new(empty()) }).await;
    for target in ["/v1/../admin", "/v1?q='x'"] {
        let service = quick_retry().layer(Reqwest::new(builder()).unwrap());
        let error =
            service.oneshot(request(Method::GET, &format!("{}{target}", site.url))).await.unwrap_err();
        assert!(error.is_invalid_request(), "{error:?}");
        assert_eq!(error.report().unwrap().attempts()[0].outcome, Some(Outcome::NotSent));
    }
    assert!(site.seen().is_empty());
}

/// The auth layer lets a key go to loopback without TLS, for nobody reads along there. A proxy does.
#[tokio::test]
async fn a_proxy_reads_what_goes_to_loopback_unless_the_builder_has_none() {
    let proxy = Site::start(|_, _| async { Response::new(text("from the proxy")) }).await;
    let site = Site::start(|_, _| async { Response::new(empty()) }).await;
    let builder = || builder().proxy(reqwest::Proxy::all(&proxy.url).unwrap());
    for (builder, proxied) in [(builder(), 1), (builder().no_proxy(), 1)] {
        let service = auth(KeyPlacement::bearer(), &site.url).layer(Reqwest::new(builder).unwrap());
        within(service.oneshot(request(Method::GET, &site.url))).await.unwrap();
        assert_eq!(proxy.seen().iter().filter(|seen| has_key(seen)).count(), proxied);
    }
    assert_eq!(site.seen().len(), 1);
}

/// They are put on below the layers, to any origin, and never over what is there.
#[tokio::test]
async fn default_headers_do_not_replace_the_key_and_go_everywhere() {
    let default = [("x-api-key", "default"), ("x-tenant", "7")];
    let headers =
        default.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let site = Site::start(|_, _| async { Response::new(empty()) }).await;
    let reqwest = Reqwest::new(builder().default_headers(headers)).unwrap();
    let form = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
    for (origin, key) in [(&*site.url, KEY), ("https://api.example.com", "default")] {
        let service = auth(form.clone(), origin).layer(reqwest.clone());
        within(service.oneshot(request(Method::GET, &site.url))).await.unwrap();
        let seen = site.seen().pop().unwrap().headers;
        assert_eq!((&seen["x-api-key"], &seen["x-tenant"]), (&key.parse().unwrap(), &"7".parse().unwrap()));
    }
}

#[tokio::test]
async fn https_only_sends_nothing_and_is_not_tried_again() {
    let site = Site::start(|_, _| async { Response::new(empty()) }).await;
    let service = quick_retry().layer(Reqwest::new(builder().https_only(true)).unwrap());
    let error = service.oneshot(request(Method::GET, &site.url)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 1, "{error:?}");
    assert!(site.seen().is_empty());
}

/// 45 bytes that hold 10 KiB: with reqwest's feature `gzip` the cap counts what comes out.
#[tokio::test]
async fn a_decompressed_body_is_capped_by_what_comes_out() {
    const ZEROS: &[u8] = &[
        0x1f, 0x8b, 0x8, 0x0, 0x0, 0x0, 0x0, 0x0, 0x2, 0x3, 0xed, 0xc1, 0x1, 0xd, 0x0, 0x0, 0x0, 0xc2, 0xa0,
        0xf7, 0x4f, 0x6d, 0xe, 0x37, 0xa0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x80, 0x37, 0x3,
        0x9a, 0xde, 0x1d, 0x27, 0x0, 0x28, 0x0, 0x0,
    ];
    let site = Site::start(|_, _| async {
        let body = Full::from(ZEROS).map_err(Into::into).boxed_unsync();
        Response::builder().header("content-encoding", "gzip").body(body).unwrap()
    })
    .await;
    for (builder, expected) in [(builder(), true), (builder().no_gzip(), false)] {
        let service = Reqwest::new(builder).unwrap();
        let response = within(service.oneshot(request(Method::GET, &site.url))).await.unwrap();
        let body = tower_outbound::Body::new(response.into_body());
        assert_eq!(body.collect(4096).await.is_err(), expected);
    }
}
