//! The layers by hand, in a tower stack of your own over hyper-util's client, with tower's own
//! concurrency limit below them.
#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use http_body_util::Empty;
use hyper::{Request, body::Bytes};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use support::{Answer, Plan, StandIn, When};
use tower::{ServiceBuilder, ServiceExt};
use tower_outbound::attempt::AttemptLayer;
use tower_outbound::auth::{ApiKey, BearerAuthLayer, Origin};
use tower_outbound::limit::{RateLimitLayer, TokenBucket};
use tower_outbound::{
    BoxError, Quota, Report, request_id::RequestIdLayer, retry::RetryLayer, timeout::TimeoutLayer,
};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let faults = vec![(When::Nth(1), Answer::Unavailable)]; // so that there is something to retry
    let server = StandIn::start(Plan { faults, ..Plan::new("compose", "s3cret") }).await?;
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TimeoutLayer::total(Duration::from_secs(30))?)
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::new(Quota::per_minute(100)?)))
        .layer(AttemptLayer::new())
        .layer(BearerAuthLayer::new(ApiKey::new("s3cret")?, Origin::parse(&server.base_url())?)?)
        .layer(TimeoutLayer::per_attempt(Duration::from_secs(5))?)
        .concurrency_limit(8)
        .service(Client::builder(TokioExecutor::new()).build_http());
    let request = Request::get(format!("{}/v1/resources", server.base_url())).body(Empty::<Bytes>::new())?;
    let response = service.oneshot(request).await?;
    let report = response.extensions().get::<Report>().ok_or("no report")?;
    println!("{}, {} attempts, {:?}", response.status(), report.attempt_count(), report.request_id());
    Ok(())
}
