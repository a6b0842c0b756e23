//! Combinations of two rules.

use super::{
    URI, report,
    support::{Broken, Content, Scripted::*, ScriptedService, cause, get, millis, request, secs},
};
use http::{Request, Response};
use std::{
    io::{self, ErrorKind::*},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Body, Quota,
    body::ReplayBody,
    call::{Deadline, StopReason},
    limit::{RateLimitLayer, TokenBucket},
    request_id::RequestIdLayer,
    retry::{Budget, IdempotencyKey, RetryLayer},
};

#[tokio::test(start_paused = true)]
async fn a_101_returns_the_cost_of_its_retry() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    let response =
        layer.layer(ScriptedService::new([Status(503), Status(101)])).oneshot(get(URI)).await.unwrap();
    assert_eq!(report(&response).stop_reason(), Some(StopReason::Success));
    assert_eq!(budget.left(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_from_a_layer_below_the_first_applies_too() {
    let probe = ScriptedService::new([RetryAfter(503, "3"), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .map_request(|mut request: Request<Content>| {
            request.extensions_mut().insert(Deadline::after(secs(1)));
            request
        })
        .layer(RetryLayer::new())
        .service(probe.clone());
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(probe.calls(), 1);
}

/// Becomes ready `after` times, and then fails.
#[derive(Clone)]
struct Breaks {
    after: usize,
    asked: Arc<AtomicUsize>,
    probe: ScriptedService,
}
impl Service<Request<ReplayBody<Content>>> for Breaks {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <ScriptedService as Service<Request<ReplayBody<Content>>>>::Future;
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.asked.fetch_add(1, Relaxed) >= self.after {
            return Poll::Ready(Err(Broken.into()));
        }
        Service::<Request<ReplayBody<Content>>>::poll_ready(&mut self.probe, cx)
    }
    fn call(&mut self, request: Request<ReplayBody<Content>>) -> Self::Future {
        self.probe.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn failed_readiness_below_a_limiter_does_not_hide_the_earlier_error() {
    let inner =
        Breaks { after: 1, asked: Arc::default(), probe: ScriptedService::new([Io(ConnectionReset)]) };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::unlimited()))
        .service(inner);
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(cause::<io::Error>(&error).map(io::Error::kind), Some(ConnectionReset), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn retries_post_if_the_service_below_a_limiter_was_not_ready() {
    let inner = Breaks { after: 0, asked: Arc::default(), probe: ScriptedService::new([Status(200)]) };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::unlimited()))
        .service(inner);
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 3, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn returns_no_error_from_before_a_response() {
    let inner = Breaks {
        after: 2,
        asked: Arc::default(),
        probe: ScriptedService::new([Io(ConnectionReset), Status(503)]),
    };
    let error = RetryLayer::new().layer(inner).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(cause(&error), Some(&Broken), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_the_limiter_refused_costs_nothing() {
    let budget = Budget::new();
    let bucket = TokenBucket::new(Quota::new(2, secs(60)).unwrap().with_burst(1).unwrap().without_margin());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_budget(budget.clone()))
        .layer(RateLimitLayer::new(bucket).with_max_wait(millis(1)))
        .service(ScriptedService::new([Status(503)]));
    service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(budget.left(), 500);
}

#[tokio::test(start_paused = true)]
async fn two_layers_with_one_seed_send_different_idempotency_keys() {
    let probe = ScriptedService::new([Status(200)]);
    for _ in 0..2 {
        let layer = RetryLayer::new().with_seed(1).with_honoured_idempotency_key(IdempotencyKey::bare());
        layer.layer(probe.clone()).oneshot(request("POST", URI)).await.unwrap();
    }
    let keys: Vec<_> = probe.seen().iter().map(|seen| seen.head.headers["idempotency-key"].clone()).collect();
    assert_ne!(keys[0], keys[1]);
}

/// A service that becomes ready every other time and responds 503 to every request.
#[derive(Clone)]
struct Flaps(Arc<AtomicUsize>, ScriptedService);
impl Service<Request<ReplayBody<ReplayBody<Content>>>> for Flaps {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <ScriptedService as Service<Request<ReplayBody<Content>>>>::Future;
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.0.fetch_add(1, Relaxed) % 2 {
            0 => Service::<Request<ReplayBody<Content>>>::poll_ready(&mut self.1, cx),
            _ => Poll::Ready(Err(Broken.into())),
        }
    }
    fn call(&mut self, request: Request<ReplayBody<ReplayBody<Content>>>) -> Self::Future {
        let (head, _) = request.into_parts();
        self.1.call(Request::from_parts(head, ReplayBody::new(Content::default())))
    }
}

#[tokio::test(start_paused = true)]
async fn an_inner_retry_layer_does_not_report_a_sent_post_as_not_sent() {
    let probe = ScriptedService::new([Status(503)]);
    let honoured = RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(honoured.with_max_attempts(2).unwrap())
        .layer(RateLimitLayer::new(TokenBucket::unlimited()))
        .service(Flaps(Arc::default(), probe.clone()));
    service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(probe.calls(), 1, "the outer layer has no idempotency key for the POST");
}

#[tokio::test(start_paused = true)]
async fn replaces_an_empty_idempotency_key() {
    for own in ["", " ", "\"\""] {
        let probe = ScriptedService::new([Io(ConnectionReset), Status(200)]);
        let layer = RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare());
        let mut request = request("POST", URI);
        request.headers_mut().insert("idempotency-key", own.parse().unwrap());
        layer.layer(probe.clone()).oneshot(request).await.unwrap();
        let keys: Vec<_> =
            probe.seen().iter().map(|seen| seen.head.headers["idempotency-key"].len()).collect();
        assert_eq!(keys, [36, 36], "{own:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_headers_of_a_429_request_a_delay() {
    let throttled = |reset_after: &'static str| {
        let service = tower::service_fn(move |_: Request<ReplayBody<Content>>| async move {
            let answer = Response::builder().status(429).header("ratelimit", reset_after);
            Ok::<_, BoxError>(answer.body(Content::default()).unwrap())
        });
        RetryLayer::new().with_max_attempts(2).unwrap().layer(service).oneshot(get(URI))
    };
    let response = throttled("\"d\";r=0;t=30").await.unwrap();
    let attempts = report(&response).attempts();
    assert!(attempts[1].started >= secs(30), "{attempts:?}");
    assert_eq!(attempts[0].requested_delay, Some(secs(30)));
    let response = throttled("\"d\";r=0;t=300").await.unwrap();
    assert_eq!(report(&response).stop_reason(), Some(StopReason::RequestedDelayTooLong));
    assert_eq!(report(&response).retry_after(), Some(secs(300)));
    let response = throttled("\"d\";r=1;t=300").await.unwrap();
    assert_eq!(report(&response).attempts()[0].requested_delay, None, "permits remain");
}

#[tokio::test(start_paused = true)]
async fn the_report_of_another_call_is_replaced() {
    let service = tower::service_fn(|_: Request<ReplayBody<Content>>| async {
        let inner = RetryLayer::new()
            .with_max_attempts(1)
            .unwrap()
            .layer(ScriptedService::new([Io(ConnectionReset)]));
        inner.oneshot(get(URI)).await
    });
    let error = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 3);
}
