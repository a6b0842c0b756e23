//! Tests that a request which was not handed to a connection counts as "not sent", in each phase.

use std::vec;

use hyper_util::client::legacy::connect::{HttpConnector, dns::Name};
use tokio::{
    net::{TcpListener, TcpStream},
    time::advance,
};
use tracing::level_filters::LevelFilter;

use super::{
    support::{
        capture::{Capture, Line},
        certificate::{certificate, trusting, wire},
    },
    uploads::manual_clock,
    *,
};

/// The connect timeout of connections that never open.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(150);

/// Accepts connections, and sends nothing. Returns the address and the number of connections.
async fn silent_listener() -> (SocketAddr, Arc<AtomicUsize>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, accepted) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&accepted);
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
            count.fetch_add(1, SeqCst);
        }
    });
    (address, accepted, accepting)
}

/// Returns a client whose connector resolves names with `resolve`.
fn resolving<F, A>(url: &str, transport: TransportConfig, resolve: F) -> Client
where
    F: Fn(Name) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = io::Result<vec::IntoIter<SocketAddr>>> + Send + 'static,
{
    let mut connector = HttpConnector::new_with_resolver(service_fn(resolve));
    connector.enforce_http(false);
    let connector = connector.map_response(TokioIo::into_inner);
    builder(url).client_with_service(transport.build_with_connector(connector).unwrap()).unwrap()
}

