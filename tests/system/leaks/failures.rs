//! Calls without an answer.

use std::{panic::resume_unwind, time::Duration};

use http::{Method, Request};
use tokio::net::TcpSocket;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Body, BoxError, Quota,
    auth::{FreshKey, KeySource, RefreshingKey},
};

use super::{
    probe::{Scripted, ScriptedService, get, millis, secs},
    server::{cut_off, endless, stalled},
    *,
};

#[test]
fn after_a_timeout_of_the_attempt_or_the_call() {
    live(async {
        let server = serve(Server::start(Wire::Http1, |_, _| std::future::pending())).await;
        for place in PLACES {
            let preset = preset(&server.url(), place);
            let attempts = preset.clone().with_attempt_timeout(millis(150)).with_total_timeout(secs(20));
            let call = preset.with_total_timeout(millis(300));
            for (preset, is_deadline) in [(attempts, false), (call, true)] {
                let error = preset.client().unwrap().get("/v1").await.unwrap_err();
                assert!(error.is_timeout() && error.is_deadline() == is_deadline, "{error:?}");
                failed(&error);
            }
        }
        assert!(server.seen().len() > 8);
    });
}

#[test]
fn when_there_is_no_connection_or_it_breaks() {
    live(async {
        // Bound and not listening: it refuses, and no other process can be given the port meanwhile.
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let refused = bound.local_addr().unwrap();
        let hangs_up = serve(Server::start(Wire::Http1, |_, _| async { None })).await;
        let resets = serve(Server::start(Wire::Http2, |_, _| async { None })).await;
        for place in PLACES {
            let client = preset(&format!("http://{refused}"), place).client().unwrap();
            failed(&client.get("/v1").await.unwrap_err());
            failed(&super::client(&hangs_up, place).get("/v1").await.unwrap_err());
            // Of another version than the client, and of the same.
            failed(&super::client(&resets, place).get("/v1").await.unwrap_err());
            let transport = tower_outbound::client::Transport::new().with_http2_prior_knowledge();
            let client = preset(&resets.url(), place).client_with_transport(transport).unwrap();
            failed(&client.get("/v1").await.unwrap_err());
        }
        let mut seen = hangs_up.seen();
        seen.extend(resets.seen());
        assert!(PLACES.iter().all(|place| seen.iter().any(|seen| place.reached(seen))));
    });
}

#[test]
fn when_the_body_of_an_answer_fails() {
    live(async {
        for place in PLACES {
            for wire in [Wire::Http1, Wire::Http2] {
                let server = serve(Server::start(wire.clone(), |number, _| async move {
                    Some(match number {
                        1 => cut_off(200),
                        2 => stalled(200),
                        _ => endless(200),
                    })
                }));
                let server = server.await;
                let mut transport = tower_outbound::client::Transport::new();
                if let Wire::Http2 = wire {
                    transport = transport.with_http2_prior_knowledge();
                }
                let preset = preset(&server.url(), place).with_body_idle_timeout(millis(30));
                let client = preset.client_with_transport(transport).unwrap();
                for _ in 0..3 {
                    let response = client.get("/v1").await.unwrap();
                    answered(&response);
                    let error = response.into_body().collect(64 * 1_024).await.unwrap_err();
                    chain(&*error);
                }
            }
        }
    });
}

#[test]
fn when_the_limiter_refuses_or_the_deadline_is_too_near() {
    paused(async {
        for place in PLACES {
            let quota = Quota::per_minute(2).unwrap().with_burst(1).unwrap();
            let probe = ScriptedService::new([Scripted::Status(200)]);
            let preset = preset("https://host", place).with_quota(quota).with_total_timeout(secs(5));
            let service = preset.layer().unwrap().layer(probe);
            hidden(&service);
            answered(&service.clone().oneshot(get("https://host/v1")).await.unwrap());
            let error = service.oneshot(get("https://host/v1")).await.unwrap_err();
            assert!(error.is_rate_limited());
            failed(&error);
        }
    });
}

#[test]
fn when_the_call_is_dropped_midway() {
    live(async {
        for (wire, http2) in [(Wire::Http1, false), (Wire::Http2, true)] {
            let server = serve(Server::start(wire, |_, _| std::future::pending())).await;
            for place in PLACES {
                let mut transport = tower_outbound::client::Transport::new();
                if http2 {
                    transport = transport.with_http2_prior_knowledge();
                }
                let client = preset(&server.url(), place).client_with_transport(transport).unwrap();
                let before = server.seen().len();
                let call = tokio::spawn(client.get("/v1"));
                while server.seen().len() == before {
                    tokio::time::sleep(millis(1)).await;
                }
                call.abort();
                let error = call.await.unwrap_err();
                hidden(&error);
                unsaid(&error);
            }
        }
    });
}

#[test]
fn when_the_key_does_not_fit() {
    paused(async {
        let layer = preset("https://host", Place::Query).layer().unwrap();
        let probe = ScriptedService::new([Scripted::Status(200)]);
        let long = format!("https://host/v1?{}", "x".repeat(usize::from(u16::MAX) - 40));
        let error = layer.layer(probe.clone()).oneshot(get(&long)).await.unwrap_err();
        assert!(error.is_auth());
        failed(&error);
        assert_eq!(probe.calls(), 0);
    });
}

/// hyper-util warns of the path and the query that it strips off a CONNECT.
#[test]
fn when_the_method_is_connect() {
    live(async {
        let server = statuses(Wire::Http1, [200]).await;
        for place in PLACES {
            let request = Request::builder().method(Method::CONNECT).uri("/v1").body(Body::empty()).unwrap();
            ended(&client(&server, place).request(request).await);
        }
    });
}

/// With what others have put into a provider's panic, and with a key that came too late.
#[test]
fn when_no_key_is_to_be_had() {
    fn keys<F, Fut>(provider: F) -> KeySource
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<FreshKey, BoxError>> + Send + 'static,
    {
        RefreshingKey::new(provider).with_timeout(Duration::from_millis(100)).unwrap().into()
    }
    /// Unlike `panic!` it says nothing by itself; what it holds is anything.
    fn panics() -> Result<FreshKey, BoxError> {
        resume_unwind(Box::new(KEY))
    }
    paused(async move {
        let providers: [fn() -> KeySource; 5] = [
            || keys(|| async { Err::<FreshKey, _>(BoxError::from("the vault is shut")) }),
            // What makes no key of the answer of a vault.
            || keys(|| async { Ok::<_, BoxError>(FreshKey::new(ApiKey::new(format!("{KEY}\n"))?)) }),
            // Unlike `panic!` it says nothing by itself, and the payload may hold anything.
            || keys(|| async { panics() }),
            || keys(|| async { Ok::<_, BoxError>(FreshKey::new(key()).with_lifetime(Duration::ZERO)) }),
            || {
                keys(|| async {
                    let key = key();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Ok::<_, BoxError>(FreshKey::new(key))
                })
            },
        ];
        for place in PLACES {
            for keys in providers {
                let keys = keys();
                let probe = ScriptedService::new([Scripted::Status(200)]);
                let preset = preset("https://host", place).with_keys(keys.clone());
                let service = preset.layer().unwrap().layer(probe.clone());
                for _ in 0..2 {
                    let error = service.clone().oneshot(get("https://host/v1")).await.unwrap_err();
                    assert!(error.is_auth(), "{error:?}");
                    failed(&error);
                }
                chain(&keys.last_error().unwrap());
                assert_eq!(probe.calls(), 0);
            }
        }
    });
}
