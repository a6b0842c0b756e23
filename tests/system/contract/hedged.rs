//! tower's `Hedge`, which calls two clones for one request and drops the slower call.

use http::Request;
use tower::{
    Service, ServiceExt,
    hedge::{Hedge, Policy},
};
use tower_outbound::Body;

use super::{
    moody::{Moody, Plan},
    probe::{millis, secs},
    rows::rows,
    sent::{request, still_works},
};

#[derive(Clone)]
struct Twice {
    plan: std::sync::Arc<Plan>,
    uri: &'static str,
}

impl Policy<Request<Body>> for Twice {
    fn clone_request(&self, _: &Request<Body>) -> Option<Request<Body>> {
        Some(request(&self.plan, self.uri, 1, "200:5"))
    }

    fn can_retry(&self, _: &Request<Body>) -> bool {
        true
    }
}

/// The second is sent after 100 ms.
#[tokio::test(start_paused = true)]
async fn the_slower_of_two_calls_leaves_nothing_behind() {
    for row in rows() {
        for (first, calls) in [("200:5", 1), ("200:20000", 2)] {
            let moody = Moody::well().over(|probe| probe.with_permits(2));
            let (service, books) = row.over(&moody);
            let twice = Twice { plan: moody.plan.clone(), uri: row.uri };
            let latencies = [100; 10];
            let mut hedge =
                Hedge::new_with_mock_latencies(service.clone(), twice, 10, 0.9, secs(60), &latencies);
            let start = tokio::time::Instant::now();
            let request = request(&moody.plan, row.uri, 0, first);
            let answer = hedge.ready().await.unwrap().call(request).await.unwrap();
            assert_eq!(answer.status(), 200, "{}", row.label);
            assert!(start.elapsed() < secs(10), "{}: {:?}", row.label, start.elapsed());
            assert_eq!(moody.probe.calls(), calls, "{}", row.label);
            drop(hedge);
            tokio::time::sleep(millis(1)).await;
            books.are_even(&row, &moody, 1, 0);
            still_works(&service, &moody, row.uri).await;
        }
    }
}
