//! The budget, through the layer.

use std::{
    convert::Infallible,
    iter,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_outbound::{
    ApiKey,
    body::ReplayBody,
    call::{Deadline, StopReason},
    preset,
    retry::{Budget, RetryLayer, RetryOverride},
};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, get, millis, request, secs},
};

/// A server that gives every request the same response, until the test sets another, and counts requests.
#[derive(Clone)]
struct Server {
    status: Arc<AtomicU16>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn new(status: u16) -> Self {
        Self { status: Arc::new(AtomicU16::new(status)), requests: Arc::default() }
    }

    fn says(&self, status: u16) {
        self.status.store(status, Relaxed);
    }

    fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }

    fn service(
        &self,
    ) -> impl Service<
        Request<ReplayBody<Content>>,
        Response = Response<Content>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        let server = self.clone();
        service_fn(move |_: Request<ReplayBody<Content>>| {
            server.requests.fetch_add(1, Relaxed);
            let mut response = Response::new(Content::default());
            *response.status_mut() = server.status.load(Relaxed).try_into().unwrap();
            std::future::ready(Ok(response))
        })
    }

    /// Makes a call every 600 ms for a minute. Returns the number of requests.
    async fn minute(&self, layer: &RetryLayer) -> usize {
        let before = self.requests();
        for _ in 0..100 {
            tokio::spawn(layer.layer(self.service()).oneshot(get(URI)));
            tokio::time::sleep(millis(600)).await;
        }
        self.requests() - before
    }
}

async fn ended(layer: &RetryLayer, server: &Server) -> Option<StopReason> {
    report(&layer.layer(server.service()).oneshot(get(URI)).await.unwrap()).stop_reason()
}

