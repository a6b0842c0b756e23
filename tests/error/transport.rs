//! Tests the kinds and messages of the errors that network and server failures cause.

use std::{io, vec};

use hyper_util::client::legacy::connect::dns::Name;
use tower_outbound::attempt_span::AttemptSpanLayer;

use super::*;

/// Returns a connector whose DNS resolver fails for every name.
fn without_dns() -> Connector {
    let resolver =
        service_fn(|_: Name| async { Err::<vec::IntoIter<SocketAddr>, _>(io::Error::other("nxdomain")) });
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    BoxCloneSyncService::new(connector.map_err(BoxError::from))
}

fn failing(error: fn() -> BoxError) -> Connector {
    BoxCloneSyncService::new(service_fn(move |_: Uri| async move { Err(error()) }))
}

#[track_caller]
fn assert_error(name: &str, error: &Error, kind: ErrorKind, message: &str, attempts: usize) {
    assert_eq!(error.kind(), kind, "{name}: {error:?}");
    assert!(error.is_service(), "{name}: {error:?}");
    assert_eq!(error.is_timeout(), kind == ErrorKind::ConnectTimeout, "{name}: {error:?}");
    assert_eq!(error.report().unwrap().attempt_count(), attempts, "{name}: {error:?}");
    let is_sent =
        matches!(kind, ErrorKind::Reset | ErrorKind::Closed | ErrorKind::Protocol | ErrorKind::Body);
    assert_eq!(error.may_have_been_processed(), is_sent, "{name}: {error:?}");
    let after = if attempts > 1 { format!(" after {attempts} attempts") } else { String::new() };
    let id = error.request_id().unwrap();
    assert_eq!(
        error.to_string(),
        format!("{message}{after} (request id {})", id.to_str().unwrap()),
        "{name}"
    );
}

#[tokio::test]
async fn each_transport_failure_has_its_own_kind_and_message() {
    use ErrorKind::*;

    let (_socket, address) = refusing_address();
    let url = |address: SocketAddr| format!("http://{address}");
    let refused = &url(address);
    let unresolved = &"https://nowhere.invalid".to_owned();
    let unreachable = failing(|| io::Error::from(io::ErrorKind::HostUnreachable).into());
    let unknown = failing(|| "no proxy".into());
    let resets = &url(peer::serve(peer::reset));
    let resets_http2 = &url(peer::serve(|stream| peer::end_http2(stream, true)));
    let resets_stream = &url(peer::serve(peer::reset_http2_stream));
    let closes = &url(peer::serve(peer::close));
    let closes_http2 = &url(peer::serve(|stream| peer::end_http2(stream, false)));
    let no_http = &url(peer::serve(peer::garbage));
    let no_response = &url(peer::serve(read_only));
    let reset = "connection or stream reset by the server";
    let closed = "connection closed before the response";
    let protocol = "http protocol error";
    let body = "request body failed";
    for (name, url, connector, http2, kind, message) in [
        ("refused connection", refused, tcp(), false, ConnectRefused, "connection refused"),
        ("refused connection over HTTP/2", refused, tcp(), true, ConnectRefused, "connection refused"),
        ("unknown host name", unresolved, without_dns(), false, Dns, "dns lookup failed"),
        ("unreachable host", unresolved, unreachable, false, Connect, "could not connect"),
        ("unknown connector error", unresolved, unknown, false, Connect, "could not connect"),
        ("HTTP/1 connection reset", resets, tcp(), false, Reset, reset),
        ("HTTP/2 connection reset", resets_http2, tcp(), true, Reset, reset),
        ("HTTP/2 stream reset", resets_stream, tcp(), true, Reset, reset),
        ("HTTP/1 connection closed", closes, tcp(), false, Closed, closed),
        ("HTTP/2 connection closed", closes_http2, tcp(), true, Closed, closed),
        ("response that is not HTTP/1", no_http, tcp(), false, Protocol, protocol),
        ("response that is not HTTP/2", no_http, tcp(), true, Protocol, protocol),
        // A request whose body fails is not retried.
        ("failing request body over HTTP/1", no_response, tcp(), false, ErrorKind::Body, body),
        ("failing request body over HTTP/2", no_response, tcp(), true, ErrorKind::Body, body),
    ] {
        let (body, attempts) =
            if kind == ErrorKind::Body { (broken_body as fn() -> _, 1) } else { (no_body as _, 3) };
        let error = error_of_client(url, connector.clone(), http2, body).await;
        assert_error(name, &error, kind, message, attempts);
        let error = error_of_layers(url, connector, http2, body).await;
        assert_error(name, &error, kind, message, attempts);
    }
}

