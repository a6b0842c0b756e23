//! The gRPC program that the crate's guide shows.

use std::time::Duration;

use tonic::{body::Body, transport::Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::ServiceBuilder;
use tower_outbound::{
    ApiKey, BoxError, Quota,
    auth::{AuthLayer, Origin},
    body::ReplayBody,
    error::DeliveryError,
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::{Grpc, RetryLayer},
    timeout::TotalTimeoutLayer,
};

pub async fn check(uri: http::Uri, key: ApiKey) -> Result<i32, BoxError> {
    // Every gRPC call is a POST, so the methods that only read are declared idempotent.
    let retry = RetryLayer::new().with_classify(Grpc::new());
    let retry = retry.with_idempotent(|head| head.uri.path() == "/grpc.health.v1.Health/Check");
    let stack = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TotalTimeoutLayer::new(Duration::from_secs(60))?)
        .layer(retry)
        .layer(RateLimitLayer::new(LocalLimiter::paced_window(Quota::per_minute(100)?)))
        .layer(AuthLayer::new(key, Origin::parse(&uri.to_string())?)?)
        .map_request(|request: http::Request<ReplayBody<Body>>| request.map(Body::new))
        .map_err(DeliveryError::not_sent_if_caused_by::<tonic::ConnectError>)
        .service(Endpoint::from(uri.clone()).connect_lazy());
    let mut client = HealthClient::with_origin(stack, uri);
    Ok(client.check(HealthCheckRequest::default()).await?.into_inner().status)
}
