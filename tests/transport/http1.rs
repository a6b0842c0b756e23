//! Tests HTTP/1.1 over the transport: connections, framing, interim responses, trailers and upgrades.

use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use hyper::{body::Frame, upgrade};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Barrier,
};
use tower_outbound::Body;

use super::*;

#[tokio::test]
async fn sixty_calls_wait_in_order_for_five_connections() {
    // The server responds when five requests have arrived.
    let together = Arc::new(Barrier::new(5));
    let server = Server::raw(Settings::default(), move |_, _| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            reply(200, "ok")
        }
    })
    .await;
    let client = client(&server.url(), TransportConfig::new().with_max_connections(5));
    let mut calls = Vec::new();
    for number in 0..60 {
        // Each call joins the queue before the next one starts.
        calls.push(tokio::spawn(text(client.post(format!("/{number}")))));
        tokio::task::yield_now().await;
    }
    assert!(within(join_all(calls)).await.into_iter().all(|body| body.unwrap() == "ok"));
    assert_eq!((server.connections(), server.most_in_progress()), (5, 5));
    let paths = server.paths();
    assert_eq!(paths.len(), 60);
    // Five requests at a time may overtake each other on their connections.
    for (place, path) in paths.iter().enumerate() {
        let number: usize = path[1..].parse().unwrap();
        assert!(number.abs_diff(place) < 5, "request {number} arrived as number {place}");
    }
}

/// The length of a body that does not arrive together with its headers.
const LONG_BODY: usize = 4 << 20;

async fn long_bodies() -> Server {
    Server::raw(Settings::default(), |_, _| async { reply(200, vec![b'x'; LONG_BODY]) }).await
}

#[tokio::test]
async fn calls_wait_for_the_only_connection_until_the_body_is_read() {
    let server = long_bodies().await;
    let client = client(&server.url(), TransportConfig::new().with_max_connections(1));
    let first = within(client.get("/first")).await.unwrap();
    let second = tokio::spawn(text(client.get("/second")));
    assert_eq!(within(first.bytes()).await.unwrap().len(), LONG_BODY);
    assert_eq!(within(second).await.unwrap().len(), LONG_BODY);
    // A dropped response closes its connection, so that another one can open.
    drop(within(client.get("/third")).await.unwrap());
    assert_eq!(within(text(client.get("/fourth"))).await.len(), LONG_BODY);
    assert_eq!(server.paths(), ["/first", "/second", "/third", "/fourth"]);
}

#[tokio::test]
async fn requests_whose_method_defines_a_body_state_a_length_of_zero() {
    for (settings, transport) in super::versions() {
        let server = Server::quick(settings).await;
        let client = client(&server.url(), transport);
        for (method, length) in [
            (Method::POST, Some("0")),
            (Method::PUT, Some("0")),
            (Method::PATCH, Some("0")),
            (Method::GET, None),
            (Method::DELETE, None),
            (Method::HEAD, None),
        ] {
            within(client.request(method.clone(), "/").send()).await.unwrap();
            let head = server.heads().pop().unwrap();
            let found = head.headers.get("content-length").map(|length| length.to_str().unwrap());
            assert_eq!((head.method, found), (method, length), "{:?}", head.version);
            assert!(!head.headers.contains_key("transfer-encoding"));
        }
        within(client.post("/").body("hello").send()).await.unwrap();
        assert_eq!(server.heads().pop().unwrap().headers["content-length"], "5");
    }
}

/// A server that sends the bytes of `replies`, each after the head of a request or a piece of its body. Returns its URL
/// and what it has received.
async fn scripted(replies: &'static [&'static str]) -> (String, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = String::new();
        for reply in replies {
            let mut buffer = [0; 4_096];
            let count = stream.read(&mut buffer).await.unwrap();
            received.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
        received
    });
    (url, serving)
}

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

const EARLY_HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n\
    HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

const REPLY: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn interim_responses_are_skipped() {
    for replies in [&[CONTINUE, REPLY][..], &[EARLY_HINTS]] {
        // The body is sent after the head, so that the server can respond between the two.
        let release = Arc::new(Semaphore::new(0));
        let released = Arc::clone(&release);
        let body = stream::once(async move {
            released.acquire().await.unwrap().forget();
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"hello")))
        });
        let (url, serving) = scripted(replies).await;
        let client = client(&url, TransportConfig::new());
        let request =
            client.post("/").header("expect", "100-continue").body(Body::new(StreamBody::new(body)));
        let call = tokio::spawn(request.send());
        tokio::time::sleep(millis(20)).await;
        release.add_permits(1);
        let response = within(call).await.unwrap().unwrap();
        assert_eq!((response.status().as_u16(), attempts(&response)), (200, 1));
        assert_eq!(within(response.bytes()).await.unwrap(), "ok");
        assert!(within(serving).await.unwrap().contains("expect: 100-continue\r\n"));
    }
}

#[tokio::test]
async fn early_response_is_returned_before_the_request_body_ends() {
    let server = Server::raw(Settings::default(), |_, _| async { reply(413, "too large") }).await;
    let client = client(&server.url(), TransportConfig::new());
    let first = stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"a part"))) });
    let endless = futures_util::StreamExt::chain(first, stream::pending());
    let response = within(client.post("/").body(Body::new(StreamBody::new(endless)))).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (413, 1));
    assert_eq!(within(response.bytes()).await.unwrap(), "too large");
    // The connection with the unfinished request is not reused.
    assert_eq!(within(client.get("/")).await.unwrap().status(), 413);
    assert_eq!(server.connections(), 2);
}

