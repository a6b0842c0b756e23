//! tower's `Balance`, by the power of two choices.

use std::{
    hash::{BuildHasherDefault, DefaultHasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use http::Request;
use tower::{
    BoxError, Layer, Service, ServiceExt,
    balance::p2c::Balance,
    buffer::{Buffer, BufferLayer},
    discover::ServiceList,
    limit::ConcurrencyLimitLayer,
    load::{CompleteOnResponse, Constant, Load, PendingRequests},
    util::rng::HasherRng,
};
use tower_outbound::{body::ReplayBody, limit::RateLimitLayer};

use super::{
    URI, bucket, rates,
    support::{Content, Limited, Scripted::*, ScriptedService, get, secs},
    worst_window,
};

/// It is not `Clone`: a buffer makes it so.
#[tokio::test(start_paused = true)]
async fn below_it_stands_in_a_buffer() {
    let probes = [ScriptedService::new([Status(200)]), ScriptedService::new([Status(200)])];
    let endpoints =
        ServiceList::new::<Request<ReplayBody<Content>>>(probes.clone().map(|probe| Constant::new(probe, 1)));
    let service = rates().layer().unwrap().layer(Buffer::new(Balance::new(endpoints), 8));
    for _ in 0..8 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    assert_eq!(probes.iter().map(ScriptedService::calls).sum::<usize>(), 8);
}

/// One layer makes one limiter, whichever endpoint is chosen.
#[tokio::test(start_paused = true)]
async fn above_the_endpoints_share_the_quota() {
    let probes = [ScriptedService::new([Status(200)]), ScriptedService::new([Status(200)])];
    let layer = rates().layer().unwrap();
    let endpoints = ServiceList::new::<Request<Content>>(
        probes.clone().map(|probe| Constant::new(layer.layer(probe), 1)),
    );
    let mut service = Balance::new(endpoints);
    let start = tokio::time::Instant::now();
    for _ in 0..11 {
        tower::Service::call(service.ready().await.unwrap(), get(URI)).await.unwrap();
    }
    // Ten at once and 90 in 61 s.
    let eleventh = start.elapsed().as_millis();
    assert!((677..690).contains(&eleventh), "{eleventh}");
    assert_eq!(probes.iter().map(ScriptedService::calls).sum::<usize>(), 11);
}

/// Of twenty calls, how many are answered while one of the two endpoints is stuck with its first.
async fn answered<S>(endpoints: [S; 2]) -> usize
where
    S: Service<Request<Content>, Error: Into<BoxError>, Future: Send + 'static> + Load + 'static,
    S::Metric: std::fmt::Debug,
    S::Response: Send,
    S::Error: Send,
{
    let choices = HasherRng::with_hasher(BuildHasherDefault::<DefaultHasher>::default());
    let mut service = Balance::from_rng(ServiceList::new(endpoints), choices);
    let answered = Arc::new(AtomicUsize::new(0));
    for _ in 0..20 {
        let (call, answered) = (service.ready().await.unwrap().call(get(URI)), Arc::clone(&answered));
        tokio::spawn(async move {
            if call.await.is_ok() {
                answered.fetch_add(1, Relaxed);
            }
        });
        tokio::time::sleep(secs(1)).await;
    }
    answered.load(Relaxed)
}

/// An endpoint that is not ready is passed over, but not behind ours, which waits for it in the call.
#[tokio::test(start_paused = true)]
async fn above_it_sees_load_by_a_measure_and_not_by_readiness() {
    let probes = || {
        [ScriptedService::new([NoResponse]), ScriptedService::new([Status(200)])]
            .map(|probe| Limited::over(probe).with_permits(1))
    };
    let ours = || probes().map(|probe| RateLimitLayer::new(bucket(100)).layer(probe));
    let bare = answered(probes().map(|probe| Constant::new(probe, 1))).await;
    let ready = answered(ours().map(|service| Constant::new(service, 1))).await;
    let measure = |service| PendingRequests::new(service, CompleteOnResponse::default());
    let measured = answered(ours().map(measure)).await;
    assert!(bare >= 19 && ready < 15 && measured >= 19, "{bare} {ready} {measured}");
}

/// Then requests wait in the buffer, with permits that go stale.
#[tokio::test(start_paused = true)]
async fn below_the_window_holds_as_long_as_an_endpoint_is_ready() {
    let late = Delayed(60_000, 200);
    for (busy, expected) in [([Status(200); 4], 4), ([late; 4], 8)] {
        // Of one record, and each with places of its own.
        let probe = ScriptedService::new([&busy[..], &[Status(200)]].concat());
        let endpoints = [(); 2].map(|()| ConcurrencyLimitLayer::new(2).layer(probe.clone()));
        let endpoints = endpoints.map(|endpoint| Constant::new(endpoint, 1));
        let balance = Balance::new(ServiceList::new::<Request<Content>>(endpoints));
        let service = RateLimitLayer::new(bucket(4)).layer(BufferLayer::new(16).layer(balance));
        let calls: Vec<_> = (0..12).map(|_| tokio::spawn(service.clone().oneshot(get(URI)))).collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!((probe.calls(), worst_window(&probe).max(4)), (12, expected), "{busy:?}");
    }
}
