//! Tests a quota over connections that take longer to open than a permit is valid, on paused time.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower_outbound::{
    Quota,
    limit::LocalLimiter,
    test_util::{ScriptedResponse, ScriptedService},
    transport::TransportConfig,
};

use super::{builder, millis};

/// Permits of 20 per second are valid for 15 ms. The first requests open connections, and their permits expire. If
/// these requests then waited behind the others, each request would open a connection and spend two permits.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_another_permit_leave_their_connections_to_the_next_ones() {
    const CALLS: u64 = 200;
    let opened = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&opened);
    let connector = tower::service_fn(move |_| {
        counter.fetch_add(1, Relaxed);
        async {
            sleep(millis(40)).await;
            let (client, server) = tokio::io::duplex(64 << 10);
            let respond = service_fn(|_: Request<Incoming>| async {
                sleep(millis(50)).await;
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), respond));
            Ok::<_, io::Error>(client)
        }
    });
    let limiter = LocalLimiter::paced_window(Quota::per_second(20).unwrap());
    let client = builder("http://api.example.com")
        .with_limiter(limiter.clone())
        .client_with_service(TransportConfig::new().build_with_connector(connector).unwrap())
        .unwrap();
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for _ in 0..CALLS {
        let client = client.clone();
        calls.spawn(async move { client.post("/").body("{}").await.unwrap().text().await.unwrap() });
    }
    calls.join_all().await;
    let (granted, opened) = (limiter.snapshot().granted, opened.load(Relaxed));
    assert!(granted <= CALLS + 20 && opened <= 20, "{granted} permits, {opened} connections");
    assert!(start.elapsed() < millis(12_500), "{:?}", start.elapsed());
}

/// The same if a layer below the limiter has no slot for the request until its permit has expired.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_another_permit_leave_their_slots_to_the_next_ones() {
    const CALLS: u64 = 200;
    let limiter = LocalLimiter::paced_window(Quota::per_second(20).unwrap());
    let slow = ScriptedResponse::status(200).with_delay(millis(200));
    let client = builder("http://api.example.com")
        .with_limiter(limiter.clone())
        .with_transport_layer(GlobalConcurrencyLimitLayer::new(2))
        .client_with_service(ScriptedService::new([slow]))
        .unwrap();
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for _ in 0..CALLS {
        let client = client.clone();
        calls.spawn(async move { client.post("/").body("{}").await.unwrap().status() });
    }
    calls.join_all().await;
    // Two slots and 200 ms for each request.
    assert!(
        start.elapsed() < millis(26_000),
        "{:?}, {} permits",
        start.elapsed(),
        limiter.snapshot().granted
    );
}
