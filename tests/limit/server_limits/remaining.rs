//! Tests of the remaining permits that a server reports: how long a report applies, to which callers a report applies,
//! and how reports combine.

use std::{sync::Arc, time::Duration};

use http::Request;
use tower::{ServiceBuilder, ServiceExt};
use tower_outbound::{
    ApiKey, Quota, Report,
    body::ReplayBody,
    limit::{Limiter, LocalLimiter, PermitRequest, RateLimitLayer, ResponseInfo},
    preset,
};

use super::{
    Server, ample_limiter, assert_all_succeed, costing, remaining, response, seconds, settle, spawn_calls,
    times,
};

#[tokio::test(start_paused = true)]
async fn lower_report_of_remaining_permits_replaces_a_higher_report() {
    // The second report is lower because another client uses the same quota of the server.
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(ample_limiter()));
    server.respond_once(&service, remaining(50, 5)).await;
    server.respond_once(&service, remaining(2, 5)).await;
    assert_all_succeed(spawn_calls(&service, 10).await).await;
    server.assert_arrivals(times(&[(2, 0.0), (8, 5.0)]));
}

#[tokio::test(start_paused = true)]
async fn limiter_spends_remaining_permits_by_cost_in_fifo_order() {
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(ample_limiter()));
    server.respond_once(&service, remaining(7, 5)).await;
    let mut calls = Vec::new();
    // The second request costs more than the two permits that remain after the first request. The third request would
    // fit, but must not overtake the second request.
    for cost in [5, 5, 1] {
        calls.push(tokio::spawn(service.clone().oneshot(costing(cost))));
    }
    settle().await;
    server.assert_arrivals([0.0]);
    assert_all_succeed(calls).await;
    server.assert_arrivals([0.0, 5.0, 5.0]);
}

