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

/// Sends a request that gets a 503, then times out, and then waits for its permit. Returns what the caller and the
/// service have received.
async fn attempts(
    stack: Stack,
    service: ScriptedService,
    start: Instant,
) -> impl PartialEq + std::fmt::Debug {
    let response = stack.oneshot(get("https://host/v1")).await.unwrap();
    let report = response.extensions().get::<Report>().unwrap();
    let heads = service.seen().into_iter().map(|seen| {
        let mut headers = seen.head.headers;
        assert!(headers.remove("x-request-id").is_some());
        (seen.at - start, seen.head.uri, headers)
    });
    (
        response.status(),
        report.attempts().to_vec(),
        report.waited(),
        report.stop_reason(),
        heads.collect::<Vec<_>>(),
    )
}

#[tokio::test(start_paused = true)]
async fn stack_rebuilt_with_other_layers_between_its_layers_behaves_like_the_original() {
    let script = || [ScriptedResponse::status(503), ScriptedResponse::never(), ok()];
    let builder = || preset_with_exact_delays().with_total_timeout(2 * MINUTE);
    let start = Instant::now();
    let (original, service) = stack(&builder(), script());
    let expected = attempts(original, service, start).await;

    let (times, service, start) = (Arc::default(), ScriptedService::new(script()), Instant::now());
    let rebuilt = rebuilt(builder().layer().unwrap(), service.clone(), &times);
    assert_eq!(attempts(rebuilt, service.clone(), start).await, expected);
    // The other layer sees the third attempt before the attempt waits for its permit.
    let times: Vec<_> = times.lock().unwrap().iter().map(|at| *at - start).collect();
    assert_eq!(times, [Duration::ZERO, 100 * MILLI, 10_300 * MILLI]);
    assert_eq!(arrivals(&service, start), [Duration::ZERO, 100 * MILLI, MINUTE]);
}

#[tokio::test(start_paused = true)]
async fn rebuilt_stack_returns_the_error_and_the_report_of_the_original() {
    let builder = || preset_with_exact_delays().with_total_timeout(MINUTE / 2);
    let script = || [ScriptedResponse::status(503), ScriptedResponse::never()];
    let service = ScriptedService::new(script());
    let rebuilt = rebuilt(builder().layer().unwrap(), service, &Arc::default());
    let errors = [stack(&builder(), script()).0, rebuilt].map(|stack| stack.oneshot(get("https://host/v1")));
    let [original, rebuilt] =
        futures_util::future::join_all(errors).await.try_into().unwrap_or_else(|_| panic!("two results"));
    let (original, rebuilt) = (original.unwrap_err(), rebuilt.unwrap_err());
    assert!(rebuilt.is_timeout() && rebuilt.retry_after() == Some(49_700 * MILLI), "{rebuilt:?}");
    assert_eq!(rebuilt.kind(), original.kind());
    assert_eq!(rebuilt.report().unwrap().attempts(), original.report().unwrap().attempts());
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

/// The call ends at its deadline, although a layer between the two timeouts does not poll the attempt to its end.
#[tokio::test(start_paused = true)]
async fn deadline_of_a_rebuilt_stack_does_not_depend_on_the_timer_of_the_attempt_timeout() {
    let StackLayer { request_id, total_timeout, attempt_timeout, .. } =
        preset_with_exact_delays().with_total_timeout(20 * SECOND).layer().unwrap();
    let attempt = attempt_timeout.layer(ScriptedService::new([ScriptedResponse::never()]));
    let stuck = tower::service_fn(move |request: Request<Empty<Bytes>>| {
        let mut response = Box::pin(attempt.clone().oneshot(request));
        async move {
            assert!(tokio::time::timeout(SECOND, response.as_mut()).await.is_err());
            tokio::spawn(response);
            std::future::pending::<Result<http::Response<Empty<Bytes>>, BoxError>>().await
        }
    });
    let (start, service) = (Instant::now(), (request_id, total_timeout).layer(stuck));
    let ended = tokio::time::timeout(MINUTE, service.oneshot(get("https://host/v1"))).await;
    assert!(ended.unwrap().unwrap_err().is_deadline());
    assert_eq!(start.elapsed(), 20 * SECOND);
}
