//! A server repeats the key in an HTTP/2 GOAWAY or in its certificate. Errors and reports of this crate do not show it.

use std::{error::Error as StdError, fmt::Debug};

use hyper_util::client::legacy::connect::HttpConnector;
use tower_outbound::{
    ErrorKind,
    auth::{FreshKey, KeySource, RefreshingKey},
    client::Transport,
};
use tracing::level_filters::LevelFilter;

use super::{
    peer::{self, Before},
    support::capture::Capture,
    *,
};

const KEY: &str = "5ecr3t-k3y-0f-the-tests";
const GONE: &str = "http2: connection closed by the server (GOAWAY, ENHANCE_YOUR_CALM)";

#[track_caller]
fn hidden(shown: &dyn Debug) {
    let shown = format!("{shown:?} {shown:#?}");
    assert!(!shown.contains(KEY), "{shown}");
}

/// Asserts that neither the error nor anything behind its `source()` shows the key.
#[track_caller]
fn check(error: &(dyn StdError + 'static)) {
    let mut next = Some(error);
    let mut last = String::new();
    while let Some(error) = next {
        hidden(&error);
        last = format!("{error}");
        assert!(!last.contains(KEY) && !format!("{error:#}").contains(KEY), "{error:#}");
        next = error.source();
    }
    assert_eq!(last, GONE, "only the reason remains");
}

fn address(before: Before) -> String {
    format!("http://{}", peer::serve(move |stream| peer::echo_in_goaway(stream, before)))
}

fn keyed(url: &str) -> StackBuilder {
    preset(url).with_api_key(ApiKey::new(KEY).unwrap())
}

fn http2() -> Transport {
    Transport::new().with_http2_prior_knowledge()
}

/// Returns level and target of each record of any crate that contains the key.
fn leaks(capture: &Capture) -> Vec<(String, String)> {
    let records = capture.take().into_iter().filter(|record| record.contains(KEY));
    let words = records.map(|record| {
        let mut words = record.split(' ').skip(1).map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    });
    words.collect()
}

/// Asserts that the documented filter, `h2=info,hyper=info,hyper_util=info,tonic=info`, drops the records of other crates.
#[track_caller]
fn check_log(capture: &Capture, heard: bool) {
    let leaks = leaks(capture);
    assert_eq!(!leaks.is_empty(), heard, "h2 logs it at its own levels: {leaks:?}");
    for (level, target) in leaks {
        let filtered = ["h2", "hyper", "hyper_util"].contains(&target.split("::").next().unwrap());
        assert!(filtered && ["DEBUG", "TRACE"].contains(&level.as_str()), "{level} {target}");
    }
}

#[tokio::test]
async fn redacts_the_debug_data_of_a_goaway_in_the_error_of_a_call() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let url = address(Before::Response);
    let error = keyed(&url).client_with_transport(http2()).unwrap().get("/v1").await.unwrap_err();
    check(&error);
    hidden(&error.report());
    assert_eq!((error.kind(), error.report().unwrap().attempt_count()), (ErrorKind::Closed, 3));
    assert!(format!("{error:?}").ends_with(&format!(": {GONE}")), "{error:?}");

    // A POST is not retried: the redacted error proves as little as the original.
    let error = keyed(&url).client_with_transport(http2()).unwrap().post("/v1", "").await.unwrap_err();
    check(&error);
    assert_eq!(error.report().unwrap().attempt_count(), 1);

    // Through single layers instead of a preset.
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let service = ServiceBuilder::new().layer(RequestIdLayer::new()).layer(retry()).service(client);
    let mut request = request(&url, no_body());
    request.headers_mut().insert("authorization", KEY.parse().unwrap());
    check(&service.oneshot(request).await.unwrap_err());
    check_log(&capture, true);
}