#[tokio::test(start_paused = true)]
async fn attempts_exceed_calls_by_at_most_a_tenth_after_a_minute_of_failures() {
    for status in [429, 500, 503] {
        let (server, layer) = (Server::new(status), RetryLayer::new());
        let first = server.minute(&layer).await;
        // The whole credit: 35 retries, or 100 throttled ones.
        assert_eq!(first, if status == 429 { 200 } else { 135 }, "{status}");
        for minute in 2..=5 {
            let attempts = server.minute(&layer).await;
            assert!((100..=110).contains(&attempts), "{status}: {attempts} in minute {minute}");
        }
        // Without a budget.
        let layer = RetryLayer::new().without_budget();
        server.minute(&layer).await;
        assert!(server.minute(&layer).await >= 290, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_resume_soon_after_the_server_recovers() {
    let (server, budget) = (Server::new(503), Budget::new());
    let layer = RetryLayer::new().with_budget(budget.clone());
    server.minute(&layer).await;
    assert_eq!(ended(&layer, &server).await, Some(StopReason::Budget));
    assert_eq!(budget.left(), 500 - 35 * 14);

    // Four calls that succeed at the first attempt return the missing credit of a retry.
    server.says(200);
    for left in 11..=14 {
        assert_eq!(ended(&layer, &server).await, Some(StopReason::Success));
        assert_eq!(budget.left(), left);
    }
    let probe = ScriptedService::new([Status(503), Status(200)]);
    let response = layer.layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    assert_eq!((response.status().as_u16(), probe.calls()), (200, 2));
    assert_eq!(budget.left(), 14, "a successful retry gets its cost back");

    // Minutes later the budget is full again, and not above its capacity.
    for _ in 0..6 {
        server.minute(&layer).await;
    }
    assert_eq!(budget.left(), 500);
    server.says(503);
    assert_eq!(server.minute(&layer).await, 135);
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_budget_and_separate_layers_do_not() {
    let server = Server::new(503);
    let layer = RetryLayer::new().with_max_attempts(100).unwrap();
    let service = layer.layer(server.service());
    // All clones together make 35 retries.
    for other in [layer.clone(), layer.clone().with_seed(3), layer.clone().with_max_attempts(2).unwrap()] {
        let attempts =
            report(&other.layer(server.service()).oneshot(get(URI)).await.unwrap()).attempt_count();
        assert_eq!(attempts, if server.requests() == 36 { 36 } else { 1 });
    }
    for service in [service.clone(), service] {
        assert_eq!(report(&service.oneshot(get(URI)).await.unwrap()).stop_reason(), Some(StopReason::Budget));
    }
    assert_eq!(server.requests(), 36 + 4);

    let shared = Budget::new();
    let mine = RetryLayer::new().with_budget(shared.clone());
    let theirs = RetryLayer::new().with_budget(shared.clone());
    assert_eq!(ended(&mine, &server).await, Some(StopReason::Exhausted));
    assert_eq!(ended(&theirs, &server).await, Some(StopReason::Exhausted));
    assert_eq!(shared.left(), 500 - 4 * 14);
    assert_eq!(
        ended(&RetryLayer::new(), &server).await,
        Some(StopReason::Exhausted),
        "a separate layer has its own full budget"
    );
}

#[tokio::test(start_paused = true)]
async fn services_of_one_preset_share_the_budget() {
    let preset = preset::realtime_messaging(URI).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
    let retry = RetryLayer::new().with_budget(Budget::new().with_capacity(14).unwrap());
    let preset = preset.with_retry(retry);
    for (preset, attempts) in [(&preset, 2), (&preset, 1), (&preset.clone(), 1)] {
        let probe = ScriptedService::new([Status(503)]);
        preset.layer().unwrap().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
        assert_eq!(probe.calls(), attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_costs_14_or_5_if_throttled_and_a_success_returns_its_cost() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    for (script, left) in [
        (vec![Status(503), Status(404)], 486),
        (vec![Status(429), Status(404)], 481),
        (vec![Status(503)], 453),
        (vec![Status(429)], 443),
        // A success returns the cost of the last retry, and not that of the one before.
        (vec![Status(503), Status(200)], 443),
        (vec![Status(429), Status(503), Status(200)], 438),
        (vec![Status(503), Status(429), Status(200)], 424),
        (vec![Refused, Status(200)], 424),
        (vec![Status(200)], 425),
        (vec![Status(302)], 426),
    ] {
        layer.layer(ScriptedService::new(script.clone())).oneshot(get(URI)).await.unwrap();
        assert_eq!(budget.left(), left, "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_retried_costs_nothing() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    let late = |mut request: Request<Content>| {
        request.extensions_mut().insert(Deadline::after(millis(50)));
        request
    };
    let once = |mut request: Request<Content>| {
        request.extensions_mut().insert(RetryOverride::new().without_retries());
        request
    };
    let cases = [
        (layer.clone(), Status(503), late(get(URI)), StopReason::Deadline),
        (layer.clone(), Status(503), once(get(URI)), StopReason::Exhausted),
        (layer.clone().with_max_attempts(1).unwrap(), Status(503), get(URI), StopReason::Exhausted),
        (
            layer.clone().with_custom_backoff(iter::empty::<Duration>),
            Status(503),
            get(URI),
            StopReason::Exhausted,
        ),
        (layer.clone(), Status(503), request("POST", URI), StopReason::NotIdempotent),
        (layer.clone(), Status(429), request("POST", URI), StopReason::NotIdempotent),
        (layer.clone().with_replay_limit(4), Status(503), request("PUT", URI), StopReason::NotReplayable),
        (layer.clone(), KeepsBody(503), request("PUT", URI), StopReason::NotReplayable),
        (layer.clone(), RetryAfter(503, "121"), get(URI), StopReason::RequestedDelayTooLong),
        (layer.clone(), Status(404), get(URI), StopReason::NotRetryable),
    ];
    for (layer, answer, request, expected) in cases {
        let probe = ScriptedService::new([answer]);
        let response = layer.layer(probe.clone()).oneshot(request).await.unwrap();
        assert_eq!((report(&response).stop_reason(), probe.calls()), (Some(expected), 1), "{answer:?}");
        assert_eq!(budget.left(), 500, "{answer:?}: {expected:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_spent_budget_delays_no_first_attempt_and_returns_its_result() {
    let budget = Budget::new().with_capacity(14).unwrap();
    let layer = RetryLayer::new().with_budget(budget);
    let server = Server::new(503);
    ended(&layer, &server).await;
    let start = tokio::time::Instant::now();
    let response = layer.layer(ScriptedService::new([RetryAfter(503, "3")])).oneshot(get(URI)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(report(&response).stop_reason(), Some(StopReason::Budget));
    assert_eq!(
        report(&response).attempts()[0].requested_delay,
        Some(secs(3)),
        "the report has the requested delay"
    );
    assert_eq!(report(&response).attempts()[0].delay, None);
    let error = layer.layer(ScriptedService::new([Refused])).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Budget));
    assert!(error.is_service());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_calls_cannot_overdraw_the_budget() {
    for _ in 0..10 {
        let (server, budget) = (Server::new(503), Budget::new().with_capacity(145).unwrap());
        let layer = RetryLayer::new()
            .with_budget(budget.clone())
            .with_max_attempts(20)
            .unwrap()
            .with_custom_backoff(|| iter::repeat(Duration::ZERO));
        let service = layer.layer(server.service());
        let calls: Vec<_> = (0..64)
            .map(|_| {
                let service = service.clone();
                tokio::spawn(async move {
                    for _ in 0..5 {
                        service.clone().oneshot(get(URI)).await.unwrap();
                    }
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!((server.requests(), budget.left()), (64 * 5 + 10, 5));
    }
}
