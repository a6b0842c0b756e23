//! Tests that requests wait for HTTP/2 streams, and that dropped calls return their connection or stream.

use std::collections::BTreeSet;

use futures_util::FutureExt;
use http::Version;
use http_body::Frame;
use http_body_util::BodyExt;
use tower_outbound::Body;

use super::{
    support::certificate::{certificate, trusting, wire},
    *,
};

/// A server that allows `streams` streams and needs some time for each request.
async fn slow_server(streams: u32, work: Duration) -> Server {
    Server::raw(Settings::streams(streams), move |_, _| async move {
        tokio::time::sleep(work).await;
        reply(200, "ok")
    })
    .await
}

/// A server with one stream. Each request waits until `permits` has a permit.
async fn gated_server(permits: &Arc<Semaphore>) -> Server {
    let permits = Arc::clone(permits);
    Server::raw(Settings::streams(1), move |_, _| {
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

/// The second connection cannot be opened, and the stream of the first one stays in use.
#[tokio::test]
async fn waiting_request_is_sent_over_a_later_connection_if_one_could_not_be_opened() {
    let permits = Arc::new(Semaphore::new(0));
    let server = gated_server(&permits).await;
    let (address, opened) = (server.address(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&opened);
    let connector = service_fn(move |_: http::Uri| {
        let fails = counted.fetch_add(1, SeqCst) == 1;
        async move {
            if fails {
                return Err(io::Error::other("no further connection"));
            }
            tokio::net::TcpStream::connect(address).await
        }
    });
    let transport = http2().build_with_connector(connector).unwrap();
    let client = builder(&server.url()).client_with_service(transport).unwrap();
    let held = tokio::spawn(client.get("/held").send());
    within(server.received(1)).await;
    let waiting = tokio::spawn(client.get("/waiting").send());
    within(server.received(2)).await;
    assert_eq!(opened.load(SeqCst), 3);
    permits.add_permits(2);
    for call in [held, waiting] {
        assert_succeeded_at_once(within(call).await.unwrap());
    }
}

#[tokio::test]
async fn sixteen_first_calls_over_tls_share_one_handshake() {
    let certificate = certificate();
    let server = Server::quick(wire(&certificate, &["h2", "http/1.1"])).await;
    let client = client(&server.url(), trusting(&certificate));
    let calls = within(join_all((0..16).map(|_| client.post("/").body("{}").send()))).await;
    for call in calls {
        let response = call.unwrap();
        assert_eq!((response.version(), attempts(&response)), (Version::HTTP_2, 1));
    }
    assert_eq!((server.connections(), server.requests()), (1, 16));
}

#[tokio::test]
async fn first_calls_over_tls_open_several_connections_if_the_server_has_only_http1() {
    let certificate = certificate();
    let all = Arc::new(Barrier::new(4));
    // The server responds to no request before it has received all four.
    let server = Server::raw(wire(&certificate, &["http/1.1"]), move |_, _| {
        let all = Arc::clone(&all);
        async move {
            all.wait().await;
            reply(200, "ok")
        }
    })
    .await;
    let client = client(&server.url(), trusting(&certificate));
    let calls = within(join_all((0..4).map(|_| text(client.post("/").body("{}"))))).await;
    assert_eq!(calls, ["ok"; 4]);
    assert_eq!((server.connections(), server.requests()), (4, 4));
}

/// Each connection ends gracefully after 20 requests, while others are in progress.
#[tokio::test]
async fn no_post_hangs_or_is_processed_twice_while_connections_are_drained() {
    const TASKS: usize = 8;
    const CALLS: usize = 50;
    let settings = Settings { last_request: Some(20), ..Settings::http2() };
    let server = Server::raw(settings, |_, _| async {
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

#[tokio::test]
async fn dropped_response_with_an_unread_long_body_frees_its_stream() {
    let server = Server::raw(Settings::streams(1), |_, _| async { reply(200, vec![b'x'; 1 << 20]) }).await;
    let client = client(&server.url(), http2().with_max_connections(1));
    for _ in 0..5 {
        let body = within(client.get("/")).await.unwrap().into_body();
        assert_eq!(
            http_body::Body::size_hint(&body).exact(),
            Some(1 << 20),
            "with the part that was read ahead"
        );
    }
    assert_eq!(within(text(client.get("/"))).await.len(), 1 << 20);
    assert_eq!(server.connections(), 1);
}

/// The server never reads the long body, so that flow control blocks it, and would block the bodies of other requests.
#[tokio::test]
async fn requests_use_another_connection_after_a_response_was_dropped_during_the_upload() {
    let server = Server::raw(Settings::streams(100), |_, request| async move {
        if request.uri().path() == "/last" {
            return reply(200, "ok");
        }
        tokio::spawn(async move {
            let _unread = request;
            std::future::pending::<()>().await;
        });
        server::stalled(200)
    })
    .await;
    let waiting = Body::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, io::Error>>()));
    for (body, most) in [(waiting, 1), (vec![7; 4 << 20].into(), 2)] {
        let (client, before) =
            (client(&server.url(), http2().with_max_connections(most)), server.connections());
        drop(within(client.post("/duplex").body(body)).await.unwrap());
        assert_eq!(within(text(client.post("/last").body("hello"))).await, "ok");
        assert_eq!(server.connections() - before, 2);
    }
}

/// The frames of the dropped responses are on their way when the client resets the streams.
#[tokio::test]
async fn late_frames_of_dropped_responses_do_not_close_their_connection() {
    const RESPONSES: u32 = 1_200;
    let permits = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&permits);
    let server = Server::raw(Settings::streams(RESPONSES), move |_, request| {
        let gate = Arc::clone(&gate);
        async move {
            if request.uri().path() == "/last" {
                return reply(200, "ok");
            }
            let frame = stream::once(async move {
                gate.acquire().await.unwrap().forget();
                Ok(Frame::data(Bytes::from_static(b"late")))
            });
            http::Response::new(StreamBody::new(frame).boxed_unsync())
        }
    })
    .await;
    let path = Forwarder::start(server.address()).await;
    let client = client(&path.url(), http2());
    let responses = within(join_all((0..RESPONSES).map(|_| client.get("/dropped").send()))).await;
    path.hold();
    permits.add_permits(RESPONSES as usize);
    settle().await;
    assert_eq!(permits.available_permits(), 0, "the server has sent the bodies");
    drop(responses);
    settle().await;
    path.release();
    assert_eq!(within(text(client.get("/last"))).await, "ok");
    assert_eq!(path.opened(), 1);
}

/// Returns the permits of a server, the server, and a client whose only connection is open.
async fn gated_connection() -> (Arc<Semaphore>, Server, Client) {
    let permits = Arc::new(Semaphore::new(1));
    let server = gated_server(&permits).await;
    let client = client(&server.url(), http2().with_max_connections(1));
    assert_eq!(within(text(client.get("/first"))).await, "ok");
    (permits, server, client)
}

/// The pool grants the stream to a call which is not polled again before it is dropped.
#[tokio::test]
async fn dropped_call_that_was_just_granted_a_stream_returns_it() {
    let (permits, server, client) = gated_connection().await;
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

#[tokio::test]
async fn dropped_waiting_calls_free_their_places() {
    let (permits, server, client) = gated_connection().await;
    let held = tokio::spawn(text(client.get("/held")));
    within(server.received(2)).await;
    let mut waiting: Vec<_> = (0..8).map(|_| Box::pin(client.get("/dropped").send())).collect();
    assert!(waiting.iter_mut().all(|call| call.now_or_never().is_none()));
    drop(waiting);
    permits.add_permits(100);
    assert_eq!(within(held).await.unwrap(), "ok");
    within(join_all((0..4).map(|_| text(client.get("/after"))))).await;
    assert_eq!(server.paths(), ["/first", "/held", "/after", "/after", "/after", "/after"]);
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
        let server = Server::raw(settings, |_, _| async {
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
