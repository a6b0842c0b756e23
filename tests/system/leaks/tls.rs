//! Over TLS, and where it fails.

use http::Version;
use tower_outbound::client::Transport;

use super::{
    certificate::{certificate, trusting, wire},
    *,
};

#[test]
fn over_tls() {
    live(async {
        for place in PLACES {
            for (protocols, version) in [(&["h2"][..], Version::HTTP_2), (&["http/1.1"], Version::HTTP_11)] {
                let certificate = certificate();
                let server = statuses(wire(&certificate, protocols), [503, 200]).await;
                let client =
                    preset(&server.url(), place).client_with_transport(trusting(&certificate)).unwrap();
                let response = client.get("/v1").await.unwrap();
                answered(&response);
                assert_eq!((response.status().as_u16(), response.version()), (200, version));
                assert!(server.seen().iter().all(|seen| place.reached(seen)), "{place:?}");
            }
        }
    });
    let targets = TARGETS.lock().unwrap();
    // Through the `log` crate, whose records have this target and their own in a field.
    assert!(targets.contains("log"), "rustls is not in {targets:?}");
}

#[test]
fn where_tls_fails() {
    live(async {
        let (own, of_another) = (certificate(), certificate());
        let server = statuses(wire(&own, &["h2", "http/1.1"]), [200]).await;
        let of_other_name = rcgen::generate_simple_self_signed(["host.test".to_owned()]).unwrap();
        let misnamed = statuses(wire(&of_other_name, &[]), [200]).await;
        let plain = statuses(Wire::Http1, [200]).await;
        let plain = plain.url().replace("http:", "https:");
        for place in PLACES {
            for (url, transport) in [
                (&server.url(), Transport::new()),
                (&server.url(), trusting(&of_another)),
                (&misnamed.url(), trusting(&of_other_name)),
                (&plain, trusting(&own)),
            ] {
                let client = preset(url, place).client_with_transport(transport).unwrap();
                let error = client.post("/v1", "text").await.unwrap_err();
                assert!(error.is_service());
                failed(&error);
            }
        }
        assert!(server.seen().is_empty() && misnamed.seen().is_empty());
    });
}
