//! Tests that calls without a complete response do not show the key.

use std::{panic::resume_unwind, time::Duration};

use http::{Method, Request};
use tokio::net::TcpSocket;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Body, BoxError,
    auth::{FreshKey, KeySource, RefreshingKey},
};

use super::*;
use crate::support::{Scripted, ScriptedService, get, millis, secs};

#[test]
fn timeouts_do_not_show_the_key() {
    run_with_sockets(async {
        let server = on_server_thread(Server::start(Wire::Http1, |_, _| std::future::pending())).await;
        for placement in PLACEMENTS {
            let builder = stack_builder(&server.url(), placement);
            let attempts = builder.clone().with_attempt_timeout(millis(150)).with_total_timeout(secs(20));
            let call = builder.with_total_timeout(millis(300));
            for (builder, is_deadline) in [(attempts, false), (call, true)] {
                let error = builder.client().unwrap().get("/v1").await.unwrap_err();
                assert!(error.is_timeout() && error.is_deadline() == is_deadline, "{error:?}");
                check_error(&error);
            }
        }
        assert!(server.seen().len() > 8);
    });
}

#[test]
fn connection_errors_do_not_show_the_key() {
    run_with_sockets(async {
        // A bound socket that does not listen refuses connections, and no other process can take its port.
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let refused = bound.local_addr().unwrap();
        let closing_server = on_server_thread(Server::start(Wire::Http1, |_, _| async { None })).await;
        let resetting_server = on_server_thread(Server::start(Wire::Http2, |_, _| async { None })).await;
        for placement in PLACEMENTS {
            let client = stack_builder(&format!("http://{refused}"), placement).client().unwrap();
            check_error(&client.get("/v1").await.unwrap_err());
            check_error(&super::client(&closing_server, placement).get("/v1").await.unwrap_err());
            // The HTTP/2 server resets the stream. HTTP/1.1 clients and HTTP/2 clients fail in different ways.
            check_error(&super::client(&resetting_server, placement).get("/v1").await.unwrap_err());
            let transport = TransportConfig::new().with_http2_prior_knowledge();
            let client =
                stack_builder(&resetting_server.url(), placement).client_with_transport(transport).unwrap();
            check_error(&client.get("/v1").await.unwrap_err());
        }
        let mut seen = closing_server.seen();
        seen.extend(resetting_server.seen());
        assert!(PLACEMENTS.iter().all(|placement| seen.iter().any(|seen| placement.has_key(seen))));
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

/// hyper-util logs a warning with the path and query that it removes from a CONNECT request.
#[test]
fn connect_requests_do_not_show_the_key() {
    run_with_sockets(async {
        let server = server_with_statuses(Wire::Http1, [200]).await;
        for placement in PLACEMENTS {
            let request = Request::builder().method(Method::CONNECT).uri("/v1").body(Body::empty()).unwrap();
            check_client_result(&client(&server, placement).execute(request).await);
        }
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
