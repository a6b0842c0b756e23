//! Tests that dropped calls give their connection or HTTP/2 stream back.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::{FutureExt, future::join_all};
use tokio::sync::Semaphore;
use tower_outbound::transport::TransportConfig;

use super::{
    attempts, client, http2,
    server::{Server, Settings, reply},
    streams::gated_server,
    support::server::{settle, within},
    text,
};

#[tokio::test]
async fn dropped_response_with_an_unread_long_body_frees_its_stream() {
    let server = Server::start(Settings::streams(1), |_, _| async { reply(200, vec![b'x'; 1 << 20]) }).await;
    let client = client(&server.url(), http2().with_max_connections(1));
    for _ in 0..5 {
        drop(within(client.get("/")).await.unwrap());
    }
    assert_eq!(within(text(client.get("/"))).await.len(), 1 << 20);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn dropped_waiting_calls_free_their_places() {
    let permits = Arc::new(Semaphore::new(1));
    let server = gated_server(&permits).await;
    let client = client(&server.url(), http2().with_max_connections(1));
    assert_eq!(within(text(client.get("/first"))).await, "ok");
    let held = tokio::spawn(text(client.get("/held")));
    within(server.received(2)).await;
    let waiting: Vec<_> = (0..8).map(|_| tokio::spawn(client.get("/dropped").send())).collect();
    settle().await;
    for call in waiting {
        call.abort();
        assert!(within(call).await.unwrap_err().is_cancelled());
    }
    permits.add_permits(100);
    assert_eq!(within(held).await.unwrap(), "ok");
    within(join_all((0..4).map(|_| text(client.get("/after"))))).await;
    assert_eq!(server.paths(), ["/first", "/held", "/after", "/after", "/after", "/after"]);
    assert_eq!(server.connections(), 1);
}

/// The pool grants the stream to a call which is not polled again before it is dropped.
#[tokio::test]
async fn dropped_call_that_was_just_granted_a_stream_gives_it_back() {
    let permits = Arc::new(Semaphore::new(1));
    let server = gated_server(&permits).await;
    let client = client(&server.url(), http2().with_max_connections(1));
    assert_eq!(within(text(client.get("/first"))).await, "ok");
    for _ in 0..3 {
        let held = tokio::spawn(text(client.get("/held")));
        within(server.received(server.requests() + 1)).await;
        let mut granted = Box::pin(client.get("/dropped").send());
        assert!((&mut granted).now_or_never().is_none(), "the call waits for the stream");
        permits.add_permits(1);
        assert_eq!(within(held).await.unwrap(), "ok");
        settle().await;
        drop(granted);
    }
    permits.add_permits(1);
    assert_eq!(within(text(client.get("/last"))).await, "ok");
    assert_eq!(server.paths(), ["/first", "/held", "/held", "/held", "/last"]);
    assert_eq!(server.connections(), 1);
}

/// Some calls are dropped while they wait, when they are granted a connection, or while they are in progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_of_several_threads_leak_no_stream_and_no_connection() {
    const TASKS: usize = 32;
    const CALLS: usize = 12;
    for (settings, transport, capacity) in
        [(Settings::streams(3), http2(), 6), (Settings::default(), TransportConfig::new(), 2)]
    {
        let server = Server::start(settings, |_, _| async {
            tokio::task::yield_now().await;
            reply(200, "ok")
        })
        .await;
        let client = client(&server.url(), transport.with_max_connections(2));
        let tasks = (0..TASKS).map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for call in 0..CALLS {
                    let request = client.post(format!("/kept/{task}/{call}"));
                    if (task + call) % 3 > 0 {
                        let response = request.await.unwrap();
                        assert_eq!(attempts(&response), 1);
                        assert_eq!(response.bytes().await.unwrap(), "ok");
                        continue;
                    }
                    let dropped = tokio::spawn(client.post("/dropped").send());
                    for _ in 0..task {
                        tokio::task::yield_now().await;
                    }
                    dropped.abort();
                }
            })
        });
        for task in within(join_all(tasks)).await {
            task.unwrap();
        }
        let kept: Vec<_> = server.paths().into_iter().filter(|path| path.starts_with("/kept")).collect();
        assert_eq!(kept.len(), TASKS * CALLS * 2 / 3);
        assert_eq!(kept.iter().collect::<BTreeSet<_>>().len(), kept.len(), "no call is sent twice");
        let calls = within(join_all((0..capacity).map(|_| text(client.get("/"))))).await;
        assert_eq!(calls.len(), capacity, "every stream is free again");
    }
}
