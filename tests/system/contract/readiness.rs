//! Each call uses the readiness of the instance that was polled ready. A clone never takes over that readiness.

use tower::{Service, ServiceExt};

use super::{
    all_layers::all_layers,
    call::{BoxedService, request},
    faulty_service::FaultyService,
};
use crate::support::secs;

#[tokio::test(start_paused = true)]
async fn calls_only_the_instance_that_was_polled_ready() {
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
                // Cloning a ready service does not take its readiness away, and the clone is not ready.
                service.ready().await.unwrap();
                let mut clone: BoxedService = service.clone();
                let first = service.call(request());
                let second = clone.ready().await.unwrap().call(request());
                assert!(second.await.is_ok() && first.await.is_ok());
            };
            // A leaked permit leaves `ready` pending forever.
            let calls = tokio::time::timeout(secs(120), calls).await;
            assert!(calls.is_ok(), "{} hangs, {pending} pending polls", case.label);
            assert_eq!(inner.limited.calls(), 4, "{}, {pending} pending polls", case.label);
            drop(service);
            state.assert_idle(&case, &inner, 0, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn releases_unused_readiness_when_the_service_is_dropped() {
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
