//! Tests that connections over TLS, and failed TLS handshakes, do not show the key.

use http::Version;

use super::*;
use crate::support::certificate::{certificate, trusting, wire};

#[test]
fn responses_over_tls_do_not_show_the_key() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            for (protocols, version) in [(&["h2"][..], Version::HTTP_2), (&["http/1.1"], Version::HTTP_11)] {
                let certificate = certificate();
                let server = server_with_statuses(wire(&certificate, protocols), [503, 200]).await;
                let builder = stack_builder(&server.url(), placement);
                let client = builder.client_with_transport(trusting(&certificate)).unwrap();
                let response = client.get("/v1").await.unwrap();
                check_client_response(&response);
                assert_eq!((response.status().as_u16(), response.version()), (200, version));
                assert!(server.seen().iter().all(|seen| placement.has_key(seen)), "{placement:?}");
            }
        }
    });
    let targets = TARGETS.lock().unwrap();
    // rustls logs through the `log` crate. The events of rustls have the target `log`, and have their original target
    // in a field.
    assert!(targets.contains("log"), "rustls is not in {targets:?}");
}

#[test]
fn tls_errors_do_not_show_the_key() {
    run_with_sockets(async {
        let (trusted, untrusted) = (certificate(), certificate());
        let server = server_with_statuses(wire(&trusted, &["h2", "http/1.1"]), [200]).await;
        let wrong_name = rcgen::generate_simple_self_signed(["host.test".to_owned()]).unwrap();
        let wrong_name_server = server_with_statuses(wire(&wrong_name, &[]), [200]).await;
        let plaintext = server_with_statuses(Wire::Http1, [200]).await;
        let plaintext_url = plaintext.url().replace("http:", "https:");
        for placement in PLACEMENTS {
            for (url, transport) in [
                (&server.url(), TransportConfig::new()),
                (&server.url(), trusting(&untrusted)),
                (&wrong_name_server.url(), trusting(&wrong_name)),
                (&plaintext_url, trusting(&trusted)),
            ] {
                let client = stack_builder(url, placement).client_with_transport(transport).unwrap();
                let error = client.post("/v1").body("text").await.unwrap_err();
                assert!(error.is_service());
                check_error(&error);
            }
        }
        assert!(server.seen().is_empty() && wrong_name_server.seen().is_empty());
    });
}
