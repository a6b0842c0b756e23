//! Calls that are answered.

use http::{Request, Version};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tower::{Layer, ServiceExt};
use tower_outbound::{Body, client::Transport};

use super::{
    probe::{Scripted, ScriptedService, Seen, get},
    *,
};

#[test]
fn in_an_answer_over_either_version() {
    live(async {
        for place in PLACES {
            for (wire, version) in [(Wire::Http1, Version::HTTP_11), (Wire::Http2, Version::HTTP_2)] {
                let server = statuses(wire, [200]).await;
                let mut transport = Transport::new();
                if version == Version::HTTP_2 {
                    transport = transport.with_http2_prior_knowledge();
                }
                hidden(&transport);
                let client = preset(&server.url(), place).client_with_transport(transport).unwrap();
                let call = client.post("/v1/resources?q=1", "text");
                let response = call.await.unwrap();
                answered(&response);
                assert_eq!(response.version(), version);
                hidden(&response.into_body().collect(1_024).await.unwrap());
                assert!(place.reached(&server.seen()[0]), "{place:?} {version:?}");
            }
        }
    });
}

/// One that the caller puts on the request itself is no business of anybody's either.
#[test]
fn when_the_caller_brings_a_key_of_its_own() {
    live(async {
        let server = statuses(Wire::Http1, [200]).await;
        let percent = utf8_percent_encode(KEY, NON_ALPHANUMERIC);
        for place in PLACES {
            let url = format!("/v1?api_key={percent}");
            let request = Request::get(url).header("authorization", KEY).header("x-api-key", KEY);
            let call = client(&server, place).request(request.body(Body::empty()).unwrap());
            answered(&call.await.unwrap());
        }
    });
}

#[test]
fn in_answers_that_are_failures() {
    live(async {
        for place in PLACES {
            for script in [[503, 503, 200], [503; 3], [401; 3], [403; 3], [500, 404, 200]] {
                let server = statuses(Wire::Http1, script).await;
                let client = client(&server, place);
                answered(&client.get("/v1").await.unwrap());
                answered(&client.post("/v1", "text").await.unwrap());
                assert!(server.seen().iter().all(|seen| place.reached(seen)), "{place:?}");
            }
        }
    });
}

#[test]
fn when_the_server_asks_for_a_pause() {
    live(async {
        for place in PLACES {
            let server = serve(Server::start(Wire::Http1, |number, _| async move {
                let mut reply = reply(if number == 1 { 429 } else { 200 }, "");
                reply.headers_mut().insert("retry-after-ms", 10.into());
                Some(reply)
            }));
            let server = server.await;
            answered(&client(&server, place).get("/v1").await.unwrap());
            assert_eq!(server.seen().len(), 2);
        }
    });
    paused(async {
        for place in PLACES {
            let probe =
                ScriptedService::new([Scripted::RetryAfter(429, "30"), Scripted::RetryAfter(503, "3600")]);
            let service = preset("https://host", place).layer().unwrap().layer(probe);
            for _ in 0..2 {
                let call = service.clone().oneshot(get("https://host/v1"));
                ended(&call.await);
            }
        }
    });
}

#[test]
fn when_the_server_refuses_a_key_that_can_be_replaced() {
    live(async {
        for place in PLACES {
            let server = serve(Server::start(Wire::Http1, |number, _| async move {
                Some(reply(if number == 1 { 401 } else { 200 }, ""))
            }));
            let server = server.await;
            let keys = tower_outbound::auth::KeySource::from(provided());
            let preset = preset(&server.url(), place).with_keys(keys.clone());
            hidden(&preset);
            let client = preset.client().unwrap();
            for _ in 0..3 {
                answered(&client.get("/v1").await.unwrap());
            }
            hidden(&(&keys, keys.current().await.unwrap(), keys.last_error()));
            assert!(server.seen().iter().all(|seen| place.reached(seen)));
            let uris: Vec<_> = server.seen().iter().map(|seen| format!("{seen:?}")).collect();
            assert!(place != Place::Query || uris[0] != uris[2], "another key was sent");
        }
    });
}

#[test]
fn when_the_server_redirects() {
    live(async {
        for place in PLACES {
            let server = serve(Server::start(Wire::Http1, |_, seen| async move {
                let mut reply = reply(302, "");
                // As a server does that keeps the query.
                let to = format!("https://elsewhere.test{}", seen.uri.path());
                reply.headers_mut().insert("location", to.parse().unwrap());
                Some(reply)
            }));
            let server = server.await;
            answered(&client(&server, place).get("/v1").await.unwrap());
        }
    });
}

#[test]
fn when_the_request_goes_elsewhere() {
    paused(async {
        for place in PLACES {
            let probe = ScriptedService::new([Scripted::Status(200)]);
            let service = preset("https://host", place).layer().unwrap().layer(probe.clone());
            for url in ["https://elsewhere.test/v1", "http://host/v1", "https://host:8443/"] {
                answered(&service.clone().oneshot(get(url)).await.unwrap());
            }
            for Seen { head, .. } in probe.seen() {
                search("a uri", &head.uri.to_string());
                head.headers.values().for_each(|value| search("a header", value.to_str().unwrap()));
            }
            assert_eq!(probe.calls(), 3);
            // The ready client doesn't even go there.
            let client = preset(SITE, place).client().unwrap();
            let request = Request::get("https://elsewhere.test/v1").body(Body::empty()).unwrap();
            failed(&client.request(request).await.unwrap_err());
        }
    });
}

/// What a service under the layers is given, and may log: all of it in a header, and all but the URI in a query.
#[test]
fn in_debug_of_the_request_that_carries_it() {
    paused(async {
        for place in PLACES {
            let probe = ScriptedService::new([Scripted::Status(200)]);
            let service = preset("https://host", place).layer().unwrap().layer(probe.clone());
            service.oneshot(get("https://host/v1")).await.unwrap();
            let mut head = probe.seen().remove(0).head;
            hidden(&head.headers);
            hidden(&head.extensions);
            match place {
                Place::Query => {
                    let uri = std::mem::take(&mut head.uri).to_string();
                    assert!(SEARCH.find(&uri).is_some(), "as the manual says");
                }
                _ => {
                    assert!(head.headers.values().any(|value| SEARCH.find(value.to_str().unwrap()).is_some()))
                }
            }
            hidden(&head);
        }
    });
}
