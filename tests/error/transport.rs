//! Real network and server failures, by kind.

use std::{io, net::SocketAddr, vec};

use hyper_util::client::legacy::connect::{HttpConnector, dns::Name};
use tower::{ServiceExt, service_fn};
use tower_outbound::{ErrorKind, attempt_span::AttemptSpanLayer};

use super::{peer, *};

fn tcp() -> Connector {
    BoxCloneSyncService::new(HttpConnector::new().map_err(BoxError::from))
}

/// A connector that resolves no name.
fn unresolved() -> Connector {
    let resolver =
        service_fn(|_: Name| async { Err::<vec::IntoIter<SocketAddr>, _>(io::Error::other("nxdomain")) });
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    BoxCloneSyncService::new(connector.map_err(BoxError::from))
}

fn failing(error: fn() -> BoxError) -> Connector {
    BoxCloneSyncService::new(service_fn(move |_: Uri| async move { Err(error()) }))
}

#[cfg(feature = "rustls")]
fn tls(
    certificates: tokio_rustls::rustls::RootCertStore,
) -> BoxCloneSyncService<Uri, hyper_rustls::MaybeHttpsStream<TokioIo<TcpStream>>, BoxError> {
    use tokio_rustls::rustls::{ClientConfig, crypto::ring};

    let config = ClientConfig::builder_with_provider(std::sync::Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(certificates).with_no_client_auth();
    let connector =
        hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1();
    BoxCloneSyncService::new(connector.build())
}

#[track_caller]
fn check(name: &str, error: &Error, kind: ErrorKind, message: &str, attempts: usize) {
    assert_eq!(error.kind(), kind, "{name}: {error:?}");
    assert!(error.is_service(), "{name}: {error:?}");
    assert_eq!(error.report().unwrap().attempt_count(), attempts, "{name}: {error:?}");
    let after = if attempts > 1 { format!(" after {attempts} attempts") } else { String::new() };
    let id = error.request_id().unwrap();
    assert_eq!(
        error.to_string(),
        format!("{message}{after} (request id {})", id.to_str().unwrap()),
        "{name}"
    );
}

#[tokio::test]
async fn names_the_cause_of_each_transport_failure() {
    use ErrorKind::*;

    let (_socket, refused) = refusing();
    let nowhere = "https://nowhere.invalid".to_owned();
    let at = |address: SocketAddr| format!("http://{address}");
    let resets = "reset by the server";
    let closes = "connection closed before the response";
    let breaks = "http protocol error";
    type Row = (&'static str, String, Connector, bool, fn() -> Content, ErrorKind, &'static str, usize);
    let unreachable = || failing(|| io::Error::from(io::ErrorKind::HostUnreachable).into());
    let rows: Vec<Row> = vec![
        ("refused", at(refused), tcp(), false, no_body, ConnectRefused, "connection refused", 3),
        ("refused, http/2", at(refused), tcp(), true, no_body, ConnectRefused, "connection refused", 3),
        ("no such name", nowhere.clone(), unresolved(), false, no_body, Dns, "dns lookup failed", 3),
        ("unreachable", nowhere.clone(), unreachable(), false, no_body, Connect, "could not connect", 3),
        ("unknown", nowhere, failing(|| "no proxy".into()), false, no_body, Connect, "could not connect", 3),
        ("reset", at(peer::serve(peer::reset)), tcp(), false, no_body, Reset, resets, 3),
        (
            "reset, http/2",
            at(peer::serve(|stream| peer::end_http2(stream, true))),
            tcp(),
            true,
            no_body,
            Reset,
            resets,
            3,
        ),
        ("stream reset", at(peer::serve(peer::reset_http2_stream)), tcp(), true, no_body, Reset, resets, 3),
        ("closed", at(peer::serve(peer::close)), tcp(), false, no_body, Closed, closes, 3),
        (
            "closed, http/2",
            at(peer::serve(|stream| peer::end_http2(stream, false))),
            tcp(),
            true,
            no_body,
            Closed,
            closes,
            3,
        ),
        ("garbage", at(peer::serve(peer::garbage)), tcp(), false, no_body, Protocol, breaks, 3),
        ("garbage, http/2", at(peer::serve(peer::garbage)), tcp(), true, no_body, Protocol, breaks, 3),
        (
            "broken body",
            at(peer::serve(answers)),
            tcp(),
            false,
            broken_body,
            ErrorKind::Body,
            "request body failed",
            1,
        ),
        (
            "broken body, http/2",
            at(peer::serve(answers)),
            tcp(),
            true,
            broken_body,
            ErrorKind::Body,
            "request body failed",
            1,
        ),
    ];
    for (name, url, connector, http2, body, kind, message, attempts) in rows {
        let error = through_client(&url, connector.clone(), http2, body).await;
        check(name, &error, kind, message, attempts);
        let error = through_layers(&url, connector, http2, body).await;
        check(name, &error, kind, message, attempts);
    }
}

/// Reads the request, and never responds.
async fn answers(mut stream: TcpStream) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    // HTTP/2 clients wait for the settings.
    let mut head = [0; 3];
    if stream.read_exact(&mut head).await.is_ok() && &head == b"PRI" {
        let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
    }
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// Applications put each of these timeouts around a connector.
#[tokio::test(start_paused = true)]
async fn names_a_timeout_of_the_connector() {
    let never = || service_fn(|_: Uri| std::future::pending::<Result<TokioIo<TcpStream>, BoxError>>());
    let by_tokio = service_fn(move |uri: Uri| async move {
        tokio::time::timeout(Duration::from_secs(1), never().oneshot(uri)).await.map_err(BoxError::from)?
    });
    let by_tower = tower::timeout::Timeout::new(never(), Duration::from_secs(1));
    let by_system = failing(|| io::Error::from(io::ErrorKind::TimedOut).into());
    let message = "timed out while connecting";
    for (name, connector) in [
        ("tokio", BoxCloneSyncService::new(by_tokio)),
        ("tower", BoxCloneSyncService::new(by_tower)),
        ("system", by_system),
    ] {
        let url = "https://nowhere.invalid";
        let error = through_client(url, connector.clone(), false, no_body).await;
        check(name, &error, ErrorKind::ConnectTimeout, message, 3);
        let error = through_layers(url, connector, false, no_body).await;
        check(name, &error, ErrorKind::ConnectTimeout, message, 3);
    }
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn names_a_failure_of_tls() {
    use tower_outbound::client::Transport;

    let certificate = super::support::certificate::certificate();
    let server = super::support::server::Server::with_statuses(
        super::support::certificate::wire(&certificate, &["h2", "http/1.1"]),
        [200],
    )
    .await;
    let plain =
        super::support::server::Server::with_statuses(super::support::server::Wire::Http1, [200]).await;
    let hangs_up = peer::serve(peer::close_at_once);
    for (name, url, attempts) in [
        ("a certificate that is not trusted", server.url(), 1),
        ("a port without tls", plain.url().replace("http:", "https:"), 3),
        ("a server that hangs up", format!("https://{hangs_up}"), 3),
    ] {
        let client = preset(&url).client_with_transport(Transport::new()).unwrap();
        let error = client.get("/v1").await.unwrap_err();
        check(name, &error, ErrorKind::Tls, "tls handshake failed", attempts);

        let client = legacy::Client::builder(TokioExecutor::new())
            .build(tls(tokio_rustls::rustls::RootCertStore::empty()));
        let service = ServiceBuilder::new().layer(RequestIdLayer::new()).layer(retry()).service(client);
        let error = service.oneshot(request(&url, no_body())).await.unwrap_err();
        check(name, &error, ErrorKind::Tls, "tls handshake failed", attempts);
    }
    assert!(server.seen().is_empty() && plain.seen().is_empty());
}

/// A custom service has no client of hyper below it.
#[tokio::test(start_paused = true)]
async fn names_the_io_error_of_a_custom_service() {
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
        let error =
            tower::Layer::layer(&retry(), service).oneshot(support::get("http://host/")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{io:?}: {error:?}");
    }
}

/// A failed connect returns the same errors.
#[tokio::test(start_paused = true)]
async fn names_the_io_error_of_an_established_connection() {
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

#[tokio::test]
async fn names_a_request_that_http2_cannot_send() {
    let stream = TcpStream::connect(peer::serve(peer::reset_http2_stream)).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let relative = http::Request::get("/v1").version(http::Version::HTTP_2).body(no_body()).unwrap();
    let content = http::Request::connect("host:1").header("content-length", "1").body(no_body()).unwrap();
    for request in [relative, content] {
        let mut sender = sender.clone();
        let sent = service_fn(move |request| sender.send_request(request));
        let error = tower::Layer::layer(&RequestIdLayer::new(), sent).oneshot(request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error:?}");
    }
}
