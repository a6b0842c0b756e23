//! Calls that fail together are retried at different times.

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
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_outbound::{ExponentialBackoff, Jitter, body::ReplayBody, call::CallContext, retry::RetryLayer};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, get, millis, request, secs},
};

/// Fails the first attempt of each call, and then succeeds.
fn fails_each_call_once(
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

async fn a_thousand_delays(layer: RetryLayer, status: u16) -> Vec<Duration> {
    let calls = (0..1_000).map(|_| {
        // Each call has its own service, as a task of a program would.
        let service = layer.clone().without_budget().layer(fails_each_call_once(status));
        tokio::spawn(
            async move { report(&service.oneshot(get(URI)).await.unwrap()).attempts()[0].delay.unwrap() },
        )
    });
    futures_util::future::join_all(calls).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn retries_a_thousand_failed_calls_at_different_times() {
    let second = secs(1);
    let always_at_the_cap = ExponentialBackoff::new(second, second).unwrap();
    for (layer, status, from, to) in [
        (RetryLayer::new(), 503, 50, 100),
        (RetryLayer::new(), 429, 500, 1_000),
        (RetryLayer::new().with_backoff(always_at_the_cap), 503, 500, 1_000),
        (RetryLayer::new().with_seed(1), 503, 50, 100),
    ] {
        let delays = a_thousand_delays(layer, status).await;
        let distinct: HashSet<_> = delays.iter().collect();
        assert!(distinct.len() >= 900, "{} distinct delays", distinct.len());
        // The delays spread over their whole range: about a tenth of them in each tenth of it.
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
async fn spreads_a_thousand_calls_with_the_same_requested_delay() {
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
    assert!(delays.len() >= 900, "{}", delays.len());
}

#[tokio::test(start_paused = true)]
async fn a_seed_repeats_the_delays_and_layers_without_one_differ() {
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
async fn without_jitter_the_delays_double_up_to_the_cap() {
    let backoff = ExponentialBackoff::new(secs(1), secs(5)).unwrap().with_jitter(Jitter::none());
    let layer = RetryLayer::new().with_backoff(backoff).with_max_attempts(6).unwrap();
    let start = Instant::now();
    let probe = ScriptedService::new([Status(503)]);
    layer.layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    let at: Vec<_> = probe.seen().iter().map(|seen| (seen.at - start).as_secs()).collect();
    assert_eq!(at, [0, 1, 3, 7, 12, 17]);
}

#[tokio::test(start_paused = true)]
async fn jitters_the_delay_below_its_cap_after_two_thousand_attempts() {
    let layer = RetryLayer::new().without_budget().with_max_attempts(2_000).unwrap();
    let cap = ExponentialBackoff::transient().ceiling(u32::MAX);
    let response = layer.layer(ScriptedService::new([Status(503)])).oneshot(get(URI)).await.unwrap();
    let delays: Vec<_> = report(&response).attempts().iter().filter_map(|attempt| attempt.delay).collect();
    assert_eq!(delays.len(), 1_999);
    let at_the_cap = &delays[8..];
    assert!(at_the_cap.iter().all(|delay| (cap / 2..=cap).contains(delay)));
    let (least, most) = (at_the_cap.iter().min().unwrap(), at_the_cap.iter().max().unwrap());
    assert!(*least < cap * 11 / 20 && *most > cap * 19 / 20, "{least:?} to {most:?}");
    assert!(at_the_cap.iter().collect::<HashSet<_>>().len() >= 1_900);
}

#[test]
fn rejects_a_maximum_of_zero_attempts() {
    let error = RetryLayer::new().with_max_attempts(0).unwrap_err();
    assert_eq!((error.field(), error.value()), ("max attempts", "0"));
}

/// A POST that may have been processed, the last attempt, and a requested delay that is too long.
#[tokio::test(start_paused = true)]
async fn draws_no_backoff_if_the_call_stops_anyway() {
    let drawn = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&drawn);
    let custom = move || {
        let count = Arc::clone(&count);
        std::iter::repeat_with(move || millis(count.fetch_add(1, Ordering::Relaxed) as u64))
    };
    let layer = RetryLayer::new().with_custom_backoff(custom);
    let too_long = RetryAfter(503, "121");
    for (method, answer, delays) in [("POST", Status(500), 0), ("GET", Status(500), 2), ("GET", too_long, 0)]
    {
        drawn.store(0, Ordering::Relaxed);
        layer.layer(ScriptedService::new([answer])).oneshot(request(method, URI)).await.unwrap();
        assert_eq!(drawn.load(Ordering::Relaxed), delays, "{method}");
    }

    // The random source, which all calls share, does not move, either.
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