/// Reads the request and never responds.
async fn read_only(mut stream: TcpStream) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    // An HTTP/2 client waits for the server's SETTINGS frame.
    let mut head = [0; 3];
    if stream.read_exact(&mut head).await.is_ok() && &head == b"PRI" {
        let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
    }
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// An application may put a connector into a timeout of tokio or tower. The operating system also has a connect
/// timeout.
#[tokio::test(start_paused = true)]
async fn timeout_error_of_the_connector_has_the_kind_connect_timeout() {
    let never = || service_fn(|_: Uri| std::future::pending::<Result<TokioIo<TcpStream>, BoxError>>());
    let by_tokio = service_fn(move |uri: Uri| async move {
        tokio::time::timeout(Duration::from_secs(1), never().oneshot(uri)).await.map_err(BoxError::from)?
    });
    let by_tower = tower::timeout::Timeout::new(never(), Duration::from_secs(1));
    let by_system = failing(|| io::Error::from(io::ErrorKind::TimedOut).into());
    let message = "timed out while connecting";
    for (name, connector) in [
        ("timeout of tokio", BoxCloneSyncService::new(by_tokio)),
        ("timeout of tower", BoxCloneSyncService::new(by_tower)),
        ("timeout of the operating system", by_system),
    ] {
        let url = "https://nowhere.invalid";
        let error = error_of_client(url, connector.clone(), false, no_body).await;
        assert_error(name, &error, ErrorKind::ConnectTimeout, message, 3);
        let error = error_of_layers(url, connector, false, no_body).await;
        assert_error(name, &error, ErrorKind::ConnectTimeout, message, 3);
    }
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn temporary_tls_failure_returns_an_error_of_kind_tls_after_retries() {
    use tower_outbound::transport::TransportConfig;

    let plain =
        super::support::server::Server::with_statuses(super::support::server::Wire::Http1, [200]).await;
    let closing = peer::serve(peer::close_at_once);
    for (name, url) in [
        ("a port without tls", plain.url().replace("http:", "https:")),
        ("a server that closes the connection", format!("https://{closing}")),
    ] {
        let client = preset(&url).client_with_transport(TransportConfig::new()).unwrap();
        let error = client.get("/v1").await.unwrap_err();
        assert_error(name, &error, ErrorKind::Tls, "tls handshake failed", 3);
    }
    assert!(plain.seen().is_empty());
}

/// A custom service may return an I/O error that is not wrapped in an error of hyper.
#[tokio::test(start_paused = true)]
async fn io_error_of_a_custom_service_determines_the_kind_of_the_call_error() {
    use io::ErrorKind::*;
    for (io, kind) in [
        (ConnectionRefused, ErrorKind::ConnectRefused),
        (ConnectionReset, ErrorKind::Reset),
        (ConnectionAborted, ErrorKind::Reset),
        (BrokenPipe, ErrorKind::Closed),
        (UnexpectedEof, ErrorKind::Closed),
        (NetworkUnreachable, ErrorKind::Connect),
        (TimedOut, ErrorKind::AttemptTimeout),
        (PermissionDenied, ErrorKind::Other),
    ] {
        let service = support::ScriptedService::new([support::Scripted::Io(io)]);
        let error = tower::Layer::layer(&quick_retry(), service)
            .oneshot(support::get("http://host/"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{io:?}: {error:?}");
    }
}

/// An I/O error such as `HostUnreachable` has the kind `Closed` on an established connection, and the kind `Connect`
/// while the client connects.
#[tokio::test(start_paused = true)]
async fn io_error_of_an_established_connection_has_the_kind_closed() {
    use io::ErrorKind::*;
    for io in [HostUnreachable, NetworkUnreachable, AddrNotAvailable, TimedOut, UnexpectedEof] {
        let head = b"GET /v1 HTTP/1.1\r\n\r\n";
        let stream = tokio_test::io::Builder::new().write(head).read_error(io.into()).build();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("/v1").body(no_body()).unwrap();
        let sent = service_fn(move |request| sender.send_request(request));
        let error = tower::Layer::layer(&AttemptSpanLayer::new(), sent).oneshot(request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{io:?}: {error:?}");
        assert!(format!("{error:?}").ends_with(&io::Error::from(io).to_string()), "{io:?}: {error:?}");
    }
}
