//! Callers are held to tower's contract.

use std::{
    io::{Error, ErrorKind::Unsupported},
    task::{Context, Poll},
};

use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    retry::RetryLayer,
    test_util::{Answer, Arrivals, ScriptedService},
};

use super::*;

#[tokio::test]
#[should_panic(expected = "called without having been polled ready: GET /v1; before each call")]
async fn who_is_not_polled_ready_panics_and_the_key_in_the_query_is_not_told() {
    drop(ScriptedService::new([200]).call(get()));
}

#[tokio::test]
#[should_panic(expected = "called without having been polled ready")]
async fn readiness_is_for_one_call() {
    let mut service = ScriptedService::new([200]);
    assert!(ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await.unwrap().call(get()).await.is_ok());
    drop(service.call(get()));
}

/// Does what tower's manual warns of: polls itself, and calls a clone.
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
#[should_panic(expected = "no clone takes over its readiness")]
async fn a_layer_that_calls_a_clone_is_caught() {
    let _ = CallsAClone(ScriptedService::new([200])).oneshot(get()).await;
}

#[tokio::test(start_paused = true)]
async fn who_keeps_to_it_is_let_through_however_often_it_is_pending() {
    for polls in [0, 1, 3] {
        let service = ScriptedService::new([200]).with_pending_polls(polls);
        let arrivals = Arrivals::new();
        let mut stack = ServiceBuilder::new().map_request(noting(&arrivals)).service(service.clone());
        for _ in 0..2 {
            let mut ready = task::spawn(ServiceExt::<Request<Full<Bytes>>>::ready(&mut stack));
            for _ in 0..polls {
                assert_pending!(ready.poll());
                assert!(ready.is_woken());
            }
            let ready = assert_ready_ok!(ready.poll());
            assert!(ready.call(get()).await.is_ok());
        }
        assert_eq!((arrivals.count(), service.arrivals().times()), (2, arrivals.times()));
    }
}

#[tokio::test]
async fn readiness_can_fail() {
    let service = ScriptedService::new([200]).with_readiness_error(|| Error::from(Unsupported).into());
    let error = call(&service).await.unwrap_err();
    assert_eq!((error.downcast_ref::<Error>().unwrap().kind(), service.calls()), (Unsupported, 0));
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_from_readiness_to_the_answer() {
    let service = ScriptedService::new([Answer::status(200).with_delay(secs(3))]).with_permits(2);
    let mut ready = service.clone();
    ServiceExt::<Request<Full<Bytes>>>::ready(&mut ready).await.unwrap();
    ServiceExt::<Request<Full<Bytes>>>::ready(&mut ready).await.unwrap();
    assert_eq!(service.permits_taken(), 1, "asked again, it takes no other");
    let mut calling = task::spawn(call(&service));
    assert_pending!(calling.poll());
    assert_eq!((service.permits_taken(), service.calls()), (2, 1));

    let mut waiting = task::spawn(call(&service));
    assert_pending!(waiting.poll());
    assert!(!waiting.is_woken());
    drop(ready);
    assert!(waiting.is_woken());
    assert_pending!(waiting.poll());
    assert_eq!((service.permits_taken(), service.calls()), (2, 2));
    drop(calling);
    let start = Instant::now();
    assert!(waiting.await.is_ok());
    assert_eq!((start.elapsed(), service.permits_taken(), service.instances()), (secs(3), 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_sleeps_holds_no_permit_and_one_that_does_is_seen() {
    let service = ScriptedService::new([503, 200]);
    let mut retried = task::spawn(RetryLayer::new().layer(service.clone()).oneshot(get()));
    assert_pending!(retried.poll());
    assert_eq!((service.calls(), service.permits_taken()), (1, 0));

    let sleeps = service.clone();
    let mut held = task::spawn(async move {
        let mut service = sleeps;
        let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await.unwrap();
        tokio::time::sleep(secs(1)).await;
        ready.call(get()).await
    });
    assert_pending!(held.poll());
    assert_eq!(service.permits_taken(), 1);
}
