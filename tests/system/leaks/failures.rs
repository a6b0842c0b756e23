//! Tests that calls without a complete response do not show the key.

use std::{panic::resume_unwind, time::Duration};

use tokio::net::TcpSocket;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    BoxError, ErrorKind,
    auth::{FreshKey, KeySource, RefreshingKey},
};

use super::*;
#[cfg(feature = "rustls")]
use crate::support::certificate::{certificate, trusting, wire};
use crate::support::{Scripted, ScriptedService, get, millis, secs};

type Setting = fn(StackBuilder) -> StackBuilder;

/// The keys of these calls have left the client, except if the connection or the TLS handshake failed.
#[test]
fn timeouts_and_failed_connections_do_not_show_the_key() {
    run_with_sockets(async {
        let silent = on_server_thread(Server::start(Wire::Http1, |_, _| std::future::pending())).await;
        // A bound socket that does not listen refuses connections, and no other process can take its port.
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let refusing = format!("http://{}", bound.local_addr().unwrap());
        let closing = on_server_thread(Server::start(Wire::Http1, |_, _| async { None })).await;
        let resetting = on_server_thread(Server::start(Wire::Http2, |_, _| async { None })).await;
        let (http1, same): (_, Setting) = (TransportConfig::new(), |builder| builder);
        let attempt: Setting =
            |builder| builder.with_attempt_timeout(millis(150)).with_total_timeout(secs(20));
        let total: Setting = |builder| builder.with_total_timeout(millis(300));
        #[cfg_attr(not(feature = "rustls"), allow(unused_mut, reason = "only TLS adds rows"))]
        let mut cases = vec![
            // A busy machine may take so long to connect.
            (
                silent.url(),
                http1.clone(),
                attempt,
                &[ErrorKind::AttemptTimeout, ErrorKind::ConnectTimeout][..],
            ),
            (silent.url(), http1.clone(), total, &[ErrorKind::Deadline]),
            (refusing, http1.clone(), same, &[ErrorKind::ConnectRefused]),
            (closing.url(), http1.clone(), same, &[ErrorKind::Closed]),
            // An HTTP/1.1 client reads the frames of an HTTP/2 server, or the end of its connection.
            (
                resetting.url(),
                http1.clone(),
                same,
                &[ErrorKind::Protocol, ErrorKind::Closed, ErrorKind::Reset],
            ),
            (resetting.url(), http1.with_http2_prior_knowledge(), same, &[ErrorKind::Reset]),
        ];
        #[cfg(feature = "rustls")]
        let (trusted, wrong_name) = {
            let (trusted, untrusted) = (certificate(), certificate());
            let wrong_name = rcgen::generate_simple_self_signed(["host.test".to_owned()]).unwrap();
            let server = server_with_statuses(wire(&trusted, &["h2", "http/1.1"]), [200]).await;
            let wrong_name_server = server_with_statuses(wire(&wrong_name, &[]), [200]).await;
            let plaintext = silent.url().replace("http:", "https:");
            for (url, transport) in [
                (server.url(), TransportConfig::new()),
                (server.url(), trusting(&untrusted)),
                (wrong_name_server.url(), trusting(&wrong_name)),
                (plaintext, trusting(&trusted)),
            ] {
                cases.push((url, transport, same, &[ErrorKind::Tls]));
            }
            (server, wrong_name_server)
        };
        for placement in PLACEMENTS {
            for (url, transport, set, kinds) in cases.clone() {
                let builder = set(stack_builder(&url, placement));
                let client = builder.client_with_transport(transport).unwrap();
                let error = client.put("/v1").body("text").await.unwrap_err();
                assert!(kinds.contains(&error.kind()), "{url}: {error:?}");
                check_error(&error);
            }
            for server in [&silent, &closing, &resetting] {
                assert!(server.seen().iter().any(|seen| placement.has_key(seen)), "{placement:?}");
            }
        }
        #[cfg(feature = "rustls")]
        assert!(trusted.seen().is_empty() && wrong_name.seen().is_empty());
    });
}

#[test]
fn error_about_a_uri_that_is_too_long_does_not_show_the_key() {
    run_paused(async {
        let layer = stack_builder("https://host", Placement::Query).layer().unwrap();
        let inner = ScriptedService::new([Scripted::Status(200)]);
        let long = format!("https://host/v1?{}", "x".repeat(usize::from(u16::MAX) - 40));
        let error = layer.layer(inner.clone()).oneshot(get(&long)).await.unwrap_err();
        assert!(error.is_auth());
        check_error(&error);
        assert_eq!(inner.calls(), 0);
    });
}

/// The key sources fail with an error, an invalid key, a panic, an expired key and a timeout.
#[test]
fn errors_of_a_key_source_do_not_show_the_key() {
    fn keys<F, Fut>(refresh: F) -> KeySource
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<FreshKey, BoxError>> + Send + 'static,
    {
        RefreshingKey::new(refresh).with_timeout(Duration::from_millis(100)).unwrap().into()
    }
    /// Panics with the key as the payload. Unlike `panic!`, `resume_unwind` prints no message.
    fn panic_with_key() -> Result<FreshKey, BoxError> {
        resume_unwind(Box::new(KEY))
    }
    run_paused(async move {
        let sources: [fn() -> KeySource; 5] = [
            || keys(|| async { Err::<FreshKey, _>(BoxError::from("the vault is unavailable")) }),
            || keys(|| async { Ok::<_, BoxError>(FreshKey::new(ApiKey::new(format!("{KEY}\n"))?)) }),
            || keys(|| async { panic_with_key() }),
            || keys(|| async { Ok::<_, BoxError>(FreshKey::new(key()).with_lifetime(Duration::ZERO)) }),
            || {
                keys(|| async {
                    let key = key();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Ok::<_, BoxError>(FreshKey::new(key))
                })
            },
        ];
        for placement in PLACEMENTS {
            for keys in sources {
                let keys = keys();
                let inner = ScriptedService::new([Scripted::Status(200)]);
                let builder = stack_builder("https://host", placement).with_keys(keys.clone());
                let service = builder.layer().unwrap().layer(inner.clone());
                for _ in 0..2 {
                    let error = service.clone().oneshot(get("https://host/v1")).await.unwrap_err();
                    assert!(error.is_auth(), "{error:?}");
                    check_error(&error);
                }
                check_error_chain(&keys.last_error().unwrap());
                assert_eq!(inner.calls(), 0);
            }
        }
    });
}
