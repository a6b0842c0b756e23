//! Servers for tests. Each server fails in one particular way.

use std::{future::Future, io::Write, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Starts a server that runs `serve` for each connection. The server has its own thread, so the test's log subscriber
/// does not receive the server's events.
pub(crate) fn serve<F, W>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
    });
    address
}

/// Reads from the stream until the end of the request headers or of the HTTP/2 preface.
pub(crate) async fn read_head(stream: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
}

/// The reasons of failed name resolutions, and whether each means that the name does not exist.
pub(crate) const DNS_FAILURES: [(&str, bool); 2] =
    [("Name or service not known", true), ("Temporary failure in name resolution", false)];

/// Returns the error of the system's resolver with this reason.
pub(crate) fn unresolved(reason: &str) -> std::io::Error {
    std::io::Error::other(format!("failed to lookup address information: {reason}"))
}

/// The scheme of a proxy that does not connect to the server, what it sends, and whether it rejects the credentials.
pub(crate) const PROXIES: [(&str, &[u8], bool); 9] = [
    ("http", b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", true),
    ("http", b"HTTP/1.1 503 Service Unavailable\r\n\r\n", false),
    ("http", b"SSH-2.0-OpenSSH_9.2\r\n", false),
    ("http", b"", false),
    // The proxy accepts a password, but not this one.
    ("socks5h", &[5, 2, 1, 1], true),
    // The proxy accepts no password.
    ("socks5h", &[5, 255], true),
    // The proxy accepts the password, and the server refuses the connection.
    ("socks5h", &[5, 2, 1, 0, 5, 5, 0, 1, 0, 0, 0, 0, 0, 0], false),
    ("socks5h", b"HTTP/1.1 400 Bad Request\r\n\r\n", false),
    ("socks5h", b"", false),
];

/// Sends `bytes`, and closes the connection when the client does.
pub(crate) async fn send(mut stream: TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

pub(crate) async fn close(mut stream: TcpStream) {
    read_head(&mut stream).await;
    // Closing a socket with unread bytes would reset the connection.
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

pub(crate) async fn close_at_once(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

pub(crate) async fn reset(mut stream: TcpStream) {
    read_head(&mut stream).await;
    stream.set_zero_linger().unwrap();
}

pub(crate) async fn garbage(mut stream: TcpStream) {
    read_head(&mut stream).await;
    let _ = stream.write_all(b"220 mail.example.com ESMTP ready when you are\r\n\r\n").await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// Resets or closes the HTTP/2 connection after the first request has arrived.
pub(crate) async fn end_http2(stream: TcpStream, reset: bool) {
    let stream = stream.into_std().unwrap();
    let raw = TcpStream::from_std(stream.try_clone().unwrap()).unwrap();
    let mut connection = h2::server::handshake(TcpStream::from_std(stream).unwrap()).await.unwrap();
    let request = connection.accept().await;
    // After its response to the ping, the client has nothing left to write. If the reset arrived during a write, the
    // client might see a closed connection instead of a reset.
    let mut pings = connection.ping_pong().unwrap();
    pings.send_ping(h2::Ping::opaque()).unwrap();
    std::future::poll_fn(|cx| {
        let _ = connection.poll_closed(cx);
        pings.poll_pong(cx)
    })
    .await
    .unwrap();
    match reset {
        true => raw.set_zero_linger().unwrap(),
        false => raw.into_std().unwrap().shutdown(std::net::Shutdown::Write).unwrap(),
    }
    drop((request, connection));
}

pub(crate) async fn reset_http2_stream(stream: TcpStream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        respond.send_reset(h2::Reason::INTERNAL_ERROR);
    }
}

/// When the server sends a GOAWAY frame: before the response, or before the end of the response body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Before {
    Response,
    EndOfBody,
}

/// Ends each HTTP/2 connection with a GOAWAY frame. The debug data of the frame is the request's `authorization`
/// header.
pub(crate) async fn echo_in_goaway(stream: TcpStream, before: Before) {
    let stream = stream.into_std().unwrap();
    let mut raw = stream.try_clone().unwrap();
    let mut connection = h2::server::handshake(TcpStream::from_std(stream).unwrap()).await.unwrap();
    let Some(Ok((request, mut respond))) = connection.accept().await else { return };
    let mut body = None;
    if before == Before::EndOfBody {
        let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
        stream.send_data("part".into(), false).unwrap();
        body = Some(stream);
        // The client must receive the start of the response before the GOAWAY frame.
        let flushed = std::future::poll_fn(|cx| connection.poll_closed(cx));
        let _ = tokio::time::timeout(std::time::Duration::from_millis(20), flushed).await;
    }
    let authorization = request.headers()["authorization"].as_bytes();
    // The HTTP/2 frame has type 7 (GOAWAY), stream 0, last stream id 0 and error code 11 (ENHANCE_YOUR_CALM).
    let length = u8::try_from(8 + authorization.len()).unwrap();
    let mut frame = vec![0, 0, length, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];
    frame.extend_from_slice(authorization);
    raw.write_all(&frame).unwrap();
    raw.shutdown(std::net::Shutdown::Write).unwrap();
    let flushed = std::future::poll_fn(|cx| connection.poll_closed(cx));
    let _ = tokio::time::timeout(std::time::Duration::from_secs(5), flushed).await;
    drop((body, respond));
}

/// Responds with a `te` header that contains the request's `authorization` header. HTTP/2 forbids this response header.
pub(crate) async fn echo_in_te(stream: TcpStream) {
    let stream = stream.into_std().unwrap();
    let mut raw = stream.try_clone().unwrap();
    let mut connection = h2::server::handshake(TcpStream::from_std(stream).unwrap()).await.unwrap();
    // Dropping a responder would reset its HTTP/2 stream.
    let mut responders = Vec::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        let authorization = request.headers()["authorization"].as_bytes();
        let stream = u8::try_from(respond.stream_id().as_u32()).unwrap();
        // The header block has `:status: 200` from HPACK's static table, and `te` as a literal field.
        let mut fields = vec![0x88, 0, 2, b't', b'e', u8::try_from(authorization.len()).unwrap()];
        fields.extend_from_slice(authorization);
        // The HTTP/2 frame has type 1 (HEADERS) and flags 5 (END_STREAM and END_HEADERS).
        let mut frame = vec![0, 0, u8::try_from(fields.len()).unwrap(), 1, 5, 0, 0, 0, stream];
        frame.extend_from_slice(&fields);
        raw.write_all(&frame).unwrap();
        responders.push(respond);
    }
}
