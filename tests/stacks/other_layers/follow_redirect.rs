//! Tests tower-http's `FollowRedirect`. `tests/stacks/redirects.rs` tests which redirect targets receive the key.

use std::time::Duration;

use tower::{ServiceBuilder, ServiceExt};
use tower_http::follow_redirect::FollowRedirectLayer;
use tower_outbound::{
    limit::RateLimitLayer, request_id::RequestIdLayer, retry::RetryLayer, timeout::TotalTimeoutLayer,
};

use super::{
    URI, bucket, methods,
    support::{
        Scripted::{self, *},
        ScriptedService, request,
    },
};

const SEE_OTHER: Scripted = Headers(303, &[("location", "/v2")]);

fn ids(client: &ScriptedService) -> [String; 2] {
    let seen = client.seen();
    [0, 1].map(|number| seen[number].head.headers["x-request-id"].to_str().unwrap().to_owned())
}

#[tokio::test(start_paused = true)]
async fn redirect_followed_outside_request_id_layer_is_a_new_call_with_its_own_permits() {
    let (client, limiter) = (ScriptedService::new([SEE_OTHER, Status(503), Status(200)]), bucket(20));
    let service = ServiceBuilder::new()
        .layer(FollowRedirectLayer::new())
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(limiter.clone()))
        .service(client.clone());
    assert_eq!(service.oneshot(request("POST", URI)).await.unwrap().status(), 200);
    assert_eq!(
        (methods(&client), limiter.snapshot().granted),
        (vec!["POST".into(), "GET".into(), "GET".into()], 3)
    );
    let [first, second] = ids(&client);
    assert_ne!(first, second);
}

#[tokio::test(start_paused = true)]
async fn redirect_followed_inside_request_id_layer_belongs_to_the_same_call() {
    let (client, limiter) = (ScriptedService::new([SEE_OTHER, Status(200)]), bucket(20));
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TotalTimeoutLayer::new(Duration::from_secs(60)).unwrap())
        .layer(FollowRedirectLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(limiter.clone()))
        .service(client.clone());
    let response = service.oneshot(request("POST", URI)).await.unwrap();
    let report = tower_outbound::Report::from_response(&response).unwrap();
    assert_eq!((report.attempt_count(), limiter.snapshot().granted), (2, 2));
    let [first, second] = ids(&client);
    assert_eq!(first, second);
}

#[tokio::test(start_paused = true)]
async fn redirect_followed_inside_the_limiter_takes_no_permit() {
    let (client, limiter) = (ScriptedService::new([SEE_OTHER, Status(200)]), bucket(20));
    let layers = ServiceBuilder::new().layer(RateLimitLayer::new(limiter.clone()));
    let service = layers.layer(FollowRedirectLayer::new()).service(client.clone());
    service.oneshot(request("POST", URI)).await.unwrap();
    assert_eq!((client.calls(), limiter.snapshot().granted), (2, 1));
}

/// The retry layer mistakes a failure at the redirect target for a failure of the POST, although the server processed
/// the POST.
#[tokio::test(start_paused = true)]
async fn retry_layer_around_follow_redirect_resends_a_processed_post_after_a_failed_redirect() {
    let script = [SEE_OTHER, Refused, Status(200)];
    let client = ScriptedService::new(script);
    let below = ServiceBuilder::new().layer(RetryLayer::new()).layer(FollowRedirectLayer::new());
    assert!(below.service(client.clone()).oneshot(request("POST", URI)).await.is_ok());
    assert_eq!(methods(&client), ["POST", "GET", "POST"]);

    let client = ScriptedService::new(script);
    let above = ServiceBuilder::new().layer(FollowRedirectLayer::new()).layer(RetryLayer::new());
    assert!(above.service(client.clone()).oneshot(request("POST", URI)).await.is_ok());
    assert_eq!(methods(&client), ["POST", "GET", "GET"]);
}
