//! Tests that requests leave connections that no longer work.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Barrier,
};
use tower_outbound::{
    Client, ErrorKind,
    call::{Outcome, StopReason},
    transport::TransportConfig,
};

use super::{
    OK, attempts, builder, client,
    forwarder::Forwarder,
    http2, millis, outcomes,
    server::{Server, Settings, reply},
    support::server::within,
    text,
};

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
    let server = Server::start(Settings::default(), move |number, _| {
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

/// Each request to `/slow` times out. Requests to `/fast` show meanwhile that the connection works.
#[tokio::test]
async fn slow_endpoint_opens_at_most_the_maximum_of_connections() {
    const MAXIMUM: usize = 3;
    let server = Server::start(Settings::http2(), |_, request| async move {
        if request.uri().path() == "/slow" {
            std::future::pending::<()>().await;
        }
        reply(200, "ok")
    })
    .await;
    let transport = http2().with_max_connections(MAXIMUM).build().unwrap();
    let slow = builder(&server.url()).with_attempt_timeout(millis(200));
    let slow = slow.client_with_service(transport.clone()).unwrap();
    let fast = builder(&server.url()).client_with_service(transport).unwrap();
    let failed = async {
        for _ in 0..2 {
            let error = slow.get("/slow").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AttemptTimeout, "{error:?}");
        }
    };
    let fast = async {
        loop {
            assert_eq!(text(fast.get("/fast")).await, "ok");
            tokio::time::sleep(millis(1)).await;
        }
    };
    tokio::select! {
        () = within(failed) => {}
        () = fast => {}
    }
    assert!(server.connections() <= MAXIMUM, "{} connections for 6 timeouts", server.connections());
}

/// A request that times out waits for a place among the maximum of connections.
#[tokio::test]
async fn timed_out_requests_open_at_most_the_maximum_of_connections_at_once() {
    const MAXIMUM: usize = 2;
    let server = Server::start(Settings::http2(), |_, _| std::future::pending()).await;
    let (address, open) = (server.address(), Arc::new(Open::default()));
    let counting = Arc::clone(&open);
    let connector = tower::service_fn(move |_: http::Uri| {
        let open = Arc::clone(&counting);
        async move { Ok::<_, io::Error>(CountedStream::new(TcpStream::connect(address).await?, open)) }
    });
    let transport = http2().with_max_connections(MAXIMUM).build_with_connector(connector).unwrap();
    let builder = builder(&server.url()).with_attempt_timeout(millis(150));
    let client = builder.client_with_service(transport).unwrap();
    let calls = within(join_all((0..4).map(|_| client.get("/").send()))).await;
    assert!(calls.into_iter().all(|call| call.unwrap_err().kind() == ErrorKind::AttemptTimeout));
    assert!(server.connections() > 1, "a timed-out request leaves its connection");
    let most = open.most.load(SeqCst);
    assert!(most <= MAXIMUM, "{most} connections were open at once");
}

#[derive(Default)]
struct Open {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A connection that is counted while it is open.
struct CountedStream {
    stream: TcpStream,
    open: Arc<Open>,
}

impl CountedStream {
    fn new(stream: TcpStream, open: Arc<Open>) -> Self {
        open.most.fetch_max(open.now.fetch_add(1, SeqCst) + 1, SeqCst);
        Self { stream, open }
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.open.now.fetch_sub(1, SeqCst);
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
