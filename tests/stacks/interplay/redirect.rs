//! tower-http's `FollowRedirect`. What becomes of the key is in `tests/redirects.rs` of the crate.

use std::time::Duration;

use tower::{ServiceBuilder, ServiceExt};
use tower_http::follow_redirect::FollowRedirectLayer;
use tower_outbound::{
    limit::RateLimitLayer, request_id::RequestIdLayer, retry::RetryLayer, timeout::TimeoutLayer,
};

use super::{
    URI, bucket, methods,
    support::{
        Scripted::{self, *},
        ScriptedService, request,
    },
};

const SEE_OTHER: Scripted = Headers(303, &[("location", "/v2")]);

fn ids(probe: &ScriptedService) -> [String; 2] {
    let seen = probe.seen();
    [0, 1].map(|number| seen[number].head.headers["x-request-id"].to_str().unwrap().to_owned())
}

#[tokio::test(start_paused = true)]
async fn above_each_hop_is_a_call_and_pays() {
    let (probe, limiter) = (ScriptedService::new([SEE_OTHER, Status(503), Status(200)]), bucket(20));
    let service = ServiceBuilder::new()
        .layer(FollowRedirectLayer::new())
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(limiter.clone()))
        .service(probe.clone());
    assert_eq!(service.oneshot(request("POST", URI)).await.unwrap().status(), 200);
    assert_eq!(
        (methods(&probe), limiter.snapshot().granted),
        (vec!["POST".into(), "GET".into(), "GET".into()], 3)
    );
    let [first, second] = ids(&probe);
    assert_ne!(first, second);
}

/// The hops have the call in common: its id, its deadline, its report.
#[tokio::test(start_paused = true)]
async fn under_the_request_id_all_hops_are_one_call() {
    let (probe, limiter) = (ScriptedService::new([SEE_OTHER, Status(200)]), bucket(20));
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TimeoutLayer::total(Duration::from_secs(60)).unwrap())
        .layer(FollowRedirectLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(limiter.clone()))
        .service(probe.clone());
    let response = service.oneshot(request("POST", URI)).await.unwrap();
    let report = tower_outbound::Report::from_response(&response).unwrap();
    assert_eq!((report.attempt_count(), limiter.snapshot().granted), (2, 2));
    let [first, second] = ids(&probe);
    assert_eq!(first, second);
}

/// Why it is no place for it: the second hop's failure is taken for the POST's, which was processed.
#[tokio::test(start_paused = true)]
async fn below_retry_what_was_processed_may_be_sent_again() {
    let script = [SEE_OTHER, Refused, Status(200)];
    let probe = ScriptedService::new(script);
    let below = ServiceBuilder::new().layer(RetryLayer::new()).layer(FollowRedirectLayer::new());
    assert!(below.service(probe.clone()).oneshot(request("POST", URI)).await.is_ok());
    assert_eq!(methods(&probe), ["POST", "GET", "POST"]);

    let probe = ScriptedService::new(script);
    let above = ServiceBuilder::new().layer(FollowRedirectLayer::new()).layer(RetryLayer::new());
    assert!(above.service(probe.clone()).oneshot(request("POST", URI)).await.is_ok());
    assert_eq!(methods(&probe), ["POST", "GET", "GET"]);
}

#[tokio::test(start_paused = true)]
async fn below_the_limiter_the_hops_do_not_pay() {
    let (probe, limiter) = (ScriptedService::new([SEE_OTHER, Status(200)]), bucket(20));
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(limiter.clone()))
        .layer(FollowRedirectLayer::new())
        .service(probe.clone());
    service.oneshot(request("POST", URI)).await.unwrap();
    assert_eq!((probe.calls(), limiter.snapshot().granted), (2, 1));
}
