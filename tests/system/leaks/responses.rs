//! Tests that calls with a response do not show the key.

use http::{Method, Version};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tower::{Layer, ServiceExt};

use super::*;
use crate::support::{Scripted, ScriptedService, get};

/// Returns each protocol, with a transport that uses it.
fn protocols() -> Vec<(Wire, TransportConfig, Version)> {
    #[cfg_attr(not(feature = "rustls"), allow(unused_mut, reason = "only TLS adds rows"))]
    let mut protocols = vec![
        (Wire::Http1, TransportConfig::new(), Version::HTTP_11),
        (Wire::Http2, TransportConfig::new().with_http2_prior_knowledge(), Version::HTTP_2),
    ];
    #[cfg(feature = "rustls")]
    for (name, version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        use crate::support::certificate::{certificate, trusting, wire};

        let certificate = certificate();
        protocols.push((wire(&certificate, &[name]), trusting(&certificate), version));
    }
    protocols.iter().for_each(|(_, transport, _)| check_debug(transport));
    protocols
}

/// The first call succeeds at its third attempt, the second one fails three times, and the last one is retried once.
#[test]
fn responses_over_each_protocol_do_not_show_the_key() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            for (wire, transport, version) in protocols() {
                let statuses = [503, 503, 200, 503, 503, 503, 401, 403, 500, 404];
                let server = server_with_statuses(wire, statuses).await;
                let builder = stack_builder(&server.url(), placement);
                let client = builder.client_with_transport(transport).unwrap();
                for expected in [200, 503, 401, 403, 404] {
                    let response = send(client.put("/v1/resources?q=1").body("text")).await;
                    assert_eq!((response.status().as_u16(), response.version()), (expected, version));
                    check_debug(&response.into_body().bytes_up_to(1_024).await.unwrap());
                }
                assert_eq!(send(client.post("/v1")).await.status(), 404);
                assert!(
                    server.seen().iter().all(|seen| placement.has_key(seen)),
                    "{placement:?} {version:?}"
                );
            }
        }
    });
    // rustls logs through the `log` crate. The events of rustls have the target `log`, and have their original target
    // in a field.
    let targets = TARGETS.lock().unwrap();
    assert!(targets.contains("log") || cfg!(not(feature = "rustls")), "rustls is not in {targets:?}");
}

/// hyper-util logs a warning with the path and query that it removes from a CONNECT request.
#[test]
fn keys_that_the_caller_adds_and_connect_requests_are_not_shown() {
    run_with_sockets(async {
        let server = server_with_statuses(Wire::Http1, [200]).await;
        let percent = utf8_percent_encode(KEY, NON_ALPHANUMERIC);
        for placement in PLACEMENTS {
            let client = client(&server, placement);
            let request = client.get(format!("/v1?api_key={percent}"));
            send(request.header("authorization", KEY).header("x-api-key", KEY)).await;
            match client.request(Method::CONNECT, "/v1").await {
                Ok(response) => check_response(&response, response.extensions()),
                Err(error) => check_error(&error),
            }
        }
    });
}

#[test]
fn key_that_is_replaced_after_a_401_is_not_shown() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            let server = server_with_statuses(Wire::Http1, [401, 200]).await;
            let keys = tower_outbound::auth::KeySource::from(refreshing_key());
            let builder = stack_builder(&server.url(), placement).with_keys(keys.clone());
            check_debug(&builder);
            let client = builder.client().unwrap();
            for _ in 0..3 {
                send(client.get("/v1")).await;
            }
            check_debug(&(&keys, keys.current().await.unwrap(), keys.last_error()));
            let seen = server.seen();
            assert!(seen.iter().all(|seen| placement.has_key(seen)));
            let [rejected, sent] = [0, 1].map(|at| format!("{:?}", seen[at]));
            assert!(placement != Placement::Query || rejected != sent, "the same key was sent again");
        }
    });
}

/// The inner service may log its requests. The `Debug` output of a request shows the key only in the URI, and only if
/// the key is in the query.
#[test]
fn debug_of_the_inner_request_shows_no_key_outside_the_uri() {
    run_paused(async {
        for placement in PLACEMENTS {
            let inner = ScriptedService::new([Scripted::Status(200)]);
            let service = stack_builder("https://host", placement).layer().unwrap().layer(inner.clone());
            service.oneshot(get("https://host/v1")).await.unwrap();
            let mut head = inner.seen().remove(0).head;
            check_debug(&head.headers);
            check_debug(&head.extensions);
            if placement == Placement::Query {
                let uri = std::mem::take(&mut head.uri).to_string();
                assert!(SEARCH.find(&uri).is_some(), "the URI has no key");
            } else {
                assert!(head.headers.values().any(|value| SEARCH.find(value.to_str().unwrap()).is_some()));
            }
            check_debug(&head);
        }
    });
}