/// The server accepts connections and stays silent, so that the TLS handshake does not end.
#[tokio::test]
async fn post_counts_as_not_sent_if_a_time_limit_ends_a_silent_tls_handshake() {
    // The connect timeout, the attempt timeout, the timeout of the request, the kind of the error, the attempts, and
    // the connections. An attempt may wait for a connection that an earlier attempt began to open.
    for (connect, attempt, request, kind, count, opened) in [
        (CONNECT_TIMEOUT, LONG, LONG, ErrorKind::ConnectTimeout, 3, 3..=3),
        (LONG, CONNECT_TIMEOUT, LONG, ErrorKind::ConnectTimeout, 3, 1..=3),
        (LONG, LONG, CONNECT_TIMEOUT, ErrorKind::Deadline, 1, 1..=1),
    ] {
        let (address, accepted, _accepting) = silent_listener().await;
        let builder = builder(&format!("https://{address}")).with_attempt_timeout(attempt);
        let transport = TransportConfig::new().with_connect_timeout(connect);
        let client = builder.client_with_transport(transport).unwrap();
        let error = within(client.post("/").body("{}").timeout(request)).await.unwrap_err();
        assert_not_sent(&error, kind, count);
        assert!(error.is_timeout(), "{error:?}");
        for attempt in error.report().unwrap().attempts() {
            assert!(attempt.connection_wait > CONNECT_TIMEOUT / 2, "{attempt:?}");
            // A timeout of the connection shows the phases that ended.
            let times = attempt.connect.map(|times| (times.resolve, times.connect.is_some(), times.tls));
            assert_eq!(times, (connect == CONNECT_TIMEOUT).then_some((None, true, None)), "{attempt:?}");
        }
        // The listener may accept the last connection later.
        within(async {
            while accepted.load(SeqCst) < *opened.start() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(opened.contains(&accepted.load(SeqCst)), "{accepted:?}");
    }
}

#[tokio::test]
async fn retries_post_after_stalled_resolver() {
    let lookups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lookups);
    let transport = TransportConfig::new().with_connect_timeout(CONNECT_TIMEOUT);
    let client = resolving("https://api.test", transport, move |_| {
        count.fetch_add(1, SeqCst);
        std::future::pending()
    });
    let error = within(client.post("/").body("{}")).await.unwrap_err();
    assert_not_sent(&error, ErrorKind::ConnectTimeout, 3);
    assert_eq!(lookups.load(SeqCst), 3);
}

/// Returns a server that sends its second response only after the notification.
async fn holding_the_second_response(settings: Settings) -> (Server, Arc<Notify>) {
    let release = Arc::new(Notify::new());
    let released = Arc::clone(&release);
    let server = Server::raw(settings, move |number, _| {
        let released = Arc::clone(&released);
        async move {
            if number == 2 {
                released.notified().await;
            }
            reply(200, "ok")
        }
    })
    .await;
    (server, release)
}

/// The server allows one stream, and another call uses it.
#[tokio::test]
async fn post_that_waits_for_a_stream_until_its_deadline_counts_as_not_sent() {
    let (server, release) = holding_the_second_response(Settings::streams(1)).await;
    let client = client(&server.url(), http2().with_max_connections(1));
    assert_eq!(within(text(client.get("/first"))).await, "ok");
    let held = tokio::spawn(client.post("/held").send());
    within(server.received(2)).await;
    let error = within(client.post("/").body("{}").timeout(millis(200))).await.unwrap_err();
    assert_not_sent(&error, ErrorKind::Deadline, 1);
    let attempt = error.report().unwrap().attempts().remove(0);
    assert_eq!(attempt.sent, None);
    assert!(attempt.connection_wait > millis(100), "{attempt:?}");
    release.notify_one();
    assert_eq!(within(held).await.unwrap().unwrap().status(), 200);
    assert_eq!(within(text(client.get("/last"))).await, "ok", "the stream is free again");
    assert_eq!(server.paths(), ["/first", "/held", "/last"]);
}

#[tokio::test]
async fn does_not_retry_an_unknown_host_name() {
    for (text, count) in [
        ("failed to lookup address information: Name or service not known", 1),
        ("failed to lookup address information: Temporary failure in name resolution", 3),
    ] {
        let failing = move |_| async move { Err(io::Error::other(text)) };
        let client = resolving("https://api.test", TransportConfig::new(), failing);
        let error = within(client.post("/").body("{}")).await.unwrap_err();
        assert_not_sent(&error, ErrorKind::Dns, count);
    }
}

#[tokio::test]
async fn report_contains_the_times_of_a_new_connection_only() {
    let certificate = certificate();
    for protocols in [&["h2"][..], &["http/1.1"]] {
        let server = Server::quick(wire(&certificate, protocols)).await;
        let transport = trusting(&certificate).with_max_connections(1);
        let client = client(&server.url_of("localhost"), transport);
        let first = within(client.get("/")).await.unwrap();
        let attempt = first.report().unwrap().attempts().remove(0);
        let times = attempt.connect.expect("the first call opens a connection");
        let tls = times.tls.expect("the connection uses TLS");
        let resolve = times.resolve.expect("the host is a name");
        assert!(tls > Duration::ZERO && resolve > Duration::ZERO, "{times:?}");
        assert!(attempt.connection_wait >= resolve + times.connect.unwrap() + tls, "{attempt:?}");
        let sent = attempt.sent.expect("the request was sent");
        assert!(sent >= attempt.connection_wait && Some(sent) <= attempt.ended, "{attempt:?}");
        assert_eq!(within(first.bytes()).await.unwrap(), "ok");

        let second = within(client.get("/")).await.unwrap();
        let attempt = second.report().unwrap().attempts().remove(0);
        assert_eq!(attempt.connect, None, "{attempt:?}");
        assert!(attempt.sent.is_some() && attempt.sent <= attempt.ended, "{attempt:?}");
        assert_eq!(server.connections(), 1);
    }
}

/// The connect phase and the time for the response have a timeout of their own each.
#[tokio::test]
async fn attempt_timeout_begins_when_the_request_is_sent() {
    let server = Server::raw(Settings::default(), |_, _| async {
        tokio::time::sleep(millis(600)).await;
        reply(200, "ok")
    })
    .await;
    let address = server.address();
    let connector = service_fn(move |_: http::Uri| async move {
        tokio::time::sleep(millis(600)).await;
        TcpStream::connect(address).await
    });
    let transport = TransportConfig::new().build_with_connector(connector).unwrap();
    let builder = builder(&server.url()).with_attempt_timeout(millis(1_000));
    let client = builder.client_with_service(transport).unwrap();
    let response = within(client.post("/").body("{}")).await.unwrap();
    assert_eq!((attempts(&response), outcomes(response.report().unwrap())), (1, vec![OK]));
}

/// Each request continues in a task of its own after its call has dropped it, as below a layer that moves I/O to another
/// runtime. No connection opens before the call of the service with the number `opens`.
async fn call_in_tasks(
    attempt: Duration,
    deadline: Duration,
    opens: usize,
) -> (Result<Report, Error>, Vec<Option<Error>>, Server) {
    let server = Server::with_statuses(server::Wire::Http1, [200]).await;
    let (address, gate) = (server.address(), Arc::new(Semaphore::new(0)));
    let opened = Arc::clone(&gate);
    let connector = service_fn(move |_: http::Uri| {
        let opened = Arc::clone(&opened);
        async move {
            opened.acquire().await.unwrap().forget();
            TcpStream::connect(address).await
        }
    });
    let transport: Transport = TransportConfig::new().build_with_connector(connector).unwrap();
    let (ended, mut ends) = mpsc::unbounded_channel();
    let (calls, opened) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&gate));
    let service = service_fn(move |request: Request<ReplayBody<Body>>| {
        let (transport, ended) = (transport.clone(), ended.clone());
        if calls.fetch_add(1, SeqCst) + 1 == opens {
            opened.add_permits(9);
        }
        async move {
            let (answer, answered) = oneshot::channel();
            tokio::spawn(async move {
                let error = match transport.oneshot(request).await {
                    Ok(response) => {
                        answer.send(response).err().map(|_| panic!("nobody waits for a response"))
                    }
                    Err(error) => Some(error),
                };
                ended.send(error).unwrap();
            });
            answered.await
        }
    });
    let client = builder(&server.url()).with_attempt_timeout(attempt).client_with_service(service).unwrap();
    let result = within(client.post("/").timeout(deadline)).await;
    let result = result.map(|response| response.report().cloned().unwrap());
    gate.add_permits(9);
    drop(client);
    let mut ended = Vec::new();
    while let Some(error) = within(ends.recv()).await {
        ended.push(error);
    }
    (result, ended, server)
}

