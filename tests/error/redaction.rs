//! Tests that no error, report or log shows a key that the server repeats in a GOAWAY frame, a header or a certificate.

use std::{error::Error as StdError, fmt::Debug};

use tower_outbound::transport::TransportConfig;
use tracing::level_filters::LevelFilter;

use super::{
    peer::{self, Before},
    support::capture::Capture,
    *,
};

const KEY: &str = "5ecr3t-k3y-0f-the-tests";
const GOAWAY_MESSAGE: &str = "http2: connection closed by the server (GOAWAY, ENHANCE_YOUR_CALM)";

#[track_caller]
fn assert_debug_redacted(value: &dyn Debug) {
    let shown = format!("{value:?} {value:#?}");
    assert!(!shown.contains(KEY), "{shown}");
}

/// Asserts that no error of the source chain shows the key, and that the last error is the redacted GOAWAY.
#[track_caller]
fn assert_goaway_redacted(error: &(dyn StdError + 'static)) {
    let mut next = Some(error);
    let mut last = String::new();
    while let Some(error) = next {
        assert_debug_redacted(&error);
        last = format!("{error}");
        assert!(!last.contains(KEY) && !format!("{error:#}").contains(KEY), "{error:#}");
        next = error.source();
    }
    assert_eq!(last, GOAWAY_MESSAGE, "the last error of the chain keeps only the reason of the GOAWAY");
}

fn goaway_server(before: Before) -> String {
    format!("http://{}", peer::serve(move |stream| peer::echo_in_goaway(stream, before)))
}

fn keyed(url: &str) -> StackBuilder {
    preset(url).with_api_key(ApiKey::new(KEY).unwrap())
}

fn http2_transport() -> TransportConfig {
    TransportConfig::new().with_http2_prior_knowledge()
}

/// Returns the level and the target of each log record that contains the key. The log records of all crates are
/// searched.
fn records_with_key(capture: &Capture) -> Vec<(String, String)> {
    let records = capture.take().into_iter().filter(|record| record.contains(KEY));
    let leaks = records.map(|record| {
        let mut words = record.split(' ').skip(1).map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    });
    leaks.collect()
}

/// Asserts that only h2, hyper and hyper-util log the key, and only at the levels DEBUG and TRACE. The documented
/// filter `h2=info,hyper=info,hyper_util=info,tonic=info` drops these log events.
#[track_caller]
fn assert_filter_drops_the_key(capture: &Capture) {
    let leaks = records_with_key(capture);
    assert!(!leaks.is_empty(), "expected h2 to log the key");
    for (level, target) in leaks {
        let filtered = ["h2", "hyper", "hyper_util"].contains(&target.split("::").next().unwrap());
        assert!(filtered && ["DEBUG", "TRACE"].contains(&level.as_str()), "{level} {target}");
    }
}

#[tokio::test]
async fn call_errors_redact_the_debug_data_of_a_goaway() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let url = goaway_server(Before::Response);
    let error = keyed(&url).client_with_transport(http2_transport()).unwrap().get("/v1").await.unwrap_err();
    assert_goaway_redacted(&error);
    assert_debug_redacted(&error.report());
    assert_eq!((error.kind(), error.report().unwrap().attempt_count()), (ErrorKind::Closed, 3));
    assert!(format!("{error:?}").ends_with(&format!(": {GOAWAY_MESSAGE}")), "{error:?}");

    // After redaction, the error no longer shows whether the server processed the request. Therefore a POST is not
    // retried.
    let error =
        keyed(&url).client_with_transport(http2_transport()).unwrap().post("/v1").body("").await.unwrap_err();
    assert_goaway_redacted(&error);
    assert_eq!(error.report().unwrap().attempt_count(), 1);

    // A stack of individual layers redacts the same error as a preset.
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let service = ServiceBuilder::new().layer(RequestIdLayer::new()).layer(quick_retry()).service(client);
    let mut request = request(&url, no_body());
    request.headers_mut().insert("authorization", KEY.parse().unwrap());
    assert_goaway_redacted(&service.oneshot(request).await.unwrap_err());
    assert_filter_drops_the_key(&capture);
}

