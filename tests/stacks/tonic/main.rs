//! Tests the layers between a tonic client and tonic's channel. A tonic server on loopback records the calls.
//!
//! Real sockets need real time. The waits are therefore short, and only their lower bounds are exact.

mod connection_failures;
mod program;
mod server;
mod streams;

use std::{
    error::Error as _,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use server::{Scripted, Server};
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_client::HealthClient};
use tower::{Service, ServiceBuilder};
use tower_outbound::{
    ApiKey, BoxError, Error, ExponentialBackoff, Quota, Report,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, FreshKey, Origin, RefreshingKey},
    body::ReplayBody,
    call::StopReason,
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::{Grpc, RetryLayer},
    timeout::{AttemptTimeoutLayer, BodyIdleTimeoutLayer, TotalTimeoutLayer},
};

const CHECK: &str = "/grpc.health.v1.Health/Check";

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Creates a retry layer with short backoffs. Only the gRPC method `Check` is declared idempotent.
fn retry() -> RetryLayer {
    let backoff = ExponentialBackoff::new(millis(20), millis(100)).unwrap();
    RetryLayer::new()
        .with_classify(Grpc::new())
        .with_idempotent(|head| head.uri.path() == CHECK)
        .with_backoff(backoff)
        .with_throttled_backoff(backoff)
}

/// Returns a channel wrapped in all layers, in the documented order.
fn stack(
    uri: http::Uri,
    retry: RetryLayer,
    whole_call: Duration,
) -> impl Service<
    http::Request<Body>,
    Response = http::Response<impl http_body::Body<Data = bytes::Bytes, Error = BoxError> + Send + 'static>,
    Error = Error,
    Future: Send,
> + Clone {
    let bucket = LocalLimiter::token_bucket(Quota::per_second(100).unwrap());
    let origin = Origin::parse(&uri.to_string()).unwrap();
    let channel: Channel = Endpoint::from(uri).connect_lazy();
    ServiceBuilder::new()
        .layer(BodyIdleTimeoutLayer::new(Duration::from_secs(5)).unwrap())
        .layer(RequestIdLayer::new())
        .layer(TotalTimeoutLayer::new(whole_call).unwrap())
        .layer(retry)
        .layer(RateLimitLayer::new(bucket))
        .layer(AttemptSpanLayer::new())
        .layer(AuthLayer::new(ApiKey::new("s3cret").unwrap(), origin).unwrap())
        .layer(AttemptTimeoutLayer::new(Duration::from_secs(5)).unwrap())
        // The channel accepts only tonic's own body type.
        .map_request(|request: http::Request<ReplayBody<Body>>| request.map(Body::new))
        .service(channel)
}

fn request() -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest { service: "carts".to_owned() })
}

async fn check(server: &Server, whole_call: Duration) -> Result<Response<HealthCheckResponse>, Status> {
    let uri = server.uri();
    HealthClient::with_origin(stack(uri.clone(), retry(), whole_call), uri).check(request()).await
}

#[tokio::test]
async fn retry_waits_for_the_pushback_and_sends_the_same_request_id_and_key() {
    let server = Server::start([Scripted::Pushback(Code::ResourceExhausted, "150"), Scripted::Success]).await;
    let response = check(&server, Duration::from_secs(10)).await.unwrap();
    assert_eq!(response.get_ref().status, 1);
    let report = response.extensions().get::<Report>().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (2, Some(StopReason::Success)));
    assert_eq!(report.attempts()[0].requested_delay, Some(millis(150)));

    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen[1].at - seen[0].at >= millis(150), "{:?}", seen[1].at - seen[0].at);
    for call in &seen {
        assert_eq!(call.metadata.get("authorization").unwrap(), "Bearer s3cret");
        assert_eq!(call.metadata.get("x-request-id"), seen[0].metadata.get("x-request-id"));
        assert_eq!(call.services, ["carts"]);
    }
    assert!(seen[0].metadata.contains_key("x-request-id"));
}

#[tokio::test]
async fn example_program_of_the_guide_retries_after_status_unavailable() -> Result<(), BoxError> {
    let server = Server::start([Scripted::Failure(Code::Unavailable), Scripted::Success]).await;
    let check = tokio::spawn(program::check(server.uri(), ApiKey::new("s3cret")?));
    assert_eq!(check.await??, 1);
    assert_eq!(server.calls(), 2);
    Ok(())
}

#[tokio::test]
async fn grpc_status_for_a_missed_deadline_has_the_error_of_this_crate_as_source() {
    let server = Server::start([Scripted::NoResponse]).await;
    let status = check(&server, millis(1_000)).await.unwrap_err();
    let error = status.source().and_then(|source| source.downcast_ref::<Error>()).unwrap();
    assert!(error.is_deadline(), "{error:?}");
    assert_eq!((error.report().map(Report::attempt_count), server.calls()), (Some(1), 1));
}

/// `UNAUTHENTICATED` always makes the auth layer refresh its key. Only an idempotent call is retried with the new key.
#[tokio::test]
async fn rejected_key_is_replaced_and_only_an_idempotent_call_is_retried() {
    for (idempotent, first) in [(true, &["Bearer key-1", "Bearer key-2"][..]), (false, &["Bearer key-1"])] {
        let server = Server::start([Scripted::Failure(Code::Unauthenticated), Scripted::Success]).await;
        let (uri, number) = (server.uri(), AtomicUsize::new(0));
        let keys = RefreshingKey::new(move || {
            let number = number.fetch_add(1, Ordering::SeqCst) + 1;
            std::future::ready(
                ApiKey::new(format!("key-{number}")).map(FreshKey::new).map_err(BoxError::from),
            )
        });
        let origin = Origin::parse(&uri.to_string()).unwrap();
        let stack = ServiceBuilder::new()
            .layer(retry().with_idempotent(move |_| idempotent))
            .layer(AuthLayer::new(keys, origin).unwrap())
            .map_request(|request: http::Request<ReplayBody<Body>>| request.map(Body::new))
            .service(Endpoint::from(uri.clone()).connect_lazy());
        let mut client = HealthClient::with_origin(stack, uri);
        let code = client.check(request()).await.err().map(|status| status.code());
        assert_eq!(code, (!idempotent).then_some(Code::Unauthenticated));
        let keys = |server: &Server| -> Vec<String> {
            let key = |call: &server::Seen| {
                call.metadata.get("authorization").unwrap().to_str().unwrap().to_owned()
            };
            server.seen().iter().map(key).collect()
        };
        assert_eq!(keys(&server), first);
        client.check(request()).await.unwrap();
        assert_eq!(keys(&server).last().unwrap(), "Bearer key-2");
    }
}
