//! Tests that a permanent failure is not retried, over each kind of client. The TLS failures come from handshakes with
//! real servers.

use std::{io, sync::Arc};

use hyper_util::client::legacy::connect::{dns::Name, proxy::Tunnel};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use tower::{Layer, Service, service_fn};
use tower_outbound::{ErrorKind, call::StopReason};

use super::{handshakes::Case, peer, support::certificate::trusting, *};

/// The path of each request. It is long, so that a server can recognize that the request has arrived.
fn path() -> String {
    format!("/{}", "x".repeat(6_000))
}

/// Sends a GET through the retry layer and `service`, and asserts that it failed after one attempt.
async fn assert_one_attempt<S, R>(name: &str, url: &str, kind: ErrorKind, service: S)
where
    S: Service<http::Request<tower_outbound::body::ReplayBody<Content>>, Response = http::Response<R>>,
    S: Clone + Send,
    S::Error: Into<BoxError>,
    R: http_body::Body + Send,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    let service = quick_retry().layer(service);
    let request = http::Request::get(format!("{url}{}", path())).body(no_body()).unwrap();
    let error = service.oneshot(request).await.map(|_| ()).unwrap_err();
    assert_attempts(name, &error, kind, 1, StopReason::NotRetryable);
}

#[track_caller]
fn assert_attempts(name: &str, error: &Error, kind: ErrorKind, attempts: usize, stop: StopReason) {
    let report = error.report().unwrap();
    assert_eq!(
        (error.kind(), report.attempt_count(), report.stop_reason()),
        (kind, attempts, Some(stop)),
        "{name}: {error:?}"
    );
}

#[tokio::test]
async fn clients_do_not_retry_after_a_permanent_tls_failure() {
    for case in Case::all() {
        for protocol in [&b"http/1.1"[..], b"h2"] {
            // The versions of this crate's client cannot be configured.
            if case.client_versions.len() == 1 {
                continue;
            }
            let url = case.serve(protocol);
            let client = preset(&url).client_with_transport(trusting(case.trusted())).unwrap();
            let error = client.get(path()).await.unwrap_err();
            assert_attempts(case.name, &error, ErrorKind::Tls, 1, StopReason::NotRetryable);
        }
        let url = case.serve(b"http/1.1");
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(case.client_config());
        let client = legacy::Client::builder(TokioExecutor::new())
            .build(connector.https_only().enable_http1().build());
        assert_one_attempt(&format!("hyper-util: {}", case.name), &url, ErrorKind::Tls, client).await;

        let tls = TlsConnector::from(Arc::new(case.client_config()));
        let custom = service_fn(move |request: http::Request<_>| {
            let tls = tls.clone();
            async move {
                let stream = TcpStream::connect(request.uri().authority().unwrap().as_str()).await?;
                let stream = tls.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await?;
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
                let response = sender.send_request(request);
                tokio::spawn(connection);
                Ok::<_, BoxError>(response.await?)
            }
        });
        assert_one_attempt(&format!("custom: {}", case.name), &url, ErrorKind::Tls, custom).await;
    }
}

#[tokio::test]
async fn clients_do_not_retry_after_the_proxy_requires_a_password() {
    let proxy = peer::serve(|mut stream| async move {
        peer::read_head(&mut stream).await;
        let _ = stream
            .write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            .await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let tunnel = Tunnel::new(format!("http://{proxy}").parse().unwrap(), HttpConnector::new());
    let client = legacy::Client::builder(TokioExecutor::new()).build(tunnel);
    assert_one_attempt("hyper-util", "https://api.test", ErrorKind::Connect, client).await;
}

/// Returns the error of the system's resolver with this reason.
fn unresolved(reason: &str) -> io::Error {
    io::Error::other(format!("failed to lookup address information: {reason}"))
}

#[tokio::test]
async fn clients_retry_a_temporary_dns_failure_but_not_an_unknown_name() {
    for (reason, attempts, stop) in [
        ("Name or service not known", 1, StopReason::NotRetryable),
        ("Temporary failure in name resolution", 3, StopReason::Exhausted),
    ] {
        let resolver =
            service_fn(
                move |_: Name| async move { Err::<std::vec::IntoIter<SocketAddr>, _>(unresolved(reason)) },
            );
        let mut connector = HttpConnector::new_with_resolver(resolver);
        connector.enforce_http(false);
        let connector = BoxCloneSyncService::new(connector.map_err(BoxError::from));
        let error = error_of_layers("http://nowhere.test", connector, false, no_body).await;
        assert_attempts("hyper-util", &error, ErrorKind::Dns, attempts, stop);

        let custom = service_fn(move |_: http::Request<_>| async move {
            Err::<http::Response<String>, _>(unresolved(reason))
        });
        let error =
            quick_retry().layer(custom).oneshot(request("http://nowhere.test", no_body())).await.unwrap_err();
        assert_attempts("custom", &error, ErrorKind::Dns, attempts, stop);
    }
}

/// hyper rejects a request without a host, and does so each time.
#[tokio::test]
async fn clients_do_not_retry_a_request_that_hyper_rejects() {
    let stream = TcpStream::connect(peer::serve(peer::reset_http2_stream)).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let custom = service_fn(move |request: http::Request<_>| sender.clone().send_request(request));
    let request = http::Request::get("/v1").version(http::Version::HTTP_2).body(no_body()).unwrap();
    let error = quick_retry().layer(custom).oneshot(request).await.unwrap_err();
    assert_attempts("hyper", &error, ErrorKind::InvalidRequest, 1, StopReason::NotRetryable);
}
