//! Where two of the rules meet.

use super::{
    URI,
    probe::{Answer::*, Broken, Content, Probe, cause, get, millis, request, secs},
    report,
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
    Quota,
    body::ReplayBody,
    call::{Deadline, Ended},
    limit::{RateLimitLayer, TokenBucket},
    policy::Budget,
    request_id::RequestIdLayer,
    retry::{IdempotencyKey, RetryLayer},
};

#[tokio::test(start_paused = true)]
async fn an_upgrade_gives_back_what_its_retry_spent() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    let response = layer.layer(Probe::new([Is(503), Is(101)])).oneshot(get(URI)).await.unwrap();
    assert_eq!(report(&response).ended(), Some(Ended::Success));
    assert_eq!(budget.left(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_put_on_further_in_holds_too() {
    let probe = Probe::new([Asks(503, "3"), Is(200)]);
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

/// Gets ready so often, and then fails to.
#[derive(Clone)]
struct Breaks {
    after: usize,
    asked: Arc<AtomicUsize>,
    probe: Probe,
}
impl Service<Request<ReplayBody<Content>>> for Breaks {
    type Response = Response<Content>;
    type Error = BoxError;
    type Future = <Probe as Service<Request<ReplayBody<Content>>>>::Future;
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
async fn nor_below_a_limiter_does_readiness_hide_the_earlier_error() {
    let inner = Breaks { after: 1, asked: Arc::default(), probe: Probe::new([Io(ConnectionReset)]) };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::unmetered()))
        .service(inner);
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(cause::<io::Error>(&error).map(io::Error::kind), Some(ConnectionReset), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn below_a_limiter_a_post_that_never_got_ready_goes_again() {
    let inner = Breaks { after: 0, asked: Arc::default(), probe: Probe::new([Is(200)]) };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::unmetered()))
        .service(inner);
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 3, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn the_error_that_comes_out_is_not_older_than_an_answer() {
    let inner = Breaks { after: 2, asked: Arc::default(), probe: Probe::new([Io(ConnectionReset), Is(503)]) };
    let error = RetryLayer::new().layer(inner).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(cause(&error), Some(&Broken), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_the_limiter_refused_costs_nothing() {
    let budget = Budget::new();
    let bucket = TokenBucket::new(Quota::new(2, secs(60)).unwrap().with_burst(1).unwrap());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_budget(budget.clone()))
        .layer(RateLimitLayer::new(bucket).with_max_wait(millis(1)))
        .service(Probe::new([Is(503)]));
    service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(budget.left(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_retry_whose_call_was_dropped_in_its_back_off_costs_nothing() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    let mut call = tokio_test::task::spawn(layer.layer(Probe::new([Is(503)])).oneshot(get(URI)));
    tokio_test::assert_pending!(call.poll());
    drop(call);
    assert_eq!(budget.left(), 500);
}

#[tokio::test(start_paused = true)]
async fn two_layers_of_one_seed_give_two_calls_two_keys() {
    let probe = Probe::new([Is(200)]);
    for _ in 0..2 {
        let layer = RetryLayer::new().with_seed(1).with_honoured_idempotency_key(IdempotencyKey::bare());
        layer.layer(probe.clone()).oneshot(request("POST", URI)).await.unwrap();
    }
    let keys: Vec<_> = probe.seen().iter().map(|seen| seen.head.headers["idempotency-key"].clone()).collect();
    assert_ne!(keys[0], keys[1]);
}
