//! Tests that requests use another connection if a connection fails.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::StreamExt;
use http::Method;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::{TcpStream, tcp::OwnedReadHalf},
    sync::Barrier,
};

use super::*;

/// Long enough for a response of a busy machine.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1_000);

fn timed(url: &str, transport: TransportConfig) -> Client {
    builder(url).with_attempt_timeout(ATTEMPT_TIMEOUT).client_with_transport(transport).unwrap()
}

/// Four calls one after the other. Each succeeds with at most two attempts.
async fn assert_four_gets_succeed(client: &Client) {
    for call in 0..4 {
        let response = within(client.get("/")).await.unwrap();
        assert!(attempts(&response) <= 2, "call {call}: {}", response.report().unwrap());
        assert_eq!(within(response.bytes()).await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn gets_leave_a_silent_http2_connection_after_one_attempt_timeout() {
    let server = Server::quick(Settings::http2()).await;
    let path = Forwarder::start(server.address()).await;
    let client = timed(&path.url(), http2());
    assert_eq!(within(text(client.get("/"))).await, "ok");
    path.silence();
    assert_four_gets_succeed(&client).await;
    assert!(path.opened() >= 2, "a new connection opens");
    assert!(server.requests() >= 5);
}

#[tokio::test]
async fn gets_leave_six_silent_http1_connections_after_one_attempt_timeout() {
    let together = Arc::new(Barrier::new(6));
    let server = Server::raw(Settings::default(), move |number, _| {
        let together = Arc::clone(&together);
        async move {
            if number <= 6 {
                together.wait().await;
            }
            reply(200, "ok")
        }
    })
    .await;
    let path = Forwarder::start(server.address()).await;
    let transport = TransportConfig::new().build().unwrap();
    let first = builder(&path.url()).client_with_service(transport.clone()).unwrap();
    let calls = within(join_all((0..6).map(|_| text(first.get("/"))))).await;
    assert_eq!((calls.len(), path.opened()), (6, 6));
    path.silence();
    let builder = builder(&path.url()).with_attempt_timeout(ATTEMPT_TIMEOUT);
    assert_four_gets_succeed(&builder.client_with_service(transport).unwrap()).await;
    assert!(path.opened() >= 7, "a new connection opens");
}

/// The server processes one POST, and its response is lost. The other POST does not arrive.
#[tokio::test]
async fn post_on_a_dead_connection_is_sent_once() {
    let cases = super::versions().into_iter().flat_map(|version| [(version.clone(), true), (version, false)]);
    let cases = cases.map(|((settings, transport), arrives)| async move {
        let server = Server::quick(settings).await;
        let path = Forwarder::start(server.address()).await;
        let client = client(&path.url(), transport);
        assert_eq!(text(client.get("/")).await, "ok");
        if arrives {
            path.hold();
        } else {
            path.silence();
        }
        let error = client.post("/").body("{}").attempt_timeout(ATTEMPT_TIMEOUT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AttemptTimeout, "{error:?}");
        let report = error.report().unwrap();
        assert_eq!(outcomes(report), [Outcome::Timeout]);
        assert_eq!(report.stop_reason(), Some(StopReason::NotIdempotent));
        path.release();
        assert_eq!(text(client.get("/")).await, "ok");
        let methods: Vec<_> = server.heads().into_iter().map(|head| head.method).collect();
        let expected =
            if arrives { &[Method::GET, Method::POST, Method::GET][..] } else { &[Method::GET, Method::GET] };
        assert_eq!((&methods[..], path.opened()), (expected, 2), "{arrives}");
    });
    within(join_all(cases)).await;
}

/// The attempt timeout is long, so only a ping shows that the connection is dead.
#[tokio::test]
async fn ping_closes_a_silent_http2_connection_while_a_request_waits() {
    let server = Server::quick(Settings::http2()).await;
    let path = Forwarder::start(server.address()).await;
    let client = client(&path.url(), http2().with_http2_pings(millis(50), millis(300)));
    assert_eq!(within(text(client.get("/"))).await, "ok");
    path.silence();
    let response = within(client.get("/")).await.unwrap();
    assert_eq!(outcomes(response.report().unwrap()), [Outcome::Failed, OK]);
    assert_eq!(path.opened(), 2);

    path.silence();
    let error = within(client.post("/").body("{}")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error:?}");
    let report = error.report().unwrap();
    assert_eq!(outcomes(report), [Outcome::Failed], "the server may have processed the request");
    assert_eq!(report.stop_reason(), Some(StopReason::NotIdempotent));
}

#[tokio::test]
async fn ping_closes_a_silent_http2_connection_while_it_is_idle() {
    let server = Server::quick(Settings::http2()).await;
    let path = Forwarder::start(server.address()).await;
    let transport = http2().with_http2_pings(millis(50), millis(300)).with_http2_pings_while_idle();
    let client = client(&path.url(), transport);
    assert_eq!(within(text(client.get("/"))).await, "ok");
    path.silence();
    within(path.closed(1)).await;
    let response = within(client.post("/").body("{}")).await.unwrap();
    assert_eq!((attempts(&response), path.opened()), (1, 2));
}

/// Starts a server whose responses to `/stalls` have a body that stalls after its first chunk.
async fn stalling_server(settings: Settings) -> Server {
    Server::raw(settings, |_, request| async move {
        if request.uri().path() == "/stalls" { server::stalled(200) } else { reply(200, "ok") }
    })
    .await
}

async fn assert_stalls(response: Response) {
    let error = response.into_body().bytes_up_to(1024).await.unwrap_err();
    let error: &Error = error.downcast_ref().unwrap();
    assert_eq!(error.kind(), ErrorKind::BodyTimeout, "{error:?}");
}

/// Over HTTP/1.1, the second connection is idle when the body stalls.
#[tokio::test]
async fn requests_leave_the_silent_connections_after_a_body_stalled() {
    for ((settings, transport), connections) in super::versions().into_iter().zip([2, 1]) {
        let server = stalling_server(settings).await;
        let path = Forwarder::start(server.address()).await;
        let builder = builder(&path.url()).with_attempt_timeout(ATTEMPT_TIMEOUT);
        let client = builder.with_body_idle_timeout(millis(300)).client_with_transport(transport).unwrap();
        let response = within(client.get("/stalls")).await.unwrap();
        assert_eq!(within(text(client.get("/"))).await, "ok");
        assert_eq!(path.opened(), connections);
        path.silence();
        within(assert_stalls(response)).await;
        let response = within(client.post("/").body("{}")).await.unwrap();
        assert_eq!((attempts(&response), path.opened()), (1, connections + 1));
    }
}

#[tokio::test]
async fn http2_connection_with_a_stalled_body_stays_in_use_if_it_delivers_other_responses() {
    let server = stalling_server(Settings::http2()).await;
    // A response must arrive in the second half of this time, also on a busy machine.
    let builder = builder(&server.url()).with_body_idle_timeout(millis(2_000));
    let client = builder.client_with_transport(http2()).unwrap();
    let response = within(client.get("/stalls")).await.unwrap();
    let others = async {
        loop {
            assert_eq!(text(client.get("/")).await, "ok");
            tokio::time::sleep(millis(1)).await;
        }
    };
    tokio::select! {
        () = within(assert_stalls(response)) => {}
        () = others => {}
    }
    assert_eq!(within(text(client.get("/"))).await, "ok");
    assert_eq!(server.connections(), 1);
}

/// The connections that a client opens, or has open.
#[derive(Default)]
struct Opened {
    all: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Opened {
    fn open(self: &Arc<Self>) -> Place {
        self.all.fetch_add(1, SeqCst);
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        Place(Arc::clone(self))
    }
}

struct Place(Arc<Opened>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, SeqCst);
    }
}

/// The reading half of a connection, with its place.
struct Reader(OwnedReadHalf, #[expect(dead_code, reason = "dropped with the connection")] Place);

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

/// The timeouts of the requests differ, so that an HTTP/2 connection that takes no further requests still carries some.
#[tokio::test]
async fn slow_endpoint_has_at_most_the_maximum_of_open_connections() {
    const MAXIMUM: usize = 3;
    for (settings, transport) in super::versions() {
        let server = Server::raw(settings, |_, _| std::future::pending()).await;
        let (opened, address) = (Arc::<Opened>::default(), server.address());
        let counted = Arc::clone(&opened);
        let connector = service_fn(move |_: http::Uri| {
            let place = counted.open();
            async move {
                let (reader, writer) = TcpStream::connect(address).await?.into_split();
                Ok::<_, io::Error>(tokio::io::join(Reader(reader, place), writer))
            }
        });
        let transport = transport.with_max_connections(MAXIMUM).build_with_connector(connector).unwrap();
        let client = builder(&server.url()).client_with_service(transport).unwrap();
        let calls = (0..20).map(|call| client.get("/").attempt_timeout(millis(10 + 4 * call)).send());
        for result in within(join_all(calls)).await {
            let error = result.unwrap_err();
            assert!(error.is_timeout(), "{error:?}");
        }
        let [all, most] = [&opened.all, &opened.most].map(|count| count.load(SeqCst));
        assert!(all >= MAXIMUM && most <= MAXIMUM, "{most} connections at once, {all} in total");
    }
}

/// The server sends a part of the first response during each attempt that times out.
#[tokio::test]
async fn http2_connection_stays_in_use_after_a_timeout_if_it_delivers_parts_of_a_response() {
    let server = Server::raw(Settings::http2(), |_, request| async move {
        match request.uri().path() {
            "/events" => {
                let events = stream::repeat(()).then(|()| async {
                    tokio::time::sleep(millis(1)).await;
                    Ok(Frame::data(Bytes::from_static(b"event")))
                });
                http::Response::new(StreamBody::new(events).boxed_unsync())
            }
            "/slow" => std::future::pending().await,
            _ => reply(200, "ok"),
        }
    })
    .await;
    let client = client(&server.url(), http2().with_max_connections(1));
    let mut events = within(client.get("/events")).await.unwrap().into_body();
    let reading = tokio::spawn(async move { while let Some(Ok(_)) = events.frame().await {} });
    let slow = client.post("/slow").attempt_timeout(millis(1_000));
    assert_eq!(within(slow).await.unwrap_err().kind(), ErrorKind::AttemptTimeout);
    assert_eq!(within(text(client.get("/fast"))).await, "ok");
    assert!(!reading.is_finished());
    assert_eq!(server.connections(), 1);
}
