//! Tests a stack that was rebuilt from its layers, with other layers between them.

use std::sync::{Arc, Mutex};

use http::header::AUTHORIZATION;
use tower::util::{MapErrLayer, MapRequestLayer};
use tower_outbound::{
    limit::LocalLimiter,
    stack::{Pool, StackLayer},
};

use super::*;

/// Rebuilds the stack with another layer between any two layers, except below the body idle timeout, whose error has
/// the type of the inner error. The layer between the retry layer and the rate limit layer records the time of each
/// attempt. The others change the type of the error.
fn rebuilt(stack: StackLayer, service: ScriptedService, times: &Arc<Mutex<Vec<Instant>>>) -> Stack {
    let StackLayer {
        body_idle_timeout,
        request_id,
        default_headers,
        total_timeout,
        retry,
        rate_limit,
        route,
        attempt_span,
        auth,
        attempt_timeout,
    } = stack;
    let boxed = || MapErrLayer::new(BoxError::from as fn(Error) -> BoxError);
    let times = Arc::clone(times);
    let record =
        MapRequestLayer::new(move |request: Request<tower_outbound::body::ReplayBody<Empty<Bytes>>>| {
            times.lock().unwrap().push(Instant::now());
            request
        });
    let outer = ServiceBuilder::new()
        .layer((body_idle_timeout, request_id, boxed(), default_headers, boxed()))
        .layer((total_timeout, boxed(), retry, boxed(), record));
    let inner = ServiceBuilder::new()
        .layer((rate_limit, boxed(), route, boxed(), attempt_span, boxed()))
        .layer((auth, boxed(), attempt_timeout));
    BoxCloneService::new(outer.layer(inner.into_inner()).service(service))
}

/// Returns the stack of a builder over a scripted service, as it is or rebuilt.
pub(super) fn maybe_rebuilt<const N: usize>(
    builder: &StackBuilder,
    script: [ScriptedResponse; N],
    is_rebuilt: bool,
) -> (Stack, ScriptedService) {
    let (original, service) = stack(builder, script);
    match is_rebuilt {
        true => (rebuilt(builder.layer().unwrap(), service.clone(), &Arc::default()), service),
        false => (original, service),
    }
}

#[tokio::test(start_paused = true)]
async fn layer_outside_the_rate_limit_sees_an_attempt_before_its_wait() {
    let (times, service, start) = (Arc::default(), ScriptedService::new([ok()]), Instant::now());
    let quota = Quota::new(1, MINUTE).unwrap().without_margin();
    let builder = preset_with_key("https://host").with_limiter(LocalLimiter::sliding_window(quota));
    let stack = rebuilt(builder.with_total_timeout(HOUR).layer().unwrap(), service.clone(), &times);
    futures_util::future::join_all([(); 2].map(|()| stack.clone().oneshot(get("https://host/v1")))).await;
    assert!(times.lock().unwrap().iter().all(|at| *at == start));
    assert!(arrivals(&service, start)[1] >= MINUTE);
}

#[tokio::test(start_paused = true)]
async fn rebuilt_stack_sends_requests_to_the_member_of_its_pool() {
    let pool = Pool::new([("https://eu.example.com/v2", key(), LocalLimiter::without_quota())]).unwrap();
    let layer = StackBuilder::new("https://host").unwrap().with_pool(pool).layer().unwrap();
    let service = ScriptedService::new([ok()]);
    rebuilt(layer, service.clone(), &Arc::default()).oneshot(get("https://host/v1")).await.unwrap();
    let head = &service.seen()[0].head;
    assert_eq!(head.uri, "https://eu.example.com/v2/v1");
    assert_eq!(head.headers[AUTHORIZATION], format!("Bearer {KEY}"));
}
