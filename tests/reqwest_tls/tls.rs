//! Tests that a permanent failure of TLS or of a proxy is not retried over a reqwest client with TLS, with the failing
//! servers of `tests/error`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "../error/handshakes.rs"]
mod handshakes;
#[allow(dead_code, reason = "the servers of another test binary")]
#[path = "../error/peer.rs"]
mod peer;

use std::{sync::Arc, time::Duration};

use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
use tower::{Layer, ServiceExt};
use tower_outbound::{Body, Error, ErrorKind, ExponentialBackoff, adapter::Reqwest, retry::RetryLayer};

use self::handshakes::{Case, long_path};

/// Sends a GET through a retry layer with three attempts, and asserts the number of attempts.
async fn assert_attempts(name: &str, client: reqwest::ClientBuilder, url: &str, attempts: usize) -> Error {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
    let service = RetryLayer::new().with_backoff(backoff).layer(Reqwest::new(client).unwrap());
    let request = http::Request::get(url).body(Body::empty()).unwrap();
    let call = tokio::time::timeout(Duration::from_secs(60), service.oneshot(request));
    let error = call.await.expect("the call should fail within 60 s").unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), attempts, "{name}: {error:?}");
    error
}

fn builder(tls: ClientConfig) -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls)
}

#[tokio::test]
async fn does_not_retry_after_a_permanent_tls_failure() {
    for case in Case::all() {
        for protocol in [&b"http/1.1"[..], b"h2"] {
            let mut tls = case.client_config();
            tls.alpn_protocols = vec![protocol.to_vec()];
            let url = format!("{}{}", case.serve(protocol), long_path());
            let error = assert_attempts(case.name, builder(tls), &url, 1).await;
            assert_eq!(error.kind(), ErrorKind::Tls, "{}: {error:?}", case.name);
        }
    }
}

#[tokio::test]
async fn retries_a_failure_of_a_proxy_unless_it_rejects_the_credentials() {
    for (scheme, sent, is_rejection) in peer::PROXIES {
        let address = peer::serve(move |stream| peer::send(stream, sent));
        let proxy = reqwest::Proxy::all(format!("{scheme}://ann:wrong@{address}")).unwrap();
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = format!("{scheme} {}", sent.escape_ascii());
        let attempts = if is_rejection { 1 } else { 3 };
        let error = assert_attempts(&name, builder(tls).proxy(proxy), "https://api.test/v1", attempts).await;
        assert_eq!(error.kind(), ErrorKind::Connect, "{name}: {error:?}");
    }
}
