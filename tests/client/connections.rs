//! Tests when connections are reused, shared and closed.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::Version;
use tokio::sync::{Barrier, Notify};
use tower_outbound::{ExponentialBackoff, Jitter, retry::RetryLayer, transport::TransportConfig};

use super::{
    client, preset, report, status,
    support::server::{Server, Wire, endless, reply, settle, slow, stalled, within},
    text,
};

#[tokio::test]
async fn sequential_calls_reuse_one_connection() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let client = client(&server);
    for _ in 0..5 {
        assert_eq!(within(status(client.clone().get("/"))).await, 200);
        settle().await;
    }
    assert_eq!((server.connections(), server.seen().len()), (1, 5));
}

/// The failed response arrives in parts. A response that arrives at once would not need to be drained.
#[tokio::test]
async fn client_drains_a_failed_response_and_reuses_its_connection() {
    let pause = Duration::from_millis(100);
    let backoff = ExponentialBackoff::new(pause, pause).unwrap().with_jitter(Jitter::none());
    let mut connections = Vec::new();
    // The client drains a response for at most 100 ms, which may not suffice on a busy machine. Therefore one success
    // in ten rounds is enough.
    for _ in 0..10 {
        let server = Server::start(Wire::Http1, |number, _| async move {
            Some(if number == 1 { slow(503) } else { reply(200, "fine") })
        })
        .await;
        let retry = RetryLayer::new().with_backoff(backoff);
        let client = preset(&server.url()).with_retry(retry).client().unwrap();
        assert_eq!(text(within(client.get("/")).await.unwrap()).await, "fine");
        assert_eq!(server.seen().len(), 2);
        connections.push(server.connections());
        if connections.ends_with(&[1]) {
            return;
        }
    }
    panic!("no round reused its connection; connections in each round: {connections:?}");
}

#[tokio::test]
async fn client_retries_without_draining_a_long_or_stalled_response() {
    let long = || reply(503, vec![b'x'; 16 * 1024 * 1024]);
    for failed in [long, || endless(503), || stalled(503)] {
        let server = Server::start(Wire::Http1, move |number, _| async move {
            Some(if number == 1 { failed() } else { reply(200, "fine") })
        })
        .await;
        let response = within(client(&server).get("/")).await.unwrap();
        assert_eq!((response.status().as_u16(), report(&response).attempt_count()), (200, 2));
        assert_eq!(text(response).await, "fine");
        assert_eq!(server.connections(), 2, "a connection with unread data is not reused");
    }
}

#[tokio::test]
async fn abandoning_an_endless_http2_response_resets_only_its_stream() {
    let server = Server::start(Wire::Http2, |number, _| async move {
        Some(if number == 1 { endless(503) } else { reply(200, "fine") })
    })
    .await;
    let transport = TransportConfig::new().with_http2_prior_knowledge();
    let client = preset(&server.url()).client_with_transport(transport).unwrap();
    assert_eq!(text(within(client.get("/")).await.unwrap()).await, "fine");
    assert_eq!((server.connections(), server.seen().len()), (1, 2));
}

/// The server responds only after it has received all 64 requests, so that all calls are concurrent.
#[tokio::test]
async fn sixty_four_concurrent_calls_share_one_http2_connection() {
    let all = Arc::new(Barrier::new(64));
    let server = Server::start(Wire::Http2, move |_, seen| {
        let all = Arc::clone(&all);
        async move {
            all.wait().await;
            Some(reply(200, seen.body))
        }
    })
    .await;
    let transport = TransportConfig::new().with_http2_prior_knowledge();
    let client = preset(&server.url()).client_with_transport(transport).unwrap();
    let calls = (0..64).map(|number| {
        let client = client.clone();
        async move {
            let response = client.post("/v1").body(number.to_string()).await.unwrap();
            assert_eq!(response.version(), Version::HTTP_2);
            assert_eq!(text(response).await, number.to_string());
        }
    });
    within(join_all(calls)).await;
    assert_eq!((server.connections(), server.seen().len()), (1, 64));
    assert!(server.seen().iter().all(|seen| seen.version == Version::HTTP_2));
}

#[tokio::test]
async fn dropping_a_call_cancels_the_request_at_the_server_without_a_retry() {
    for wire in [Wire::Http1, Wire::Http2] {
        let (arrived, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (arriving, dropping) = (Arc::clone(&arrived), Arc::clone(&dropped));
        let transport = match wire {
            Wire::Http2 => TransportConfig::new().with_http2_prior_knowledge(),
            _ => TransportConfig::new(),
        };
        let server = Server::start(wire, move |number, _| {
            let (arriving, dropping) = (Arc::clone(&arriving), OnDrop(Arc::clone(&dropping)));
            async move {
                if number == 1 {
                    arriving.notify_one();
                    std::future::pending::<()>().await;
                }
                std::mem::forget(dropping);
                Some(reply(200, "next"))
            }
        })
        .await;
        let client = preset(&server.url()).client_with_transport(transport).unwrap();
        tokio::select! {
            result = within(client.get("/")) => panic!("the call ended before the server responded: {result:?}"),
            () = arrived.notified() => {}
        }
        within(dropped.notified()).await;
        assert_eq!(text(within(client.get("/")).await.unwrap()).await, "next");
        assert_eq!(server.seen().len(), 2, "the dropped call is not retried");
    }
}

struct OnDrop(Arc<Notify>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}
