//! tower's `Balance`, by the power of two choices.

use http::Request;
use tower::{
    Layer, ServiceExt, balance::p2c::Balance, buffer::Buffer, discover::ServiceList, load::Constant,
};
use tower_outbound::body::ReplayBody;

use super::{
    URI,
    probe::{Answer::Is, Content, Probe, get},
    rates,
};

/// It is not `Clone`: a buffer makes it so.
#[tokio::test(start_paused = true)]
async fn below_it_stands_in_a_buffer() {
    let probes = [Probe::new([Is(200)]), Probe::new([Is(200)])];
    let endpoints =
        ServiceList::new::<Request<ReplayBody<Content>>>(probes.clone().map(|probe| Constant::new(probe, 1)));
    let service = rates().layer().unwrap().layer(Buffer::new(Balance::new(endpoints), 8));
    for _ in 0..8 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    assert_eq!(probes.iter().map(Probe::calls).sum::<usize>(), 8);
}

/// One layer makes one limiter, whichever endpoint is chosen.
#[tokio::test(start_paused = true)]
async fn above_the_endpoints_share_the_quota() {
    let probes = [Probe::new([Is(200)]), Probe::new([Is(200)])];
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
    assert_eq!(probes.iter().map(Probe::calls).sum::<usize>(), 11);
}
