//! Tests requests that wait for HTTP/2 streams.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::Version;
use tokio::sync::Semaphore;
use tower_outbound::{Error, call::Outcome, client::Response};

use super::{
    attempts, builder, client,
    forwarder::Forwarder,
    http2, millis, outcomes,
    server::{Server, Settings, reply},
    support::certificate::{certificate, trusting},
    support::server::{settle, within},
    text, tls,
};

/// A server that allows `streams` streams and needs some time for each request.
async fn slow_server(streams: u32, work: Duration) -> Server {
    Server::start(Settings::streams(streams), move |_, _| async move {
        tokio::time::sleep(work).await;
        reply(200, "ok")
    })
    .await
}

/// A server with one stream. Each request waits until `permits` has a permit.
pub(crate) async fn gated_server(permits: &Arc<Semaphore>) -> Server {
    let permits = Arc::clone(permits);
    Server::start(Settings::streams(1), move |_, _| {
        let permits = Arc::clone(&permits);
        async move {
            permits.acquire().await.unwrap().forget();
            reply(200, "ok")
        }
    })
    .await
}

#[track_caller]
fn assert_succeeded_at_once(call: Result<Response, Error>) {
    let response = call.unwrap();
    let report = response.report().unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (200, 1), "{:?}", report.attempts());
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("/{number}")).collect()
}

/// The last requests wait for longer than the attempt timeout, which does not apply before they are sent.
#[tokio::test]
async fn sixteen_posts_wait_in_order_for_two_streams_of_one_connection() {
    let server = slow_server(2, millis(150)).await;
    let builder = builder(&server.url()).with_attempt_timeout(millis(1_000));
    let client = builder.client_with_transport(http2().with_max_connections(1)).unwrap();
    let calls = (0..16).map(|number| client.post(format!("/{number}")).body("{}").send());
    within(join_all(calls)).await.into_iter().for_each(assert_succeeded_at_once);
    assert_eq!(server.paths(), numbered(16), "16 requests in order");
    assert_eq!((server.connections(), server.most_in_progress()), (1, 2));
}

#[tokio::test]
async fn further_connections_open_if_all_streams_are_in_use() {
    for method in [http::Method::POST, http::Method::GET] {
        let server = slow_server(2, millis(100)).await;
        let client = client(&server.url(), http2());
        let calls = (0..16).map(|number| client.request(method.clone(), format!("/{number}")).send());
        within(join_all(calls)).await.into_iter().for_each(assert_succeeded_at_once);
        let paths: BTreeSet<_> = server.paths().into_iter().collect();
        assert_eq!((server.requests(), paths.len()), (16, 16), "{method}: each request is sent once");
        assert!((2..=16).contains(&server.connections()), "{method}: {}", server.connections());
    }
}

#[tokio::test]
async fn sixteen_first_calls_over_tls_share_one_handshake() {
    let certificate = certificate();
    let server = Server::quick(Settings::tls(tls::acceptor(&certificate, &["h2", "http/1.1"]))).await;
    let client = client(&server.url(), trusting(&certificate));
    let calls = within(join_all((0..16).map(|_| client.post("/").body("{}").send()))).await;
    for call in calls {
        let response = call.unwrap();
        assert_eq!((response.version(), attempts(&response)), (Version::HTTP_2, 1));
    }
    assert_eq!((server.connections(), server.requests()), (1, 16));
}

#[tokio::test]
async fn sixteen_first_calls_over_tls_use_a_connection_each_if_the_server_has_only_http1() {
    let certificate = certificate();
    let server = Server::start(Settings::tls(tls::acceptor(&certificate, &["http/1.1"])), |_, _| async {
        tokio::time::sleep(millis(100)).await;
        reply(200, "ok")
    })
    .await;
    let client = client(&server.url(), trusting(&certificate));
    let calls = within(join_all((0..16).map(|_| text(client.post("/").body("{}"))))).await;
    assert_eq!(calls.len(), 16);
    assert_eq!(server.requests(), 16);
    assert!((2..=16).contains(&server.connections()), "{}", server.connections());
}

