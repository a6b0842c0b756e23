//! Tests the backoff between attempts, and the jitter of the backoff.

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{ExponentialBackoff, Jitter, body::ReplayBody, call::CallContext, retry::RetryLayer};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, get, millis, request, secs},
};

/// Returns a service that responds with `status` to the first attempt of each call, and with 200 to each later attempt.
fn fails_first_attempts(
    status: u16,
) -> impl Service<Request<ReplayBody<Content>>, Response = Response<Content>, Error = Infallible, Future: Send>
+ Clone
+ Send {
    service_fn(move |request: Request<ReplayBody<Content>>| async move {
        let mut response = Response::new(Content::default());
        if request.extensions().get::<CallContext>().unwrap().attempt() == 1 {
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
        }
        Ok(response)
    })
}

/// Makes 1,000 concurrent calls. Returns, for each call, the delay between the first attempt and the retry.
async fn delays_of_1000_calls(layer: RetryLayer, status: u16) -> Vec<Duration> {
    let calls = (0..1_000).map(|_| {
        // Each call has its own service, as in an application that creates a service for each task.
        let service = layer.clone().without_budget().layer(fails_first_attempts(status));
        tokio::spawn(
            async move { report(&service.oneshot(get(URI)).await.unwrap()).attempts()[0].delay.unwrap() },
        )
    });
    futures_util::future::join_all(calls).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_the_retries_of_calls_that_fail_at_the_same_time() {
    let second = secs(1);
    let always_at_the_cap = ExponentialBackoff::new(second, second).unwrap();
    for (layer, status, from, to) in [
        (RetryLayer::new(), 503, 50, 100),
        (RetryLayer::new(), 429, 500, 1_000),
        (RetryLayer::new().with_backoff(always_at_the_cap), 503, 500, 1_000),
        (RetryLayer::new().with_seed(1), 503, 50, 100),
    ] {
        let delays = delays_of_1000_calls(layer, status).await;
        let distinct: HashSet<_> = delays.iter().collect();
        assert!(distinct.len() >= 900, "only {} of 1,000 delays are distinct", distinct.len());
        // Each tenth of the delay range contains about a tenth of the 1,000 delays.
        let mut tenths = [0; 10];
        for delay in &delays {
            assert!((millis(from)..=millis(to)).contains(delay), "{delay:?}");
            let share = (delay.as_secs_f64() - millis(from).as_secs_f64()) / millis(to - from).as_secs_f64();
            tenths[((share * 10.0) as usize).min(9)] += 1;
        }
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_the_retries_of_calls_with_the_same_requested_delay() {
    let service = service_fn(|request: Request<ReplayBody<Content>>| async move {
        let first = request.extensions().get::<CallContext>().unwrap().attempt() == 1;
        Response::builder()
            .status(if first { 429 } else { 200 })
            .header("retry-after", "5")
            .body(Content::default())
    });
    let service = RetryLayer::new().without_budget().layer(service);
    let calls = (0..1_000).map(|_| service.clone().oneshot(get(URI)));
    let delays: HashSet<_> = futures_util::future::join_all(calls)
        .await
        .into_iter()
        .map(|response| report(&response.unwrap()).attempts()[0].delay)
        .collect();
    assert!(delays.len() >= 900, "only {} of 1,000 delays are distinct", delays.len());
}

#[tokio::test(start_paused = true)]
async fn backoff_delays_repeat_with_the_same_seed_and_differ_without_a_seed() {
    let delays = |layer: RetryLayer| async move {
        let service = layer.with_max_attempts(6).unwrap().layer(ScriptedService::new([Status(503)]));
        let response = service.oneshot(get(URI)).await.unwrap();
        report(&response).attempts().iter().filter_map(|attempt| attempt.delay).collect::<Vec<_>>()
    };
    let first = delays(RetryLayer::new().with_seed(7)).await;
    assert_eq!(first.len(), 5);
    assert_eq!(first, delays(RetryLayer::new().with_seed(7)).await);
    assert_ne!(first, delays(RetryLayer::new().with_seed(8)).await);
    assert_ne!(delays(RetryLayer::new()).await, delays(RetryLayer::new()).await);
}

#[tokio::test(start_paused = true)]
async fn backoff_without_jitter_doubles_until_it_reaches_the_cap() {
    let backoff = ExponentialBackoff::new(secs(1), secs(5)).unwrap().with_jitter(Jitter::none());
    let layer = RetryLayer::new().with_backoff(backoff).with_max_attempts(6).unwrap();
    let start = Instant::now();
    let inner = ScriptedService::new([Status(503)]);
    layer.layer(inner.clone()).oneshot(get(URI)).await.unwrap();
    let starts: Vec<_> = inner.seen().iter().map(|seen| (seen.at - start).as_secs()).collect();
    assert_eq!(starts, [0, 1, 3, 7, 12, 17]);
}

#[tokio::test(start_paused = true)]
async fn backoff_delays_at_the_cap_still_have_jitter_after_2000_attempts() {
    let layer = RetryLayer::new().without_budget().with_max_attempts(2_000).unwrap();
    let cap = ExponentialBackoff::transient().ceiling(u32::MAX);
    let response = layer.layer(ScriptedService::new([Status(503)])).oneshot(get(URI)).await.unwrap();
    let delays: Vec<_> = report(&response).attempts().iter().filter_map(|attempt| attempt.delay).collect();
    assert_eq!(delays.len(), 1_999);
    let at_the_cap = &delays[8..];
    assert!(at_the_cap.iter().all(|delay| (cap / 2..=cap).contains(delay)));
    let (least, most) = (at_the_cap.iter().min().unwrap(), at_the_cap.iter().max().unwrap());
    assert!(*least < cap * 11 / 20 && *most > cap * 19 / 20, "the delays range from {least:?} to {most:?}");
    assert!(at_the_cap.iter().collect::<HashSet<_>>().len() >= 1_900);
}

/// The first call stops because its POST may have been processed. The second call stops after its last attempt, and the
/// third call stops because the requested delay is too long.
#[tokio::test(start_paused = true)]
async fn retry_layer_computes_no_backoff_after_the_last_attempt_of_a_call() {
    let computed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&computed);
    let custom_backoff = move || {
        let count = Arc::clone(&count);
        std::iter::repeat_with(move || millis(count.fetch_add(1, Ordering::Relaxed) as u64))
    };
    let layer = RetryLayer::new().with_custom_backoff(custom_backoff);
    let too_long = RetryAfter(503, "121");
    for (method, response, delays) in
        [("POST", Status(500), 0), ("GET", Status(500), 2), ("GET", too_long, 0)]
    {
        computed.store(0, Ordering::Relaxed);
        layer.layer(ScriptedService::new([response])).oneshot(request(method, URI)).await.unwrap();
        assert_eq!(computed.load(Ordering::Relaxed), delays, "{method}");
    }

    // A call that stops without a retry draws no number from the random generator that all calls of the layer share.
    let delay_after = |earlier: &'static [&'static str]| async move {
        let layer = RetryLayer::new().with_seed(1).with_max_attempts(2).unwrap();
        let service = layer.layer(ScriptedService::new([Status(500)]));
        for method in earlier {
            service.clone().oneshot(request(method, URI)).await.unwrap();
        }
        report(&service.oneshot(get(URI)).await.unwrap()).attempts()[0].delay
    };
    assert_eq!(delay_after(&["POST"]).await, delay_after(&[]).await);
}

#[tokio::test(start_paused = true)]
async fn call_in_backoff_wakes_its_task_only_at_the_end_of_the_backoff() {
    let mut call = task::spawn(
        RetryLayer::new().layer(ScriptedService::new([Status(429), Status(200)])).oneshot(get(URI)),
    );
    assert_pending!(call.poll());
    // Draining the response body also wakes the call's task.
    while call.is_woken() {
        assert_pending!(call.poll());
    }
    tokio::time::advance(millis(490)).await;
    assert!(!call.is_woken());
    tokio::time::advance(millis(515)).await;
    assert!(call.is_woken());
    assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
}

#[tokio::test(start_paused = true)]
async fn call_holds_no_concurrency_permit_during_its_backoff() {
    let inner = ScriptedService::new([Headers(503, &[("retry-after", "60")]), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(tower::limit::ConcurrencyLimitLayer::new(1))
        .service(inner.clone());
    let start = Instant::now();
    let mut in_backoff = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(in_backoff.poll());
    assert_eq!(inner.calls(), 1);
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(in_backoff.await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn call_without_a_retry_needs_no_tokio_runtime() {
    let thread_without_runtime = std::thread::spawn(|| {
        let mut call =
            task::spawn(RetryLayer::new().layer(ScriptedService::new([Status(404)])).oneshot(get(URI)));
        assert_eq!(assert_ready_ok!(call.poll()).status(), 404);
    });
    thread_without_runtime.join().unwrap();
}
