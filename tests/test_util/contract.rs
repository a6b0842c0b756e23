//! Tests that `ScriptedService` panics if its caller breaks tower's contract.

use std::task::{Context, Poll};

use tower::{Service, ServiceExt};
use tower_outbound::test_util::ScriptedService;

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