/// A short body ends its stream, even if it is not read.
#[tokio::test]
async fn unread_short_bodies_hold_no_stream() {
    let server = slow_server(2, millis(10)).await;
    let client = client(&server.url(), http2().with_max_connections(1));
    let responses = within(join_all((0..16).map(|_| client.get("/").send()))).await;
    for response in responses {
        assert_eq!(within(response.unwrap().bytes()).await.unwrap(), "ok");
    }
    assert_eq!(server.requests(), 16);
}

/// Each connection ends gracefully after 20 requests, while others are in progress.
#[tokio::test]
async fn no_post_hangs_or_is_processed_twice_while_connections_are_drained() {
    const TASKS: usize = 8;
    const CALLS: usize = 50;
    let settings = Settings { last_request: Some(20), ..Settings::http2() };
    let server = Server::start(settings, |_, _| async {
        tokio::time::sleep(millis(5)).await;
        reply(200, "ok")
    })
    .await;
    let client = client(&server.url(), http2());
    let tasks = (0..TASKS).map(|task| {
        let client = client.clone();
        async move {
            let mut failed = 0;
            for call in 0..CALLS {
                match client.post(format!("/{task}/{call}")).body("{}").await {
                    Ok(response) => assert_eq!(response.bytes().await.unwrap(), "ok"),
                    Err(error) => {
                        failed += 1;
                        let outcomes = outcomes(error.report().unwrap());
                        assert_eq!(outcomes.last(), Some(&Outcome::Failed), "{error:?}");
                    }
                }
            }
            failed
        }
    });
    let failed: usize = within(join_all(tasks)).await.into_iter().sum();
    let paths: BTreeSet<_> = server.paths().into_iter().collect();
    assert_eq!(paths.len(), server.requests(), "no request is sent twice");
    assert!(paths.len() + failed >= TASKS * CALLS);
    // Only requests in flight at a GOAWAY may fail.
    assert!(failed <= TASKS * server.connections(), "{failed} calls failed");
    assert!(server.connections() >= TASKS * CALLS / 40, "connections are drained");
}

/// Before the settings have arrived, the client does not know the limit of streams, and sends one request.
#[tokio::test]
async fn one_request_is_sent_before_the_settings_of_the_server_arrive() {
    let server = slow_server(2, millis(10)).await;
    let path = Forwarder::start(server.address()).await;
    path.hold();
    let client = client(&path.url(), http2().with_max_connections(1));
    let calls: Vec<_> = (0..16).map(|_| tokio::spawn(client.post("/").body("{}").send())).collect();
    within(server.received(1)).await;
    tokio::time::sleep(millis(50)).await;
    assert_eq!(server.requests(), 1);
    path.release();
    for call in within(join_all(calls)).await {
        assert_succeeded_at_once(call.unwrap());
    }
    assert_eq!((server.requests(), path.opened()), (16, 1));
}

#[tokio::test]
async fn waiting_requests_move_to_a_new_connection_if_theirs_dies() {
    let permits = Arc::new(Semaphore::new(1));
    let server = gated_server(&permits).await;
    let path = Forwarder::start(server.address()).await;
    let client =
        client(&path.url(), http2().with_max_connections(1).with_http2_pings(millis(50), millis(300)));
    assert_eq!(within(text(client.get("/first"))).await, "ok");
    let held = tokio::spawn(client.post("/held").body("{}").send());
    within(server.received(2)).await;
    let waiting: Vec<_> = (0..4).map(|_| tokio::spawn(client.post("/waiting").body("{}").send())).collect();
    settle().await;
    path.silence();
    permits.add_permits(100);
    let error = within(held).await.unwrap().unwrap_err();
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::Failed]);
    for call in within(join_all(waiting)).await {
        assert_succeeded_at_once(call.unwrap());
    }
    assert_eq!((path.opened(), server.requests()), (2, 6));
}
