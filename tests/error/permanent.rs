//! Tests that a permanent failure is not retried, over each kind of client. The TLS failures come from handshakes with
//! real servers.

use hyper_util::client::legacy::connect::{
    dns::Name,
    proxy::{SocksV5, Tunnel},
};
use tower_outbound::call::StopReason;

use super::{
    handshakes::{Case, long_path},
    peer::unresolved,
    support::certificate::trusting,
    *,
};

#[track_caller]
fn assert_attempts(name: &str, error: &Error, kind: ErrorKind, attempts: usize, stop: StopReason) {
    let report = error.report().unwrap();
    assert_eq!(
        (error.kind(), report.attempt_count(), report.stop_reason()),
        (kind, attempts, Some(stop)),
        "{name}: {error:?}"
    );
}

/// Returns the number of attempts of a call that fails in the same way each time, and why it ends.
fn attempts_and_stop(is_permanent: bool) -> (usize, StopReason) {
    if is_permanent { (1, StopReason::NotRetryable) } else { (3, StopReason::Exhausted) }
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
            let error = client.get(long_path()).await.unwrap_err();
            assert_attempts(case.name, &error, ErrorKind::Tls, 1, StopReason::NotRetryable);
        }
        let url = case.serve(b"http/1.1");
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(case.client_config());
        let client = legacy::Client::builder(TokioExecutor::new())
            .build(connector.https_only().enable_http1().build());
        let request = http::Request::get(format!("{url}{}", long_path())).body(no_body()).unwrap();
        let error = quick_retry().layer(client).oneshot(request).await.unwrap_err();
        assert_attempts(case.name, &error, ErrorKind::Tls, 1, StopReason::NotRetryable);
    }
}

#[tokio::test]
async fn clients_retry_a_temporary_dns_failure_but_not_an_unknown_name() {
    for (reason, is_permanent) in peer::DNS_FAILURES {
        let (attempts, stop) = attempts_and_stop(is_permanent);
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

/// The error of hyper-util's connector for a proxy has no public type, so the test gets it from the connector.
#[tokio::test]
async fn client_over_a_connector_of_hyper_util_retries_unless_the_proxy_rejects_the_credentials() {
    for (scheme, sent, is_rejection) in peer::PROXIES {
        let address = peer::serve(move |stream| peer::send(stream, sent));
        let (proxy, tcp) = (format!("http://{address}").parse().unwrap(), HttpConnector::new());
        let connector = match scheme {
            "http" => BoxCloneSyncService::new(Tunnel::new(proxy, tcp).map_err(BoxError::from)),
            _ => {
                let socks = SocksV5::new(proxy, tcp).with_auth("ann".to_owned(), "wrong".to_owned());
                BoxCloneSyncService::new(socks.map_err(BoxError::from))
            }
        };
        let error = error_of_layers("http://api.test", connector, false, no_body).await;
        let (attempts, stop) = attempts_and_stop(is_rejection);
        let name = format!("{scheme} {}", sent.escape_ascii());
        assert_attempts(&name, &error, ErrorKind::Connect, attempts, stop);
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
