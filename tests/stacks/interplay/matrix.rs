//! Every layer, and the whole stack, with every neighbour above and below: it compiles, it calls only what was polled
//! ready, twice and by a clone, and keeps no permit of a service below that has only so many.

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
    timeout::{BodyIdleTimeoutLayer, TimeoutLayer},
};
use tower_resilience_circuitbreaker::CircuitBreakerLayer;

use super::{
    URI, bucket, rates,
    support::{Content, Limited, Scripted::Status, ScriptedService, get, secs},
};

async fn works<S, R>(name: &str, probe: &Limited, service: S)
where
    S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError>> + Clone,
{
    // Whoever waits for a permit that is never given back does not get ready.
    let Ok(()) = tokio::time::timeout(secs(60), tried(name, probe, service)).await else {
        panic!("{name}: hangs")
    };
    // A buffer's worker ends by itself.
    tokio::time::sleep(secs(1)).await;
    assert_eq!(probe.permits_taken(), 0, "{name}");
}

async fn tried<S, R>(name: &str, probe: &Limited, mut service: S)
where
    S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError>> + Clone,
{
    for _ in 0..2 {
        let Ok(ready) = service.ready().await else { panic!("{name}: not ready") };
        let answer = ready.call(get(URI)).await.map_err(Into::into);
        assert!(answer.is_ok_and(|answer| answer.status() == 200), "{name}");
    }
    let Ok(_) = service.ready().await else { panic!("{name}: not ready") };
    let mut clone = service.clone();
    let first = service.call(get(URI));
    let Ok(ready) = clone.ready().await else { panic!("{name}: the clone is not ready") };
    let second = ready.call(get(URI));
    assert!(second.await.is_ok() && first.await.is_ok(), "{name}");
    assert_eq!(probe.calls(), 4, "{name}");
}

/// With as many permits as `works` has instances that are ready at a time.
fn limited(polls: u32) -> Limited {
    Limited::over(ScriptedService::new([Status(200)])).with_permits(2).with_pending_polls(polls)
}

/// One layer of ours with one neighbour.
macro_rules! pair {
    ($name:expr, $polls:expr, $neighbour:expr, $ours:expr) => {{
        for polls in $polls {
            let probe = limited(polls);
            works(&format!("{} above", $name), &probe, $neighbour.layer($ours.layer(probe.clone()))).await;
            let probe = limited(polls);
            works(&format!("{} below", $name), &probe, $ours.layer($neighbour.layer(probe.clone()))).await;
        }
    }};
}

macro_rules! with_each_layer {
    ($name:expr, $polls:expr, $neighbour:expr) => {{
        let name = |ours: &str| format!("{ours}, {}", $name);
        let key = ApiKey::new("s3cret").unwrap();
        let auth = AuthLayer::new(key, Origin::parse(URI).unwrap()).unwrap();
        pair!(name("auth"), $polls, $neighbour, auth);
        pair!(name("limit"), $polls, $neighbour, RateLimitLayer::new(bucket(6)));
        pair!(name("retry"), $polls, $neighbour, RetryLayer::new());
        pair!(name("request id"), $polls, $neighbour, RequestIdLayer::new());
        pair!(name("attempt"), $polls, $neighbour, AttemptSpanLayer::new());
        pair!(name("total timeout"), $polls, $neighbour, TimeoutLayer::total(secs(60)).unwrap());
        pair!(name("attempt timeout"), $polls, $neighbour, TimeoutLayer::per_attempt(secs(10)).unwrap());
        pair!(name("body idle"), $polls, $neighbour, BodyIdleTimeoutLayer::new(secs(1)).unwrap());
        pair!(name("preset"), $polls, $neighbour, rates().layer().unwrap());
    }};
}

#[tokio::test(start_paused = true)]
async fn tower() {
    with_each_layer!("ConcurrencyLimit", [0, 2], ConcurrencyLimitLayer::new(2));
    with_each_layer!("Timeout", [0, 2], TowerTimeoutLayer::new(secs(60)));
    with_each_layer!("Buffer", [0, 2], BufferLayer::new(2));
    // It sheds what is not ready at once: see `unready`.
    with_each_layer!("LoadShed", [0], LoadShedLayer::new());
}

#[tokio::test(start_paused = true)]
async fn tower_http() {
    with_each_layer!("FollowRedirect", [0, 2], FollowRedirectLayer::new());
    with_each_layer!("Decompression", [0, 2], DecompressionLayer::new());
    with_each_layer!("Trace", [0, 2], TraceLayer::new_for_http());
}

#[tokio::test(start_paused = true)]
async fn tower_resilience() {
    with_each_layer!("CircuitBreaker", [0, 2], CircuitBreakerLayer::builder().build().unwrap());
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "keeps one")]
async fn a_permit_that_is_kept_is_caught() {
    let probe = Limited::over(ScriptedService::new([Status(200)])).with_permits(3);
    let mut keeps = probe.clone();
    ServiceExt::<Request<Content>>::ready(&mut keeps).await.unwrap();
    works("keeps one", &probe, AttemptSpanLayer::new().layer(probe.clone())).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "poll_ready must be called first")]
async fn a_neighbour_that_calls_a_clone_is_caught() {
    #[derive(Clone)]
    struct CallsAClone<S>(S);
    impl<S: Service<Request<Content>> + Clone> Service<Request<Content>> for CallsAClone<S> {
        type Response = S::Response;
        type Error = S::Error;
        type Future = S::Future;

        fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
            self.0.poll_ready(cx)
        }

        fn call(&mut self, request: Request<Content>) -> S::Future {
            self.0.clone().call(request)
        }
    }
    let probe = Limited::over(ScriptedService::new([Status(200)]));
    works("a clone", &probe, CallsAClone(AttemptSpanLayer::new().layer(probe.clone()))).await;
}
