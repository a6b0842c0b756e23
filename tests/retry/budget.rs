//! Tests the retry budget, which all calls of a retry layer share.

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
    call::StopReason,
    preset,
    retry::{Budget, RetryLayer},
};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, get, millis, secs},
};

/// A server that responds to every request with the status of the latest `set_status` call, and counts the requests.
#[derive(Clone)]
struct Server {
    status: Arc<AtomicU16>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn new(status: u16) -> Self {
        Self { status: Arc::new(AtomicU16::new(status)), requests: Arc::default() }
    }

    fn set_status(&self, status: u16) {
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

    /// Makes 100 calls in a minute, one every 600 ms. Returns the number of requests that the server receives,
    /// including retries.
    async fn requests_for_100_calls(&self, layer: &RetryLayer) -> usize {
        let before = self.requests();
        for _ in 0..100 {
            tokio::spawn(layer.layer(self.service()).oneshot(get(URI)));
            tokio::time::sleep(millis(600)).await;
        }
        self.requests() - before
    }
}

/// Makes one call and returns the call's stop reason.
async fn stop_reason(layer: &RetryLayer, server: &Server) -> Option<StopReason> {
    report(&layer.layer(server.service()).oneshot(get(URI)).await.unwrap()).stop_reason()
}

#[tokio::test(start_paused = true)]
async fn spent_budget_allows_at_most_one_retry_per_ten_failing_calls() {
    for status in [429, 500, 503] {
        let (server, layer) = (Server::new(status), RetryLayer::new());
        let first = server.requests_for_100_calls(&layer).await;
        // A full budget of 500 credits pays for 35 retries, or for 100 retries after throttled responses.
        assert_eq!(first, if status == 429 { 200 } else { 135 }, "{status}");
        for minute in 2..=5 {
            let requests = server.requests_for_100_calls(&layer).await;
            assert!(
                (100..=110).contains(&requests),
                "status {status}: {requests} requests in minute {minute}"
            );
        }
        // Without a budget, nearly every call makes three attempts.
        let layer = RetryLayer::new().without_budget();
        server.requests_for_100_calls(&layer).await;
        assert!(server.requests_for_100_calls(&layer).await >= 290, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_resume_after_successes_have_refilled_the_budget() {
    let (server, budget) = (Server::new(503), Budget::new());
    let layer = RetryLayer::new().with_budget(budget.clone());
    server.requests_for_100_calls(&layer).await;
    assert_eq!(stop_reason(&layer, &server).await, Some(StopReason::Budget));
    assert_eq!(budget.left(), 500 - 35 * 14);

    // The remaining 10 credits and the 4 credits gained by four successes pay for one retry, which costs 14.
    server.set_status(200);
    for left in 11..=14 {
        assert_eq!(stop_reason(&layer, &server).await, Some(StopReason::Success));
        assert_eq!(budget.left(), left);
    }
    let inner = ScriptedService::new([Status(503), Status(200)]);
    let response = layer.layer(inner.clone()).oneshot(get(URI)).await.unwrap();
    assert_eq!((response.status().as_u16(), inner.calls()), (200, 2));
    assert_eq!(budget.left(), 14, "a success after a retry should return the retry's cost to the budget");

    // 600 successes refill the budget to its capacity of 500 credits.
    for _ in 0..6 {
        server.requests_for_100_calls(&layer).await;
    }
    assert_eq!(budget.left(), 500);
    server.set_status(503);
    assert_eq!(server.requests_for_100_calls(&layer).await, 135);
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_retry_layer_share_a_budget_and_separate_layers_do_not() {
    let server = Server::new(503);
    let layer = RetryLayer::new().with_max_attempts(100).unwrap();
    let service = layer.layer(server.service());
    // The shared budget pays for 35 retries, and the first call makes all 35 of them.
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
    let first = RetryLayer::new().with_budget(shared.clone());
    let second = RetryLayer::new().with_budget(shared.clone());
    assert_eq!(stop_reason(&first, &server).await, Some(StopReason::Exhausted));
    assert_eq!(stop_reason(&second, &server).await, Some(StopReason::Exhausted));
    assert_eq!(shared.left(), 500 - 4 * 14);
    assert_eq!(
        stop_reason(&RetryLayer::new(), &server).await,
        Some(StopReason::Exhausted),
        "a new layer should have its own full budget"
    );
}

#[tokio::test(start_paused = true)]
async fn services_of_one_preset_share_a_retry_budget() {
    let preset = preset::realtime_messaging(URI).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
    let retry = RetryLayer::new().with_budget(Budget::new().with_capacity(14).unwrap());
    let preset = preset.with_retry(retry);
    for (preset, attempts) in [(&preset, 2), (&preset, 1), (&preset.clone(), 1)] {
        let inner = ScriptedService::new([Status(503)]);
        preset.layer().unwrap().layer(inner.clone()).oneshot(get(URI)).await.unwrap();
        assert_eq!(inner.calls(), attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn call_returns_its_first_result_immediately_if_retry_budget_is_spent() {
    let budget = Budget::new().with_capacity(14).unwrap();
    let layer = RetryLayer::new().with_budget(budget);
    let server = Server::new(503);
    stop_reason(&layer, &server).await;
    let start = tokio::time::Instant::now();
    let response = layer.layer(ScriptedService::new([RetryAfter(503, "3")])).oneshot(get(URI)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(report(&response).stop_reason(), Some(StopReason::Budget));
    assert_eq!(
        report(&response).attempts()[0].requested_delay,
        Some(secs(3)),
        "the report should contain the delay that the response requested"
    );
    assert_eq!(report(&response).attempts()[0].delay, None);
    let error = layer.layer(ScriptedService::new([Refused])).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Budget));
    assert!(error.is_service());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_calls_cannot_overdraw_the_retry_budget() {
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
