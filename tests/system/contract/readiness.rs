//! Only the instance that was polled ready is called, and only once; no clone takes over its readiness.

use tower::{Service, ServiceExt};

use super::{
    moody::Moody,
    probe::secs,
    rows::rows,
    sent::{Client, request},
};

#[tokio::test(start_paused = true)]
async fn only_what_was_polled_ready_is_called() {
    for row in rows() {
        for pending in [0, 1, 3] {
            let moody = Moody::well().over(|probe| probe.with_pending_polls(pending).with_permits(2));
            let (mut service, books) = row.over(&moody);
            let calls = async {
                let send = || request(&moody.plan, row.uri, 0, "200:5");
                for _ in 0..2 {
                    assert_eq!(service.ready().await.unwrap().call(send()).await.unwrap().status(), 200);
                }
                // A clone of a service that is ready is not ready, and the service itself still is.
                service.ready().await.unwrap();
                let mut clone: Client = service.clone();
                let first = service.call(send());
                let second = clone.ready().await.unwrap().call(send());
                assert!(second.await.is_ok() && first.await.is_ok());
            };
            // Whoever waits for a permit that is never given back does not get ready.
            let calls = tokio::time::timeout(secs(120), calls).await;
            assert!(calls.is_ok(), "{} hangs, pending {pending} times", row.label);
            assert_eq!(moody.probe.calls(), 4, "{}, pending {pending} times", row.label);
            drop(service);
            books.are_even(&row, &moody, 0, 0);
        }
    }
}

/// Readiness that is not used is given back with its service, and does not go over to a clone.
#[tokio::test(start_paused = true)]
async fn readiness_that_is_not_used_is_given_back() {
    for row in rows() {
        let moody = Moody::well().over(|probe| probe.with_permits(1));
        let (service, books) = row.over(&moody);
        let mut ready = service.clone();
        ready.ready().await.unwrap();
        let clone = ready.clone();
        drop(ready);
        let call = clone.oneshot(request(&moody.plan, row.uri, 0, "200:5"));
        let answer = tokio::time::timeout(secs(120), call).await;
        assert!(answer.is_ok_and(|answer| answer.is_ok()), "{}", row.label);
        books.are_even(&row, &moody, 1, 0);
    }
}
