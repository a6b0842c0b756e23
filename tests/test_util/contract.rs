//! Tests that `ScriptedService` panics if its caller breaks tower's contract.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::Semaphore;
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit};
use tower_outbound::{
    retry::RetryLayer,
    test_util::{Arrivals, ScriptedService},
};

use super::*;

#[tokio::test]
#[should_panic(expected = "called before poll_ready returned ready: GET /v1; before each call")]
async fn panic_about_a_call_before_readiness_does_not_print_the_query() {
    drop(ScriptedService::new([200]).call(get()));
}

#[tokio::test]
#[should_panic(expected = "called before poll_ready returned ready")]
async fn scripted_service_panics_if_called_twice_after_one_poll_ready() {
    let mut service = ScriptedService::new([200]);
    assert!(ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await.unwrap().call(get()).await.is_ok());
    drop(service.call(get()));
}

/// A service that breaks tower's contract: the service polls its inner service, but calls a clone.
#[derive(Clone)]
struct CallsAClone(ScriptedService);

impl Service<Request<Full<Bytes>>> for CallsAClone {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <ScriptedService as Service<Request<Full<Bytes>>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Request<Full<Bytes>>>::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        self.0.clone().call(request)
    }
}

#[tokio::test]
#[should_panic(expected = "a clone of a ready instance is not ready")]
async fn scripted_service_panics_if_a_layer_calls_a_clone_that_is_not_ready() {
    let _ = CallsAClone(ScriptedService::new([200])).oneshot(get()).await;
}

#[tokio::test(start_paused = true)]
async fn scripted_service_accepts_a_caller_that_polls_readiness_before_each_call() {
    let service = ScriptedService::new([200]);
    let arrivals = Arrivals::new();
    let mut stack = ServiceBuilder::new().map_request(recording(&arrivals)).service(service.clone());
    for _ in 0..2 {
        let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut stack).await.unwrap();
        assert!(ready.call(get()).await.is_ok());
    }
    assert_eq!((arrivals.times().len(), service.arrivals().times()), (2, arrivals.times()));
}

/// Wraps `ScriptedService` in tower's `ConcurrencyLimit`, as the docs of `ScriptedService` recommend.
#[tokio::test(start_paused = true)]
async fn retry_layer_holds_no_concurrency_permit_during_backoff() {
    let (service, permits) = (ScriptedService::new([503, 200]), Arc::new(Semaphore::new(2)));
    let limited = ConcurrencyLimit::with_semaphore(service.clone(), Arc::clone(&permits));
    let mut retried = task::spawn(RetryLayer::new().layer(limited.clone()).oneshot(get()));
    assert_pending!(retried.poll());
    assert_eq!((service.calls(), permits.available_permits()), (1, 2));

    let mut held = task::spawn(async move {
        let mut service = limited;
        let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await.unwrap();
        tokio::time::sleep(secs(1)).await;
        ready.call(get()).await
    });
    assert_pending!(held.poll());
    assert_eq!(permits.available_permits(), 1);
}