/// The client writes to the closed connection before it has read the response.
#[tokio::test]
async fn early_response_is_lost_if_the_client_sees_the_reset_of_the_connection_first() {
    // More than the buffers of the sockets hold.
    const BODY: usize = 8 * 1024 * 1024;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_zero_linger().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    });
    let (open, opened) = mpsc::unbounded_channel();
    let connector = service_fn(move |_: http::Uri| {
        let (reader, silent) = tokio::io::duplex(1);
        open.send(silent).unwrap();
        async move {
            let (_, writer) = TcpStream::connect(address).await?.into_split();
            Ok::<_, io::Error>(tokio::io::join(reader, writer))
        }
    });
    let transport = TransportConfig::new().build_with_connector(connector).unwrap();
    let stack = builder(&format!("http://{address}")).with_retry(RetryLayer::new().with_replay_limit(BODY));
    let client = stack.client_with_service(transport).unwrap();
    let error = within(client.post("/").body(vec![7; BODY])).await.unwrap_err();
    assert!([ErrorKind::Reset, ErrorKind::Closed].contains(&error.kind()), "{error:?}");
    let report = error.report().unwrap();
    assert_eq!((outcomes(report), opened.len()), (vec![Outcome::Failed], 1), "the request is sent once");
    assert_eq!(report.stop_reason(), Some(StopReason::NotIdempotent));
    within(serving).await.unwrap();
}

#[tokio::test]
async fn trailers_of_requests_and_responses_arrive() {
    for (settings, transport) in super::versions() {
        // The server returns the body of the request with its trailers.
        let server = Server::raw(settings, |_, request: Request<hyper::body::Incoming>| async move {
            let mut reply = reply(200, "");
            reply.headers_mut().insert("trailer", "checksum".parse().unwrap());
            *reply.body_mut() = request.into_body().map_err(std::io::Error::other).boxed_unsync();
            reply
        })
        .await;
        let trailers = HeaderMap::from_iter([("checksum".parse().unwrap(), "abc".parse().unwrap())]);
        let frames = [Frame::data(Bytes::from_static(b"hello")), Frame::trailers(trailers.clone())];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
        let client = client(&server.url(), transport);
        let request = client.post("/").header("te", "trailers").header("trailer", "checksum");
        let response = within(request.body(Body::new(body))).await.unwrap();
        let collected = within(BodyExt::collect(response.into_body())).await.unwrap();
        assert_eq!(collected.trailers(), Some(&trailers));
        assert_eq!(collected.to_bytes(), "hello");
    }
}

#[tokio::test]
async fn upgraded_connection_carries_bytes_in_both_directions() {
    let server = Server::raw(Settings::default(), |_, mut request| async move {
        let upgraded = upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgraded.await.unwrap());
            let mut buffer = [0; 5];
            stream.read_exact(&mut buffer).await.unwrap();
            stream.write_all(&buffer).await.unwrap();
        });
        let mut reply = reply(101, "");
        for (name, value) in [("connection", "upgrade"), ("upgrade", "echo")] {
            reply.headers_mut().insert(name, value.parse().unwrap());
        }
        reply
    })
    .await;
    let client = client(&server.url(), TransportConfig::new());
    let request = client.get("/").header("connection", "upgrade").header("upgrade", "echo");
    let response = within(request.send()).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (101, 1));
    let mut stream = TokioIo::new(within(upgrade::on(response.into_http())).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut buffer = [0; 5];
    within(stream.read_exact(&mut buffer)).await.unwrap();
    assert_eq!(&buffer, b"hello");
}

#[tokio::test]
async fn connection_with_an_unsent_end_of_a_request_carries_no_other_request() {
    call_before_the_end_of_a_request(false).await;
}

/// The clock stands still, so that the time for the end of a request does not pass.
#[tokio::test(start_paused = true)]
async fn connection_is_reused_after_the_end_of_a_request_was_sent() {
    let _clock = super::uploads::manual_clock();
    call_before_the_end_of_a_request(true).await;
}

/// Makes two calls. The server sends its first response as soon as the request begins. The request is larger than the
/// buffers of the sockets, but not than hyper's, so its end stays there. The server reads it after its response, or never.
async fn call_before_the_end_of_a_request(is_read: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connector = service_fn(move |_: http::Uri| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(4_096).unwrap();
        socket.connect(address)
    });
    let transport = TransportConfig::new().with_max_connections(if is_read { 1 } else { 2 });
    let transport = transport.build_with_connector(connector).unwrap();
    let client = builder(&format!("http://{address}")).client_with_service(transport).unwrap();

    let first = tokio::spawn(text(client.get("/first").header("x-long", "x".repeat(300_000))));
    let (mut stream, _) = within(listener.accept()).await.unwrap();
    within(stream.readable()).await.unwrap();
    stream.write_all(REPLY.as_bytes()).await.unwrap();
    assert_eq!(within(first).await.unwrap(), "ok");

    let second = tokio::spawn(text(client.get("/second")));
    let mut other = if is_read { stream } else { within(listener.accept()).await.unwrap().0 };
    let (mut received, mut buffer) = (Vec::new(), [0; 4_096]);
    while !received.ends_with(b"\r\n\r\n") || !received.windows(11).any(|part| part == b"GET /second") {
        let count = within(other.read(&mut buffer)).await.unwrap();
        assert!(count > 0, "the connection ended");
        received.extend_from_slice(&buffer[..count]);
    }
    other.write_all(REPLY.as_bytes()).await.unwrap();
    assert_eq!(within(second).await.unwrap(), "ok");
}