#[tokio::test]
async fn redacts_the_debug_data_of_a_goaway_in_the_error_of_a_response_body() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let url = address(Before::EndOfBody);
    let client = keyed(&url).client_with_transport(http2()).unwrap();
    let error = client.get("/v1").await.unwrap().into_body().collect(1_024).await.unwrap_err();
    check(&*error);
    #[cfg(feature = "json")]
    {
        let error = client.get_json::<u8>("/v1").await.unwrap_err();
        check(&error);
    }

    // The body of a client other than hyper's.
    let other = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let other = other.map_response(|response: http::Response<_>| response.map(BodyExt::boxed));
    let client = keyed(&url).client_with_service(other).unwrap();
    check(&*client.get("/v1").await.unwrap().into_body().collect(1_024).await.unwrap_err());

    // The body of a preset's layer over hyper's client.
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let service = tower::Layer::layer(&keyed(&url).layer().unwrap(), client);
    let response = service.oneshot(request(&url, no_body())).await.unwrap();
    check(&*response.into_body().collect().await.unwrap_err());
    check_log(&capture, true);
}

/// The request's body is the response of another server, which sends the GOAWAY.
#[tokio::test]
async fn redacts_the_debug_data_of_a_goaway_to_the_source_of_a_request_body() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let source = address(Before::EndOfBody);
    let mut get = request(&source, no_body());
    get.headers_mut().insert("authorization", KEY.parse().unwrap());
    let body = client.request(get).await.unwrap().into_body();
    let reads = peer::serve(|mut stream| async move {
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut Vec::new()).await;
    });
    let service = tower::Layer::layer(&retry(), legacy::Client::builder(TokioExecutor::new()).build_http());
    let error = service.oneshot(request(&format!("http://{reads}"), body)).await.unwrap_err();
    check(&error);
    assert_eq!(error.kind(), ErrorKind::Body);
    check_log(&capture, true);
}

/// The key provider calls a token server, which sends the GOAWAY.
#[tokio::test]
async fn redacts_the_debug_data_of_a_goaway_to_a_key_provider() {
    let tokens = address(Before::Response);
    let keys: KeySource = RefreshingKey::new(move || {
        let mut request = request(&tokens, no_body());
        request.headers_mut().insert("authorization", KEY.parse().unwrap());
        let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        async move {
            client.request(request).await?;
            Ok::<_, BoxError>(FreshKey::new(ApiKey::new("never")?))
        }
    })
    .into();
    let client = preset("http://127.0.0.1:9").with_keys(keys.clone()).client().unwrap();
    let error = client.get("/v1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth);
    check(&error);
    check(&keys.last_error().unwrap());
}

#[tokio::test]
async fn keeps_the_te_of_a_response_out_of_errors_and_own_events() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let url = format!("http://{}", peer::serve(peer::echo_in_te));
    let error = keyed(&url).client_with_transport(http2()).unwrap().get("/v1").await.unwrap_err();
    hidden(&error);
    assert!(!format!("{error:#}").contains(KEY), "{error:#}");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error:?}");
    check_log(&capture, true);
}

/// A certificate may have hundreds of names.
#[cfg(feature = "rustls")]
#[tokio::test]
async fn redacts_the_names_in_a_certificate() {
    let names: Vec<_> = (0..50).map(|number| format!("{KEY}-{number}.test")).collect();
    let other = rcgen::generate_simple_self_signed(names).unwrap();
    let server =
        super::support::server::Server::with_statuses(super::support::certificate::wire(&other, &[]), [200])
            .await;
    let error = keyed(&server.url())
        .client_with_transport(super::support::certificate::trusting(&other))
        .unwrap()
        .get("/v1")
        .await;
    let error = error.unwrap_err();
    hidden(&error);
    let source = error.source().unwrap();
    hidden(&source);
    assert!(source.source().is_none());
    assert_eq!(source.to_string(), "invalid peer certificate: not valid for name \"127.0.0.1\"");
    assert!(!format!("{error:#}").contains(KEY), "{error:#}");
    // The call is not retried after a wrong certificate.
    assert_eq!((error.kind(), error.report().unwrap().attempt_count()), (ErrorKind::Tls, 1));
}
