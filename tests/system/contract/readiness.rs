//! Tests that a layer calls only an instance of the inner service that was polled ready. A clone of a ready instance is
//! not ready.

use tower::{Service, ServiceExt};

use super::{
    all_layers::all_layers,
    call::{BoxedService, request},
    faulty_service::FaultyService,
};
use crate::support::secs;

#[tokio::test(start_paused = true)]
async fn layer_calls_only_the_instance_that_was_polled_ready() {
    for case in all_layers() {
        for pending in [0, 1, 3] {
            let inner = FaultyService::healthy()
                .with_limited(|limited| limited.with_pending_polls(pending).with_permits(2));
            let (mut service, state) = case.over(&inner);
            let calls = async {
                let request = || request(&inner.plan, case.uri, 0, "200:5");
                for _ in 0..2 {
                    assert_eq!(service.ready().await.unwrap().call(request()).await.unwrap().status(), 200);
                }
                // A ready service stays ready after it is cloned, and the clone is not ready.
                service.ready().await.unwrap();
                let mut clone: BoxedService = service.clone();
                let first = service.call(request());
                let second = clone.ready().await.unwrap().call(request());
                assert!(second.await.is_ok() && first.await.is_ok());
            };
            // If a layer leaks a permit, `ready` stays pending forever.
            let calls = tokio::time::timeout(secs(120), calls).await;
            assert!(calls.is_ok(), "{}: a call hangs if `poll_ready` is pending {pending} times", case.label);
            assert_eq!(
                inner.limited.calls(),
                4,
                "{}: wrong number of calls if `poll_ready` is pending {pending} times",
                case.label
            );
            drop(service);
            state.assert_idle(&case, &inner, 0, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ready_service_releases_its_permit_when_dropped_without_a_call() {
    for case in all_layers() {
        let inner = FaultyService::healthy().with_limited(|limited| limited.with_permits(1));
        let (service, state) = case.over(&inner);
        let mut ready = service.clone();
        ready.ready().await.unwrap();
        let clone = ready.clone();
        drop(ready);
        let call = clone.oneshot(request(&inner.plan, case.uri, 0, "200:5"));
        let result = tokio::time::timeout(secs(120), call).await;
        assert!(result.is_ok_and(|response| response.is_ok()), "{}", case.label);
        state.assert_idle(&case, &inner, 1, 0);
    }
}
