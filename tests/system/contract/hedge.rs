//! tower's `Hedge` sends one request through two clones of the service and drops the slower call.

use std::sync::Arc;

use http::Request;
use tower::{
    Service, ServiceExt,
    hedge::{Hedge, Policy},
};
use tower_outbound::Body;

use super::{
    all_layers::all_layers,
    call::{assert_usable, request},
    faulty_service::{FaultPlan, FaultyService},
};
use crate::support::{millis, secs};

#[derive(Clone)]
struct Resend(Arc<FaultPlan>, &'static str);

impl Policy<Request<Body>> for Resend {
    fn clone_request(&self, _: &Request<Body>) -> Option<Request<Body>> {
        Some(request(&self.0, self.1, 1, "200:5"))
    }

    fn can_retry(&self, _: &Request<Body>) -> bool {
        true
    }
}

/// `Hedge` sends the second request after 100 ms, because all recorded latencies are 100 ms.
#[tokio::test(start_paused = true)]
async fn slower_hedged_call_releases_its_permits_when_dropped() {
    for case in all_layers() {
        for (first, calls) in [("200:5", 1), ("200:20000", 2)] {
            let inner = FaultyService::healthy().with_limited(|limited| limited.with_permits(2));
            let (service, state) = case.over(&inner);
            let policy = Resend(inner.plan.clone(), case.uri);
            let mut hedge =
                Hedge::new_with_mock_latencies(service.clone(), policy, 10, 0.9, secs(60), &[100; 10]);
            let start = tokio::time::Instant::now();
            let request = request(&inner.plan, case.uri, 0, first);
            let response = hedge.ready().await.unwrap().call(request).await.unwrap();
            assert_eq!((response.status().as_u16(), inner.limited.calls()), (200, calls), "{}", case.label);
            assert!(start.elapsed() < secs(10), "{}: {:?}", case.label, start.elapsed());
            drop(hedge);
            tokio::time::sleep(millis(1)).await;
            state.assert_idle(&case, &inner, 1, 0);
            assert_usable(&service, &inner, case.uri).await;
        }
    }
}