#[tokio::test(start_paused = true)]
async fn several_policies_of_a_server_apply_together() {
    let (server, limiter) = (Server::start(), ample_limiter());
    let service = server.with_layer(&RateLimitLayer::new(limiter.clone()));
    let both = [("ratelimit", r#""second";r=1;t=2, "day";r=3;t=10"#)];
    server.respond_once(&service, response(200, &both)).await;
    assert_all_succeed(spawn_calls(&service, 6).await).await;
    server.assert_arrivals(times(&[(1, 0.0), (2, 2.0), (3, 10.0)]));

    // A refusal carries the wait until the last exhausted policy resets.
    server
        .respond_once(&service, response(200, &[("ratelimit", r#""second";r=0;t=2, "day";r=0;t=10"#)]))
        .await;
    let no_wait = server.with_layer(&RateLimitLayer::new(limiter).with_max_wait(Duration::ZERO));
    let error = no_wait.oneshot(Request::new(())).await.unwrap_err();
    assert_eq!(error.retry_after().map(|wait| wait.as_secs()), Some(10));
}

#[tokio::test(start_paused = true)]
async fn limiter_ignores_a_report_of_remaining_permits_after_its_reset_time() {
    let (server, limiter) = (Server::start(), ample_limiter());
    let service = server.with_layer(&RateLimitLayer::new(limiter.clone()));
    server.respond_once(&service, remaining(0, 2)).await;
    assert_eq!(limiter.snapshot().available, 0);
    tokio::time::advance(seconds(2)).await;
    assert!(limiter.snapshot().available >= 500, "{:?}", limiter.snapshot());
    assert_all_succeed(spawn_calls(&service, 100).await).await;
    server.respond_once(&service, remaining(1, 2)).await;
    assert_all_succeed(spawn_calls(&service, 3).await).await;
    server.assert_arrivals(times(&[(101, 2.0), (2, 4.0)]));
}

#[tokio::test(start_paused = true)]
async fn server_limits_apply_to_all_callers_of_one_limiter_but_not_to_other_limiters() {
    for limits in [remaining(0, 5), response(429, &[("retry-after", "5")])] {
        let (server, limiter) = (Server::start(), ample_limiter());
        let layer = RateLimitLayer::new(limiter.clone());
        let first = server.with_layer(&layer);
        let other_server = Server::start();
        let sharing = [
            first.clone(),
            server.with_layer(&layer),
            server.with_layer(&layer.clone()),
            server.with_layer(&RateLimitLayer::new(limiter.clone()).with_max_queue(7)),
            other_server.with_layer(&RateLimitLayer::new(limiter.clone())),
        ];
        let unrelated_server = Server::start();
        let unrelated = unrelated_server.with_layer(&RateLimitLayer::new(ample_limiter()));
        server.respond_once(&first, limits).await;
        let without_layer = tokio::spawn(limiter.acquire_with(&PermitRequest::new()));
        let mut calls = Vec::new();
        for service in sharing.iter().chain([&unrelated]) {
            calls.extend(spawn_calls(service, 1).await);
        }
        assert_all_succeed(calls).await;
        without_layer.await.unwrap().unwrap();
        server.assert_arrivals(times(&[(4, 5.0)]));
        other_server.assert_arrivals([5.0]);
        unrelated_server.assert_arrivals([0.0]);
    }
}

/// Without the reported remaining permits, the limiter would send all three requests at once.
#[tokio::test(start_paused = true)]
async fn limiter_with_a_quota_obeys_only_the_remaining_permits_of_throttled_responses() {
    let quota = Quota::per_second(1_000).unwrap().with_burst(500).unwrap();
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(LocalLimiter::paced_window(quota)));
    server.will_respond(0.0, remaining(0, 7));
    server.will_respond(0.0, response(429, &[("ratelimit", r#""default";r=0;t=9"#)]));
    for _ in 0..3 {
        service.clone().oneshot(Request::new(())).await.unwrap();
    }
    server.assert_arrivals([0.0, 0.0, 9.0]);
}

/// A response without a limit sets no rate, and the reset applies only after a throttled response.
#[tokio::test(start_paused = true)]
async fn presets_do_not_wait_for_the_reset_of_a_used_up_quota() {
    let presets = [
        (preset::currency_rates("https://rates.example.com"), 0.0),
        (preset::email_delivery("https://mail.example.com"), 0.0),
        (preset::realtime_messaging("https://push.example.com"), 0.0),
    ];
    for (preset, second) in presets {
        let preset = preset.unwrap().with_api_key(ApiKey::new("k3y").unwrap());
        let server = Server::start();
        let inner = {
            let server = Arc::clone(&server);
            tower::service_fn(move |_: Request<ReplayBody<tower_outbound::Body>>| {
                let server = Arc::clone(&server);
                async move {
                    server.serve().await.map(|response| response.map(|()| tower_outbound::Body::empty()))
                }
            })
        };
        let service = ServiceBuilder::new().layer(preset.layer().unwrap()).service(inner);
        server.will_respond(0.0, remaining(0, 7));
        for _ in 0..2 {
            let uri = preset.base_url().clone();
            let request = Request::get(uri).body(tower_outbound::Body::empty()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            assert!(Report::from_response(&response).is_some());
        }
        server.assert_arrivals([0.0, second]);
    }
}

#[tokio::test(start_paused = true)]
async fn exhausted_server_policy_applies_until_its_latest_reported_reset_time() {
    let limiter = LocalLimiter::unlimited();
    // Each permit belongs to a request whose response has not arrived yet.
    let mut permits: Vec<_> = (0..13).map(|_| limiter.try_acquire_owned().unwrap()).collect();
    let mut respond = |value: &'static str| {
        let header = (http::HeaderName::from_static("ratelimit"), http::HeaderValue::from_static(value));
        let headers = http::HeaderMap::from_iter([header]);
        permits.pop().unwrap().complete(&ResponseInfo::new(http::StatusCode::OK, &headers));
    };
    respond("\"q\";r=0;t=1");
    respond("\"q\";r=0;t=60");
    tokio::time::advance(Duration::from_millis(1_001)).await;
    assert!(limiter.try_acquire().is_err());
    // Policies whose reset time has passed must not take up storage, whatever their number.
    for policy in ["\"a\";r=5;t=1", "\"b\";r=5;t=1", "\"c\";r=5;t=1", "\"d\";r=5;t=1", "\"e\";r=5;t=1"] {
        respond(policy);
    }
    for policy in ["\"f\";r=5;t=1", "\"g\";r=5;t=1", "\"h\";r=5;t=1", "\"i\";r=5;t=1", "\"j\";r=5;t=1"] {
        respond(policy);
    }
    tokio::time::advance(Duration::from_secs(59)).await;
    respond("\"new\";r=0;t=60");
    assert!(limiter.try_acquire().is_err());
}
