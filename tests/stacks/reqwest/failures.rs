//! Failures that are reqwest's own to tell: of names, of TLS, of time.

use std::{
    io,
    task::{Context, Poll},
    time::Duration,
};

use http::{Method, Request};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{
    Body, BoxError, Error, ErrorKind,
    adapter::Reqwest,
    call::{Outcome, StopReason},
    timeout::TimeoutLayer,
};

use super::{
    Site, builder, empty,
    frames::Step,
    peer::{self, Before},
    server::{Behavior, Server},
    stack::{METHODS, Wire, quick_retry, within},
};

/// Where nothing but the time is to run out.
const SOON: Duration = Duration::from_millis(50);

/// Where something is to come before, on a machine that stalls, too.
const LATER: Duration = Duration::from_secs(1);

/// No name is known, or none is ever found.
enum Names {
    Unknown,
    Slow,
}

impl Resolve for Names {
    fn resolve(&self, _: Name) -> Resolving {
        match self {
            Self::Unknown => Box::pin(async { Err::<Addrs, _>(BoxError::from("no such name")) }),
            Self::Slow => Box::pin(std::future::pending()),
        }
    }
}

async fn fails(
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

#[tokio::test]
async fn a_name_that_is_not_found_or_not_in_time_was_not_sent() {
    for method in METHODS {
        for (builder, kind) in [
            (builder().dns_resolver(std::sync::Arc::new(Names::Unknown)), ErrorKind::Dns),
            (
                builder().dns_resolver(std::sync::Arc::new(Names::Slow)).connect_timeout(SOON),
                ErrorKind::ConnectTimeout,
            ),
        ] {
            let (error, outcomes, ended) = fails(builder, &method, "http://api.example.com/").await;
            assert_eq!((&outcomes[..], ended), (&[Outcome::NotSent; 3][..], Some(StopReason::Exhausted)));
            assert_eq!((error.is_service(), error.kind()), (true, kind), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_timeout_of_the_client_may_have_been_sent() {
    const SILENT: &[Behavior] = &[Behavior::Steps(&[&[Step::Process], &[Step::Process], &[Step::Process]])];
    let prior_knowledge = || builder().http2_prior_knowledge();
    for builder in [|| builder().timeout(SOON), || builder().read_timeout(SOON)] {
        let silent = Site::start(|_, _| std::future::pending()).await;
        for (method, expected, ended) in [
            (Method::POST, &[Outcome::Timeout][..], StopReason::NotIdempotent),
            (Method::GET, &[Outcome::Timeout; 3], StopReason::Exhausted),
        ] {
            let (error, outcomes, ends) = fails(builder(), &method, &silent.url).await;
            assert_eq!((&outcomes[..], ends), (expected, Some(ended)), "{error:?}");
            assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::AttemptTimeout);
            assert!(std::error::Error::source(&error).unwrap().is::<reqwest::Error>());
        }
    }
    // Before it was sent, too: it says no more than that time ran out.
    let slow = builder().dns_resolver(std::sync::Arc::new(Names::Slow)).timeout(SOON);
    let (error, outcomes, _) = fails(slow, &Method::POST, "http://api.example.com/").await;
    assert_eq!(outcomes, [Outcome::Timeout], "{error:?}");

    // The layers' own timeout, on a connection that goes on.
    let server = Server::start(Wire::Http2, SILENT).await;
    let service = TimeoutLayer::per_attempt(LATER).unwrap().layer(Reqwest::new(prior_knowledge()).unwrap());
    let request = Request::post(server.url()).body(Body::from("letter")).unwrap();
    let error = within(quick_retry().layer(service).oneshot(request)).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(server.processed(&Method::POST), 1);
}

#[tokio::test]
async fn a_timeout_within_the_answer_is_an_error_of_its_body() {
    for builder in [builder().timeout(LATER), builder().read_timeout(LATER)] {
        let site = Site::start(|_, _| async {
            let frames = futures_util::stream::pending::<Result<http_body::Frame<bytes::Bytes>, BoxError>>();
            let body = http_body_util::StreamBody::new(frames);
            http::Response::new(http_body_util::BodyExt::boxed_unsync(body))
        })
        .await;
        let service = quick_retry().layer(Reqwest::new(builder).unwrap());
        let request = Request::get(&site.url).body(Body::empty()).unwrap();
        let response = within(service.oneshot(request)).await.unwrap();
        let error = within(Body::new(response.into_body()).collect(64)).await.unwrap_err();
        let error = error.downcast_ref::<reqwest::Error>().unwrap();
        assert!(error.is_timeout() && error.url().is_none(), "{error:?}");
    }
}

/// TLS that fails as rustls has it fail, where reqwest connects.
#[derive(Clone)]
struct Untrusted<S>(S);

impl<S, U> Service<U> for Untrusted<S>
where
    S: Service<U, Error = BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = std::future::Ready<Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, _: U) -> Self::Future {
        let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        std::future::ready(Err(io::Error::new(io::ErrorKind::InvalidData, tls).into()))
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_not_worth_another_attempt() {
    for method in METHODS {
        let builder = builder().connector_layer(tower::layer::layer_fn(Untrusted));
        let (error, outcomes, ended) = fails(builder, &method, "http://127.0.0.1:1/").await;
        assert_eq!(
            (&outcomes[..], ended),
            (&[Outcome::NotSent][..], Some(StopReason::NotRetryable)),
            "{error:?}"
        );
        assert_eq!(error.kind(), ErrorKind::Tls, "{error:?}");
    }
}

#[tokio::test]
async fn an_https_url_without_tls_is_not_sent() {
    let site = Site::start(|_, _| async { http::Response::new(empty()) }).await;
    let (error, outcomes, _) = fails(builder(), &Method::POST, &site.url.replace("http:", "https:")).await;
    assert!(
        outcomes.iter().all(|outcome| *outcome == Outcome::NotSent) && site.seen().is_empty(),
        "{error:?}"
    );
}

/// Through the adapter, and through a custom service that returns reqwest's own error.
#[tokio::test]
async fn names_the_cause_of_each_transport_failure() {
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
        let (error, ..) = fails(builder(), &Method::GET, &url).await;
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

/// The server repeats the key in the GOAWAY's debug data.
#[tokio::test]
async fn redacts_the_debug_data_of_a_goaway() {
    const KEY: &str = "5ecr3t-k3y";
    #[track_caller]
    fn hidden(error: &(dyn std::error::Error + 'static)) {
        let mut next = Some(error);
        while let Some(error) = next {
            let shown = format!("{error} {error:#} {error:?} {error:#?}");
            assert!(!shown.contains(KEY) && shown.contains("ENHANCE_YOUR_CALM"), "{shown}");
            next = error.source();
        }
    }
    for before in [Before::Response, Before::EndOfBody] {
        let address = peer::serve(move |stream| peer::echo_in_goaway(stream, before));
        let unknown = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
        let own = Reqwest::new(builder().http2_prior_knowledge()).unwrap();
        for reqwest in [own, Reqwest::from_client(unknown)] {
            let request = Request::get(format!("http://{address}/")).header("authorization", KEY);
            let service = quick_retry().layer(reqwest);
            match within(service.oneshot(request.body(Body::empty()).unwrap())).await {
                Err(error) => {
                    hidden(&error);
                    assert_eq!((before, error.kind()), (Before::Response, ErrorKind::Closed));
                }
                Ok(response) => {
                    let body = http_body_util::BodyExt::collect(response.into_body());
                    let error: BoxError = within(body).await.unwrap_err();
                    hidden(&*error);
                    assert_eq!(before, Before::EndOfBody);
                }
            }
        }
    }
}
