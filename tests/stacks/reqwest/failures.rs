//! Tests failures of DNS, TLS, timeouts and connections that reqwest reports in its own error type.

use std::time::Duration;

use http::{Method, Request};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Body, BoxError, Error, ErrorKind,
    adapter::Reqwest,
    call::{Outcome, StopReason},
    timeout::AttemptTimeoutLayer,
};

use super::{
    Site, builder, inner,
    peer::{self, Before},
    server::{Server, Step::Process},
    site,
    stack::{METHODS, Wire, quick_retry},
    within,
};

/// The length of a timeout that is expected to elapse during the test.
const SHORT_TIMEOUT: Duration = Duration::from_millis(50);

/// A timeout that leaves enough time for the other events of the test, even on a busy machine.
const LONG_TIMEOUT: Duration = Duration::from_secs(1);

/// A DNS resolver that fails like the system's with this reason, or never responds.
enum FailingResolver {
    Fails(&'static str),
    Silent,
}

impl Resolve for FailingResolver {
    fn resolve(&self, _: Name) -> Resolving {
        match *self {
            Self::Fails(reason) => Box::pin(async move { Err::<Addrs, _>(peer::unresolved(reason).into()) }),
            Self::Silent => Box::pin(std::future::pending()),
        }
    }
}

async fn call_and_fail(
    builder: reqwest::ClientBuilder,
    method: &Method,
    url: &str,
) -> (Error, Vec<Outcome>, Option<StopReason>) {
    let service = quick_retry().layer(Reqwest::new(builder).unwrap());
    let request = Request::builder().method(method).uri(url).body(Body::from("letter")).unwrap();
    let error = within(service.oneshot(request)).await.unwrap_err();
    let report = error.report().unwrap().clone();
    let outcomes = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
    (error, outcomes, report.stop_reason())
}

fn resolving(resolver: FailingResolver) -> reqwest::ClientBuilder {
    builder().dns_resolver(std::sync::Arc::new(resolver))
}

#[tokio::test]
async fn dns_failure_and_dns_timeout_count_as_not_sent_and_only_an_unknown_name_is_not_retried() {
    for method in METHODS {
        let failures = peer::DNS_FAILURES.map(|(reason, is_permanent)| {
            (resolving(FailingResolver::Fails(reason)), ErrorKind::Dns, is_permanent)
        });
        let silent = resolving(FailingResolver::Silent).connect_timeout(SHORT_TIMEOUT);
        for (builder, kind, is_permanent) in
            failures.into_iter().chain([(silent, ErrorKind::ConnectTimeout, false)])
        {
            let (error, outcomes, stop_reason) =
                call_and_fail(builder, &method, "http://api.example.com/").await;
            let (attempts, expected) =
                if is_permanent { (1, StopReason::NotRetryable) } else { (3, StopReason::Exhausted) };
            assert_eq!((outcomes, stop_reason), (vec![Outcome::NotSent; attempts], Some(expected)));
            assert_eq!((error.is_service(), error.kind()), (true, kind), "{error:?}");
        }
    }
}

#[tokio::test]
async fn timeout_of_the_reqwest_client_counts_as_maybe_processed() {
    for builder in [|| builder().timeout(SHORT_TIMEOUT), || builder().read_timeout(SHORT_TIMEOUT)] {
        let silent = Site::start(site::Wire::Http1, |_, _| std::future::pending()).await;
        for (method, expected, stop_reason) in [
            (Method::POST, &[Outcome::Timeout][..], StopReason::NotIdempotent),
            (Method::GET, &[Outcome::Timeout; 3], StopReason::Exhausted),
        ] {
            let (error, outcomes, actual) = call_and_fail(builder(), &method, &silent.url()).await;
            assert_eq!((&outcomes[..], actual), (expected, Some(stop_reason)), "{error:?}");
            assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::AttemptTimeout);
            assert!(std::error::Error::source(&error).unwrap().is::<reqwest::Error>());
        }
    }
    // A DNS timeout has the outcome `Timeout`, too, because reqwest's error does not state what timed out.
    let unresolved = resolving(FailingResolver::Silent).timeout(SHORT_TIMEOUT);
    let (error, outcomes, _) = call_and_fail(unresolved, &Method::POST, "http://api.example.com/").await;
    assert_eq!(outcomes, [Outcome::Timeout], "{error:?}");

