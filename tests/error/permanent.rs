//! Tests that a permanent failure is not retried, over each kind of client. The TLS failures come from handshakes with
//! real servers.

use std::io;

use hyper_util::client::legacy::connect::dns::Name;
use tower_outbound::call::StopReason;

use super::{handshakes::Case, support::certificate::trusting, *};

/// The path of each request. It is long, so that a server can recognize that the request has arrived.
fn path() -> String {
    format!("/{}", "x".repeat(6_000))
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
        let request = http::Request::get(format!("{url}{}", path())).body(no_body()).unwrap();
        let error = quick_retry().layer(client).oneshot(request).await.unwrap_err();
        assert_attempts(case.name, &error, ErrorKind::Tls, 1, StopReason::NotRetryable);
    }
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
