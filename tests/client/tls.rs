//! Tests the negotiation of the HTTP version over TLS.

use super::{
    support::certificate::{certificate, trusting, wire},
    *,
};

#[tokio::test]
async fn client_negotiates_http2_unless_the_server_or_the_transport_allows_only_http1() {
    let (both, http1, http2) = (&["h2", "http/1.1"][..], &["http/1.1"][..], &["h2"][..]);
    type Change = fn(TransportConfig) -> TransportConfig;
    for (protocols, change, version) in [
        (both, (|transport| transport) as Change, Version::HTTP_2),
        (http1, |transport| transport, Version::HTTP_11),
        (&[], |transport| transport, Version::HTTP_11),
        (http2, TransportConfig::with_http2_prior_knowledge, Version::HTTP_2),
        (both, TransportConfig::with_http1_only, Version::HTTP_11),
    ] {
        let certificate = certificate();
        let server = Server::with_statuses(wire(&certificate, protocols), [503, 200]).await;
        // The certificate is valid for the address 127.0.0.1 and for the name localhost.
        for url in [server.url(), server.url().replace("127.0.0.1", "localhost")] {
            let client = preset(&url).client_with_transport(change(trusting(&certificate))).unwrap();
            let response = within(client.get("/v1?q=1")).await.unwrap();
            assert_eq!((response.status().as_u16(), response.version()), (200, version), "{protocols:?}");
        }
        assert_eq!(server.seen().len(), 3);
        for seen in server.seen() {
            assert_eq!((seen.version, seen.path_and_query()), (version, "/v1?q=1"));
            assert_eq!(seen.header("authorization").unwrap(), format!("Bearer {}", super::KEY));
        }
    }
}
