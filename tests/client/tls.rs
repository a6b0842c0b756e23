//! Tests the negotiation of the HTTP version over TLS, and the verification of certificates.

use std::sync::Arc;

use futures_util::future::join_all;
use http::Version;
use tokio::sync::Barrier;
use tower_outbound::{
    Client,
    call::{Outcome, StopReason},
    transport::TransportConfig,
};

use super::{
    chain, outcomes, preset, report, status,
    support::certificate::{certificate, trusting, wire},
    support::server::{Server, Wire, reply, settle, within},
    text,
};

fn client(url: &str, transport: TransportConfig) -> Client {
    preset(url).client_with_transport(transport).unwrap()
}

#[tokio::test]
async fn client_negotiates_http2_if_the_server_supports_it_and_otherwise_uses_http1() {
    for (protocols, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ] {
        let certificate = certificate();
        let server = Server::with_statuses(wire(&certificate, protocols), [503, 200]).await;
        // The certificate is valid for the address 127.0.0.1 and for the name localhost.
        for url in [server.url(), server.url().replace("127.0.0.1", "localhost")] {
            let response = within(client(&url, trusting(&certificate)).get("/v1?q=1")).await.unwrap();
            assert_eq!((response.status().as_u16(), response.version()), (200, version), "{protocols:?}");
        }
        assert_eq!(server.seen().len(), 3);
        for seen in server.seen() {
            assert_eq!((seen.version, seen.path_and_query()), (version, "/v1?q=1"));
            assert_eq!(seen.header("authorization").unwrap(), format!("Bearer {}", super::KEY));
        }
    }
}

#[tokio::test]
async fn sixty_four_concurrent_calls_share_one_negotiated_http2_connection() {
    let certificate = certificate();
    // The server responds to the first request immediately, and to the 64 concurrent requests only after all 64 have
    // arrived.
    let all = Arc::new(Barrier::new(64));
    let server = Server::start(wire(&certificate, &["h2", "http/1.1"]), move |number, seen| {
        let all = Arc::clone(&all);
        async move {
            if number > 1 {
                all.wait().await;
            }
            Some(reply(200, seen.body))
        }
    })
    .await;
    let client = client(&server.url(), trusting(&certificate));
    // The first handshake tells the client that the server supports HTTP/2. Concurrent calls can share a connection
    // only after this handshake.
    assert_eq!(within(status(client.get("/"))).await, 200);
    settle().await;
    let calls =
        (0..64).map(|number| {
            let client = client.clone();
            async move {
                text(client.post("/").body(number.to_string()).await.unwrap()).await == number.to_string()
            }
        });
    assert!(within(join_all(calls)).await.into_iter().all(|same| same));
    assert_eq!((server.connections(), server.seen().len()), (1, 65));
}

#[tokio::test]
async fn client_sends_nothing_to_a_server_with_an_untrusted_certificate() {
    let (certificate, other_certificate) = (certificate(), certificate());
    let server = Server::with_statuses(wire(&certificate, &["h2", "http/1.1"]), [200]).await;
    for transport in
        [TransportConfig::new(), trusting(&other_certificate), TransportConfig::new().without_bundled_roots()]
    {
        let error = within(client(&server.url(), transport).post("/v1").body("secret")).await.unwrap_err();
        assert!(error.is_service(), "{error:?}");
        let report = error.report().unwrap();
        // A retry after a certificate error would not help, and would delay the report of a possible attack.
        assert_eq!(
            (outcomes(report), report.stop_reason()),
            (vec![Outcome::NotSent], Some(StopReason::NotRetryable))
        );
        assert!(
            chain(&error).contains("certificate"),
            "the error mentions the certificate: {}",
            chain(&error)
        );
    }
    assert!(server.connections() > 0 && server.seen().is_empty());
}

#[tokio::test]
async fn client_rejects_a_certificate_for_another_host_name() {
    let certificate = rcgen::generate_simple_self_signed(["api.example.com".to_owned()]).unwrap();
    let server = Server::with_statuses(wire(&certificate, &[]), [200]).await;
    let error = within(client(&server.url(), trusting(&certificate)).get("/")).await.unwrap_err();
    assert!(error.is_service() && server.seen().is_empty(), "{error:?}");
}

#[tokio::test]
async fn client_sends_nothing_to_an_https_url_if_the_server_has_no_tls() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let url = server.url().replace("http:", "https:");
    let error = within(client(&url, TransportConfig::new()).get("/")).await.unwrap_err();
    assert!(error.is_service() && server.seen().is_empty(), "{error:?}");
}

#[tokio::test]
async fn http2_prior_knowledge_works_over_tls() {
    let certificate = certificate();
    let server = Server::with_statuses(wire(&certificate, &["h2"]), [200]).await;
    let transport = trusting(&certificate).with_http2_prior_knowledge();
    let response = within(client(&server.url(), transport).get("/")).await.unwrap();
    assert_eq!((response.version(), report(&response).attempt_count()), (Version::HTTP_2, 1));
}

#[test]
fn transport_rejects_invalid_root_certificates_at_construction() {
    for pem in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let transport = TransportConfig::new().with_root_certificates(pem.as_bytes());
        let error = preset("https://localhost").client_with_transport(transport).unwrap_err();
        assert_eq!(error.field(), "root certificates", "{pem}: {error}");
    }
}

#[tokio::test]
async fn http1_only_transport_uses_http1_even_if_the_server_supports_http2() {
    let certificate = certificate();
    let server = Server::with_statuses(wire(&certificate, &["h2", "http/1.1"]), [200]).await;
    let transport = trusting(&certificate).with_http1_only();
    let response = within(client(&server.url(), transport).get("/")).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_11);
}