#[tokio::test]
async fn post_that_counts_as_not_sent_is_not_sent_later_by_another_task() {
    for (attempt, deadline, kind, count) in [
        (CONNECT_TIMEOUT, LONG, ErrorKind::ConnectTimeout, 3),
        (LONG, CONNECT_TIMEOUT, ErrorKind::Deadline, 1),
    ] {
        let (result, ended, server) = call_in_tasks(attempt, deadline, usize::MAX).await;
        assert_not_sent(&result.unwrap_err(), kind, count);
        assert_eq!(ended.len(), count);
        assert!(ended.iter().flatten().all(|error| !error.may_have_been_processed()), "{ended:?}");
        assert_eq!((ended.iter().flatten().count(), server.requests()), (count, 0), "{ended:?}");
    }
}

#[tokio::test]
async fn retry_of_a_post_that_was_not_sent_is_the_only_request_although_the_first_attempt_has_a_task() {
    let (result, ended, server) = call_in_tasks(CONNECT_TIMEOUT, LONG, 2).await;
    assert_eq!(result.unwrap().attempt_count(), 2);
    assert_eq!((ended.iter().flatten().count(), ended.len(), server.requests()), (1, 2, 1), "{ended:?}");
}

/// Returns the fields of an event that show the times of an attempt.
pub(crate) fn times(event: &Line) -> Vec<(&str, &str)> {
    let names = ["key_ms", "resolve_ms", "connect_ms", "tls_ms", "connection_wait_ms", "response_ms"];
    names.into_iter().filter_map(|name| Some((name, event.fields.get(name)?.as_str()))).collect()
}

/// The third call waits 8 s for a connection. It is the connection of the second call, whose response takes 8 s.
#[tokio::test(start_paused = true)]
async fn event_at_info_shows_whether_a_slow_call_waited_for_its_connection_or_its_response() {
    let (_clock, (capture, _guard)) = (manual_clock(), Capture::at(LevelFilter::INFO));
    let (server, release) = holding_the_second_response(Settings::default()).await;
    let address = server.address();
    let connector = service_fn(move |_: http::Uri| async move {
        tokio::time::sleep(millis(200)).await;
        TcpStream::connect(address).await
    });
    let transport = TransportConfig::new().with_max_connections(1).build_with_connector(connector).unwrap();
    let client = builder(&server.url()).client_with_service(transport).unwrap();
    let calls = ["/connects", "/responds", "/waits"].map(|path| text(client.get(path)));
    let [connects, responds, waits] = calls.map(tokio::spawn);
    settle().await;
    advance(millis(200)).await;
    within(connects).await.unwrap();
    within(server.received(2)).await;
    advance(millis(8_000)).await;
    release.notify_one();
    within(responds).await.unwrap();
    within(waits).await.unwrap();
    within(text(client.get("/fast"))).await;
    let events = capture.of("tower_outbound::call");
    let shown: Vec<_> =
        events.iter().map(|event| (event.fields["url.path"].as_str(), times(event))).collect();
    let connected = [("connect_ms", "200.0"), ("connection_wait_ms", "200.0"), ("response_ms", "0.0")];
    let waited = [("connection_wait_ms", "8200.0"), ("response_ms", "0.0")];
    assert_eq!(
        shown,
        [
            ("/connects", connected.to_vec()),
            ("/responds", vec![("connection_wait_ms", "200.0"), ("response_ms", "8000.0")]),
            ("/waits", waited.to_vec()),
            ("/fast", vec![]),
        ]
    );
}
