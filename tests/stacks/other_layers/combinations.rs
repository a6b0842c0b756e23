//! Puts each layer of this crate, and the whole stack, above and below each tested layer of tower, tower-http and
//! tower-resilience. Tests that each combination compiles, and that it returns every permit of a limited service. Also
//! tests that each combination and its clones call a service only after `poll_ready`.

use http::{Request, Response};
use tower::{
    BoxError, Layer, Service, ServiceExt, buffer::BufferLayer, limit::ConcurrencyLimitLayer,
    load_shed::LoadShedLayer, timeout::TimeoutLayer as TowerTimeoutLayer,
};
use tower_http::{
    decompression::DecompressionLayer, follow_redirect::FollowRedirectLayer, trace::TraceLayer,
};
use tower_outbound::{
    ApiKey,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, Origin},
    limit::RateLimitLayer,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::{AttemptTimeoutLayer, BodyIdleTimeoutLayer, TotalTimeoutLayer},
};
use tower_resilience_circuitbreaker::CircuitBreakerLayer;

use super::{
    URI, bucket, rates,
    support::{Content, Limited, Scripted::Status, ScriptedService, get, secs},
};

async fn check<S, R>(name: &str, client: &Limited, service: S)
where
    S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError>> + Clone,
{
    // If an instance of the service keeps its permit, a later instance never becomes ready.
    let Ok(()) = tokio::time::timeout(secs(60), call_repeatedly(name, client, service)).await else {
        panic!("{name}: hangs")
    };
    // The worker task of a buffer ends shortly after the last call.
    tokio::time::sleep(secs(1)).await;
    assert_eq!(client.permits_taken(), 0, "{name}");
}

async fn call_repeatedly<S, R>(name: &str, client: &Limited, mut service: S)
where
    S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError>> + Clone,
{
    for _ in 0..2 {
        let Ok(ready) = service.ready().await else { panic!("{name}: not ready") };
        let result = ready.call(get(URI)).await.map_err(Into::into);
        assert!(result.is_ok_and(|response| response.status() == 200), "{name}");
    }
    let Ok(_) = service.ready().await else { panic!("{name}: not ready") };
    let mut clone = service.clone();
    let first = service.call(get(URI));
    let Ok(ready) = clone.ready().await else { panic!("{name}: the clone is not ready") };
    let second = ready.call(get(URI));
    assert!(second.await.is_ok() && first.await.is_ok(), "{name}");
    assert_eq!(client.calls(), 4, "{name}");
}

/// Returns a service with two permits, because `check` holds two ready instances at a time.
fn limited(polls: u32) -> Limited {
    Limited::over(ScriptedService::new([Status(200)])).with_permits(2).with_pending_polls(polls)
}

/// Tests one layer of this crate above and below one layer of another crate.
macro_rules! pair {
    ($name:expr, $polls:expr, $other:expr, $layer:expr) => {{
        for polls in $polls {
            let client = limited(polls);
            check(&format!("{} above", $name), &client, $other.layer($layer.layer(client.clone()))).await;
            let client = limited(polls);
            check(&format!("{} below", $name), &client, $layer.layer($other.layer(client.clone()))).await;
        }
    }};
}

macro_rules! with_each_layer {
    ($name:expr, $polls:expr, $other:expr) => {{
        let name = |layer: &str| format!("{layer}, {}", $name);
        let key = ApiKey::new("s3cret").unwrap();
        let auth = AuthLayer::new(key, Origin::parse(URI).unwrap()).unwrap();
        pair!(name("auth"), $polls, $other, auth);
        pair!(name("limit"), $polls, $other, RateLimitLayer::new(bucket(6)));
        pair!(name("retry"), $polls, $other, RetryLayer::new());
        pair!(name("request id"), $polls, $other, RequestIdLayer::new());
        pair!(name("attempt"), $polls, $other, AttemptSpanLayer::new());
        pair!(name("total timeout"), $polls, $other, TotalTimeoutLayer::new(secs(60)).unwrap());
        pair!(name("attempt timeout"), $polls, $other, AttemptTimeoutLayer::new(secs(10)).unwrap());
        pair!(name("body idle"), $polls, $other, BodyIdleTimeoutLayer::new(secs(1)).unwrap());
        pair!(name("preset"), $polls, $other, rates().layer().unwrap());
    }};
}

#[tokio::test(start_paused = true)]
async fn tower_layers_work_above_and_below_each_layer() {
    with_each_layer!("ConcurrencyLimit", [0, 2], ConcurrencyLimitLayer::new(2));
    with_each_layer!("Timeout", [0, 2], TowerTimeoutLayer::new(secs(60)));
    with_each_layer!("Buffer", [0, 2], BufferLayer::new(2));
    // `LoadShed` rejects a call if the service is pending, so the service is never pending here: see
    // `load_shed`.
    with_each_layer!("LoadShed", [0], LoadShedLayer::new());
}

#[tokio::test(start_paused = true)]
async fn tower_http_layers_work_above_and_below_each_layer() {
    with_each_layer!("FollowRedirect", [0, 2], FollowRedirectLayer::new());
    with_each_layer!("Decompression", [0, 2], DecompressionLayer::new());
    with_each_layer!("Trace", [0, 2], TraceLayer::new_for_http());
}

#[tokio::test(start_paused = true)]
async fn circuit_breaker_works_above_and_below_each_layer() {
    with_each_layer!("CircuitBreaker", [0, 2], CircuitBreakerLayer::builder().build().unwrap());
}
