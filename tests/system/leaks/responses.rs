//! Tests that calls with a response do not show the key.

use http::{Request, Version};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tower::{Layer, ServiceExt};
use tower_outbound::Body;

use super::*;
use crate::support::{Scripted, ScriptedService, get};

#[test]
fn http1_and_http2_responses_do_not_show_the_key() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            for (wire, version) in [(Wire::Http1, Version::HTTP_11), (Wire::Http2, Version::HTTP_2)] {
                let server = server_with_statuses(wire, [200]).await;
                let mut transport = TransportConfig::new();
                if version == Version::HTTP_2 {
                    transport = transport.with_http2_prior_knowledge();
                }
                check_debug(&transport);
                let builder = stack_builder(&server.url(), placement);
                let client = builder.client_with_transport(transport).unwrap();
                let response = client.post("/v1/resources?q=1").body("text").await.unwrap();
                check_client_response(&response);
                assert_eq!(response.version(), version);
                check_debug(&response.into_body().bytes_up_to(1_024).await.unwrap());
                assert!(placement.has_key(&server.seen()[0]), "{placement:?} {version:?}");
            }
        }
    });
}

#[test]
fn keys_that_the_caller_adds_to_a_request_are_not_shown() {
    run_with_sockets(async {
        let server = server_with_statuses(Wire::Http1, [200]).await;
        let percent = utf8_percent_encode(KEY, NON_ALPHANUMERIC);
        for placement in PLACEMENTS {
            let url = format!("/v1?api_key={percent}");
            let request = Request::get(url).header("authorization", KEY).header("x-api-key", KEY);
            let call = client(&server, placement).execute(request.body(Body::empty()).unwrap());
            check_client_response(&call.await.unwrap());
        }
    });
}

#[test]
fn failure_statuses_do_not_show_the_key() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            for statuses in [[503, 503, 200], [503; 3], [401; 3], [403; 3], [500, 404, 200]] {
                let server = server_with_statuses(Wire::Http1, statuses).await;
                let client = client(&server, placement);
                check_client_response(&client.get("/v1").await.unwrap());
                check_client_response(&client.post("/v1").body("text").await.unwrap());
                assert!(server.seen().iter().all(|seen| placement.has_key(seen)), "{placement:?}");
            }
        }
    });
}

#[test]
fn key_that_is_replaced_after_a_401_is_not_shown() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            let server = on_server_thread(Server::start(Wire::Http1, |number, _| async move {
                Some(reply(if number == 1 { 401 } else { 200 }, ""))
            }));
            let server = server.await;
            let keys = tower_outbound::auth::KeySource::from(refreshing_key());
            let builder = stack_builder(&server.url(), placement).with_keys(keys.clone());
            check_debug(&builder);
            let client = builder.client().unwrap();
            for _ in 0..3 {
                check_client_response(&client.get("/v1").await.unwrap());
            }
            check_debug(&(&keys, keys.current().await.unwrap(), keys.last_error()));
            assert!(server.seen().iter().all(|seen| placement.has_key(seen)));
            let requests: Vec<_> = server.seen().iter().map(|seen| format!("{seen:?}")).collect();
            let is_replaced = requests[0] != requests[2];
            assert!(placement != Placement::Query || is_replaced, "the same key was sent again");
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
            match placement {
                Placement::Query => {
                    let uri = std::mem::take(&mut head.uri).to_string();
                    assert!(SEARCH.find(&uri).is_some(), "the URI has no key");
                }
                _ => {
                    assert!(head.headers.values().any(|value| SEARCH.find(value.to_str().unwrap()).is_some()))
                }
            }
            check_debug(&head);
        }
    });
}