#[tokio::test]
async fn response_body_errors_redact_the_debug_data_of_a_goaway() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let url = goaway_server(Before::EndOfBody);
    let client = keyed(&url).client_with_transport(http2_transport()).unwrap();
    let error = client.get("/v1").await.unwrap().into_body().bytes_up_to(1_024).await.unwrap_err();
    assert_goaway_redacted(&*error);
    #[cfg(feature = "json")]
    {
        let error = client.get("/v1").fetch_json::<u8>().await.unwrap_err();
        assert_goaway_redacted(&error);
    }

    // The response body is boxed, so its type is not hyper's body type.
    let boxed = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let boxed = boxed.map_response(|response: http::Response<_>| response.map(BodyExt::boxed));
    let client = keyed(&url).client_with_service(boxed).unwrap();
    assert_goaway_redacted(
        &*client.get("/v1").await.unwrap().into_body().bytes_up_to(1_024).await.unwrap_err(),
    );

    // A preset's layer also redacts the error if the inner service is a client of hyper-util.
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let service = tower::Layer::layer(&keyed(&url).layer().unwrap(), client);
    let response = service.oneshot(request(&url, no_body())).await.unwrap();
    assert_goaway_redacted(&*response.into_body().collect().await.unwrap_err());
    assert_filter_drops_the_key(&capture);
}

/// The request body is the response body of a second server, which sends the GOAWAY frame.
#[tokio::test]
async fn request_body_errors_redact_the_debug_data_of_a_goaway() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let source = goaway_server(Before::EndOfBody);
    let mut get = request(&source, no_body());
    get.headers_mut().insert("authorization", KEY.parse().unwrap());
    let body = client.request(get).await.unwrap().into_body();
    let reader = peer::serve(|mut stream| async move {
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut Vec::new()).await;
    });
    let service =
        tower::Layer::layer(&quick_retry(), legacy::Client::builder(TokioExecutor::new()).build_http());
    let error = service.oneshot(request(&format!("http://{reader}"), body)).await.unwrap_err();
    assert_goaway_redacted(&error);
    assert_eq!(error.kind(), ErrorKind::Body);
    assert_filter_drops_the_key(&capture);
}

#[tokio::test]
async fn errors_and_log_events_of_this_crate_redact_the_te_header_of_a_response() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let url = format!("http://{}", peer::serve(peer::echo_in_te));
    let error = keyed(&url).client_with_transport(http2_transport()).unwrap().get("/v1").await.unwrap_err();
    assert_debug_redacted(&error);
    assert!(!format!("{error:#}").contains(KEY), "{error:#}");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error:?}");
    assert_filter_drops_the_key(&capture);
}

/// A certificate may contain hundreds of names, and an error of rustls lists all of them.
#[cfg(feature = "rustls")]
#[tokio::test]
async fn tls_errors_redact_the_names_in_a_certificate() {
    let names: Vec<_> = (0..50).map(|number| format!("{KEY}-{number}.test")).collect();
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    let server = super::support::server::Server::with_statuses(
        super::support::certificate::wire(&certificate, &[]),
        [200],
    )
    .await;
    let error = keyed(&server.url())
        .client_with_transport(super::support::certificate::trusting(&certificate))
        .unwrap()
        .get("/v1")
        .await;
    let error = error.unwrap_err();
    assert_debug_redacted(&error);
    let source = error.source().unwrap();
    assert_debug_redacted(&source);
    assert!(source.source().is_none());
    assert_eq!(source.to_string(), "invalid peer certificate: not valid for name \"127.0.0.1\"");
    assert!(!format!("{error:#}").contains(KEY), "{error:#}");
    // The call is not retried, because a retry would not change the server's certificate.
    assert_eq!((error.kind(), error.report().unwrap().attempt_count()), (ErrorKind::Tls, 1));
}
