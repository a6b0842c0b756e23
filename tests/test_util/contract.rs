//! Tests that `ScriptedService` panics if its caller breaks tower's contract.

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

#[tokio::test]
#[should_panic(expected = "a clone of a ready instance is not ready")]
async fn scripted_service_panics_if_a_clone_of_a_ready_instance_is_called() {
    let mut service = ScriptedService::new([200]);
    ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await.unwrap();
    drop(service.clone().call(get()));
}