    // The timeout layer of this crate ends the attempt, although the connection stays open.
    let server = Server::start(Wire::Http2, &[&[&[Process]]]).await;
    let service = AttemptTimeoutLayer::new(LONG_TIMEOUT).unwrap().layer(inner(Wire::Http2));
    let request = Request::post(server.url()).body(Body::from("letter")).unwrap();
    let error = within(quick_retry().layer(service).oneshot(request)).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(server.processed(&Method::POST), 1);
}

#[tokio::test]
async fn timeout_of_the_reqwest_client_ends_a_stalled_body_with_an_error_without_the_url() {
    for builder in [builder().timeout(LONG_TIMEOUT), builder().read_timeout(LONG_TIMEOUT)] {
        let site = Site::start(site::Wire::Http1, |_, _| async { Some(site::stalled(200)) }).await;
        let service = quick_retry().layer(Reqwest::new(builder).unwrap());
        let request = Request::get(site.url()).body(Body::empty()).unwrap();
        let response = within(service.oneshot(request)).await.unwrap();
        let error = within(Body::new(response.into_body()).bytes_up_to(64)).await.unwrap_err();
        let error = error.downcast_ref::<reqwest::Error>().unwrap();
        assert!(error.is_timeout() && error.url().is_none(), "{error:?}");
    }
}

/// This test causes each failure through the adapter, and through a custom service that returns reqwest's own error.
#[tokio::test]
async fn error_kind_names_each_transport_failure() {
    let unbound = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = unbound.local_addr().unwrap();
    drop(unbound);
    for (address, http2, kind) in [
        (refused, false, ErrorKind::ConnectRefused),
        (peer::serve(peer::reset), false, ErrorKind::Reset),
        (peer::serve(peer::close), false, ErrorKind::Closed),
        (peer::serve(peer::garbage), false, ErrorKind::Protocol),
        (peer::serve(peer::reset_http2_stream), true, ErrorKind::Reset),
        (peer::serve(|stream| peer::end_http2(stream, false)), true, ErrorKind::Closed),
    ] {
        let url = format!("http://{address}/");
        let builder = || if http2 { builder().http2_prior_knowledge() } else { builder() };
        let (error, ..) = call_and_fail(builder(), &Method::GET, &url).await;
        assert_eq!(error.kind(), kind, "{error:?}");
        let client = builder().build().unwrap();
        let custom = tower::service_fn(move |request: Request<_>| {
            let sent = client.get(request.uri().to_string()).send();
            async { sent.await.map(http::Response::<reqwest::Body>::from) }
        });
        let request = Request::get(&url).body(Body::empty()).unwrap();
        let error = within(quick_retry().layer(custom).oneshot(request)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
    }
}

/// The server repeats the client's key in the debug data of its GOAWAY frame.
#[tokio::test]
async fn debug_data_of_a_goaway_is_redacted_in_every_error() {
    const KEY: &str = "5ecr3t-k3y";
    #[track_caller]
    fn assert_redacted(error: &(dyn std::error::Error + 'static)) {
        let mut next = Some(error);
        while let Some(error) = next {
            let text = format!("{error} {error:#} {error:?} {error:#?}");
            assert!(!text.contains(KEY) && text.contains("ENHANCE_YOUR_CALM"), "{text}");
            next = error.source();
        }
    }
    for before in [Before::Response, Before::EndOfBody] {
        let address = peer::serve(move |stream| peer::echo_in_goaway(stream, before));
        let client = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
        let adapter = inner(Wire::Http2);
        for reqwest in [adapter, Reqwest::from_client(client)] {
            let request = Request::get(format!("http://{address}/")).header("authorization", KEY);
            let service = quick_retry().layer(reqwest);
            match within(service.oneshot(request.body(Body::empty()).unwrap())).await {
                Err(error) => {
                    assert_redacted(&error);
                    assert_eq!((before, error.kind()), (Before::Response, ErrorKind::Closed));
                }
                Ok(response) => {
                    let body = http_body_util::BodyExt::collect(response.into_body());
                    let error: BoxError = within(body).await.unwrap_err();
                    assert_redacted(&*error);
                    assert_eq!(before, Before::EndOfBody);
                }
            }
        }
    }
}
