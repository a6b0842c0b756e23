//! Tests layers above the stack of a client.

use futures_util::StreamExt;
use tower::layer::layer_fn;
use tower_outbound::{Body, stack::OuterService};

use super::*;

/// Adds a header to each request, and records the name of the layer.
macro_rules! named {
    ($name:literal, $order:expr) => {{
        let order = Arc::clone(&$order);
        layer_fn(move |inner: OuterService| {
            let order = Arc::clone(&order);
            inner.map_request(move |mut request: Request<Body>| {
                order.lock().unwrap().push($name);
                request.headers_mut().insert("x-outer", HeaderValue::from_static($name));
                request
            })
        })
    }};
}

/// Forwards a number of requests, and then rejects each request like an open circuit breaker.
macro_rules! opening {
    ($passes:expr) => {
        layer_fn(move |inner: OuterService| {
            let left = Arc::new(AtomicUsize::new($passes));
            service_fn(move |request: Request<Body>| {
                let passed = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
                let inner = inner.clone();
                async move {
                    passed.map_err(|_| BoxError::from(DeliveryError::circuit_open("too many failures")))?;
                    inner.oneshot(request).await.map_err(BoxError::from)
                }
            })
        })
    };
}

#[tokio::test]
async fn outer_layers_see_each_call_once_and_the_first_is_the_outermost() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let builder = preset(&server.url()).with_outer_layer(named!("a", order));
    let client = builder.with_outer_layer(named!("b", order)).client().unwrap();
    let response = within(client.post("/orders").idempotent().body("{}")).await.unwrap();
    assert_eq!(report(&response).attempt_count(), 2);
    assert_eq!(text(response).await, "answer 2");
    assert_eq!(*order.lock().unwrap(), ["a", "b"]);
    let seen = server.seen();
    assert_eq!((seen.len(), seen[1].header("x-outer"), &*seen[1].body), (2, Some("b"), &b"{}"[..]));
    assert_eq!(seen[1].header("authorization"), Some(&*format!("Bearer {KEY}")));
}

#[tokio::test]
async fn outer_layer_is_ready_before_each_call_and_is_shared_by_clones() {
    let server = Server::start(Wire::Http1, |_, _| async {
        settle().await;
        Some(reply(200, "ok"))
    })
    .await;
    let layers = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&layers);
    let counting = layer_fn(move |inner: OuterService| {
        count.fetch_add(1, Relaxed);
        inner
    });
    let builder = preset(&server.url()).with_outer_layer(GlobalConcurrencyLimitLayer::new(2));
    let client = builder.with_outer_layer(counting).client().unwrap();
    let clients = [client.clone(), client];
    let calls = clients.iter().cycle().take(20).map(|client| status(client.get("/")));
    assert!(within(join_all(calls)).await.iter().all(|status| *status == 200));
    assert_eq!((server.seen().len(), server.most_in_progress(), layers.load(Relaxed)), (20, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn error_of_an_outer_layer_is_returned_without_a_permit_and_an_attempt() {
    type Case = (fn() -> BoxError, ErrorKind, bool, &'static str);
    let cases: [Case; 2] = [
        (|| "the cache is broken".into(), ErrorKind::Other, true, "service failed: the cache is broken"),
        (
            || DeliveryError::circuit_open("too many failures").into(),
            ErrorKind::CircuitOpen,
            false,
            "circuit breaker is open: the request was not sent: too many failures",
        ),
    ];
    for (error, kind, may_have_been_processed, text) in cases {
        let layer = layer_fn(move |_: OuterService| {
            service_fn(move |_: Request<Body>| async move { Err::<http::Response<Body>, _>(error()) })
        });
        let service = ScriptedService::new([200]);
        let limiter = LocalLimiter::sliding_window(Quota::per_minute(9).unwrap());
        let builder = preset("https://api.example.com").with_limiter(limiter.clone()).with_outer_layer(layer);
        let client = builder.client_with_service(service.clone()).unwrap();
        let start = Instant::now();
        let error = client.post("/").await.unwrap_err();
        assert_eq!((error.kind(), error.is_service(), format!("{error:#}")), (kind, true, text.to_owned()));
        assert_eq!(error.may_have_been_processed(), may_have_been_processed);
        assert!(error.report().is_none() && start.elapsed().is_zero());
        assert_eq!((service.calls(), limiter.snapshot().granted), (0, 0));
    }
}

#[test]
fn stack_with_outer_layers_cannot_be_a_layer() {
    let builder = preset("https://api.example.com").with_outer_layer(GlobalConcurrencyLimitLayer::new(5));
    let error = builder.layer().map(|layer| drop(layer.layer(()))).unwrap_err();
    assert!(error.to_string().contains("outer layers"), "{error}");
}

/// A redirect below the base URL is another call. A redirect that leaves the base URL is rejected.
#[tokio::test]
async fn redirect_is_followed_only_below_the_base_url() {
    for (target, is_followed) in
        [("/v1/new", true), ("/v2/new", false), ("http://other.example.com/v1", false)]
    {
        let server = Server::start(Wire::Http1, move |number, _| async move {
            let mut reply = reply(if number == 1 { 303 } else { 200 }, "moved");
            reply.headers_mut().insert("location", target.parse().unwrap());
            Some(reply)
        })
        .await;
        let builder = preset(&format!("{}/v1", server.url())).with_outer_layer(FollowRedirectLayer::new());
        let result = within(builder.client().unwrap().post("/old").body("{}")).await;
        let seen = server.seen();
        if !is_followed {
            let error = result.unwrap_err();
            assert!(error.is_invalid_request() && seen.len() == 1, "{error:?}");
            assert!(error.may_have_been_processed(), "the server has processed the POST");
            continue;
        }
        let response = result.unwrap();
        assert_eq!(report(&response).attempt_count(), 1);
        assert_eq!(text(response).await, "moved");
        let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
        assert_eq!(methods, ["POST", "GET"]);
        assert_eq!(seen[1].header("authorization"), Some(&*format!("Bearer {KEY}")));
        assert_ne!(seen[0].header("x-request-id"), seen[1].header("x-request-id"));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_redirect_target_does_not_hide_that_the_first_request_was_processed() {
    let see_other = || ScriptedResponse::status(303).with_header("location", "/new");
    let call = async |path: &'static str, responses: Vec<ScriptedResponse>, layer: FollowRedirectLayer| {
        let service = ScriptedService::new(responses);
        let builder = preset("https://api.example.com").with_outer_layer(layer);
        let client = builder.client_with_service(service).unwrap();
        match client.post(path).body("{}").await {
            Ok(response) => response.error_for_status().await.unwrap_err().may_have_been_processed(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectRefused);
                error.may_have_been_processed()
            }
        }
    };
    let refused = ScriptedResponse::refused;
    for preserve in [true, false] {
        let layer = || FollowRedirectLayer::new().preserve_extensions(preserve);
        assert!(call("/old", vec![see_other(), refused()], layer()).await);
        assert!(call("/old", vec![see_other(), 429.into()], layer()).await);
        // Without a redirect.
        assert!(!call("/old", vec![refused()], layer()).await);
        assert!(!call("/old", vec![429.into()], layer()).await);
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_redirect_target_does_not_hide_that_the_first_request_was_processed() {
    for (passes, processed) in [(0, false), (1, true)] {
        let service = ScriptedService::new([ScriptedResponse::status(303).with_header("location", "/new")]);
        let builder = preset("https://api.example.com").with_outer_layer(FollowRedirectLayer::new());
        let client = builder.with_outer_layer(opening!(passes)).client_with_service(service).unwrap();
        let error = client.post("/old").body("{}").await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_processed()), (ErrorKind::CircuitOpen, processed));
    }
}

/// The layer has already counted the call as a success.
#[tokio::test(start_paused = true)]
async fn open_outer_circuit_does_not_reject_the_retry_of_a_broken_body() {
    let stalled = ScriptedResponse::status(200).with_body("[").with_body_stalled();
    let builder = preset("https://api.example.com").with_body_idle_timeout(Duration::from_secs(1));
    let builder = builder.with_outer_layer(opening!(1));
    let service = ScriptedService::new([stalled, ScriptedResponse::status(200).with_body("[1]")]);
    let client = builder.client_with_service(service.clone()).unwrap();
    let response = client.get("/").await.unwrap();
    let report = report(&response).clone();
    assert_eq!(response.text().await.unwrap(), "[1]");
    assert_eq!((service.calls(), report.attempt_count()), (2, 2));
}

/// Returns a client that gets one response, whose body stalls until its idle timeout.
fn stalling(base_url: &str) -> Client {
    let stalled = ScriptedResponse::status(200).with_body("[").with_body_stalled();
    let builder = preset(base_url).with_body_idle_timeout(Duration::from_secs(1));
    builder.client_with_service(ScriptedService::new([stalled])).unwrap()
}

/// The stack of the first client must not continue a call of the other client.
#[tokio::test(start_paused = true)]
async fn broken_body_of_a_fallback_is_not_retried_at_the_first_service() {
    let other = stalling("https://other.example.com");
    let layer = layer_fn(move |inner: OuterService| {
        let other = other.clone();
        inner.and_then(move |response: http::Response<Body>| {
            let get = other.get("/");
            async move {
                if response.status() == 503 { get.await.map(Response::into_http) } else { Ok(response) }
            }
        })
    });
    let service = ScriptedService::new([503]);
    let client = preset("https://api.example.com").with_outer_layer(layer);
    let error = client.client_with_service(service.clone()).unwrap().get("/").fetch_text().await.unwrap_err();
    assert!(error.call().is_none() && error.is_timeout(), "{error:?}");
    assert_eq!(service.calls(), 3);
}

/// The response keeps its head, so that its report is that of the call.
#[tokio::test(start_paused = true)]
async fn broken_body_of_another_client_is_not_retried() {
    let files = stalling("https://files.example.com");
    let layer = layer_fn(move |inner: OuterService| {
        let files = files.clone();
        inner.and_then(move |link: http::Response<Body>| {
            let get = files.get("/file");
            async move {
                let file = get.await?.into_body();
                Ok::<_, Error>(link.map(|_| file))
            }
        })
    });
    let service = ScriptedService::new([ScriptedResponse::status(200).with_body("link")]);
    let client = preset("https://api.example.com").with_outer_layer(layer);
    let error = client.client_with_service(service.clone()).unwrap().get("/").fetch_text().await.unwrap_err();
    assert!(error.call().is_none() && error.is_timeout(), "{error:?}");
    assert_eq!(service.calls(), 1);
}

/// How the body of a stored response ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stored {
    Complete,
    Broken,
    Stalled,
}

/// Returns a client whose outer layer stores the first response with its extensions. Like a file, the body of the
/// stored response is not ready at once.
fn caching(status: u16, end: Stored) -> (Client, ScriptedService) {
    let layer = layer_fn(move |inner: OuterService| {
        let stored = Arc::new(Mutex::new(None::<http::response::Parts>));
        service_fn(move |request: Request<Body>| {
            let (inner, stored) = (inner.clone(), Arc::clone(&stored));
            async move {
                let hit = stored.lock().unwrap().clone();
                if let Some(head) = hit {
                    let last = async move {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        match end {
                            Stored::Complete => Ok(Frame::data(Bytes::from("ored"))),
                            Stored::Broken => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
                            Stored::Stalled => std::future::pending().await,
                        }
                    };
                    let first = ready(Ok(Frame::data(Bytes::from("st"))));
                    let frames = stream::once(first).chain(stream::once(last));
                    return Ok(http::Response::from_parts(head, Body::new(StreamBody::new(frames))));
                }
                let (head, body) = inner.oneshot(request).await?.into_parts();
                *stored.lock().unwrap() = Some(head.clone());
                Ok::<_, BoxError>(http::Response::from_parts(head, body))
            }
        })
    });
    let service = ScriptedService::new([ScriptedResponse::status(status).with_body("new")]);
    let builder = preset("https://api.example.com").with_outer_layer(layer);
    (builder.client_with_service(service.clone()).unwrap(), service)
}

#[tokio::test(start_paused = true)]
async fn broken_body_of_a_stored_response_is_an_error_without_a_retry() {
    let (client, service) = caching(200, Stored::Broken);
    assert_eq!(client.get("/").fetch_text().await.unwrap(), "new");
    let error = tokio::time::timeout(Duration::from_secs(600), client.get("/").fetch_text()).await;
    let error = error.expect("no endless loop").unwrap_err();
    assert!(error.call().is_none() && !error.is_timeout(), "{error:?}");
    assert!(error.source().is_some_and(|source| source.is::<std::io::Error>()), "{error:?}");
    assert_eq!((error.status(), service.calls()), (Some(StatusCode::OK), 1));
}

#[tokio::test(start_paused = true)]
async fn deadline_of_an_earlier_call_does_not_limit_a_stored_response() {
    for status in [200, 404] {
        let (client, service) = caching(status, Stored::Complete);
        client.get("/").await.unwrap();
        for age in [0, 61] {
            tokio::time::advance(Duration::from_secs(age)).await;
            let text = tokio::time::timeout(Duration::from_secs(600), client.get("/").fetch_text());
            match text.await.expect("no endless loop") {
                Ok(text) => assert_eq!((text.as_str(), status), ("stored", 200)),
                Err(error) => assert_eq!((error.excerpt(), status), ("stored", 404), "{age}"),
            }
        }
        assert_eq!(service.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn time_limit_of_a_call_limits_the_body_of_a_stored_response() {
    let (client, _) = caching(200, Stored::Stalled);
    client.get("/").await.unwrap();
    for (timeout, ends, limit) in
        [(Some(5), 5, "timeout of the request of 5s"), (None, 60, "total timeout of 60s")]
    {
        for age in [0, 1, 61] {
            tokio::time::advance(Duration::from_secs(age)).await;
            let (start, get) = (Instant::now(), client.get("/"));
            let get = match timeout {
                Some(timeout) => get.timeout(Duration::from_secs(timeout)),
                None => get,
            };
            let text = tokio::time::timeout(Duration::from_secs(600), get.fetch_text()).await;
            let error = text.expect("the deadline ends the body").unwrap_err();
            assert_eq!((start.elapsed(), error.is_timeout()), (Duration::from_secs(ends), true), "{age}");
            assert_eq!(error.source().unwrap().to_string(), format!("{limit} exceeded"));
        }
    }
}

/// The response of another client has a later deadline of its own.
#[tokio::test(start_paused = true)]
async fn time_limit_of_a_call_limits_the_body_of_a_fallback() {
    let stalled = ScriptedResponse::status(200).with_body("[").with_body_stalled();
    let other = preset("https://other.example.com").with_total_timeout(Duration::from_secs(300));
    let other = other.client_with_service(ScriptedService::new([stalled])).unwrap();
    let layer = layer_fn(move |_: OuterService| {
        let other = other.clone();
        service_fn(move |_: Request<Body>| {
            let get = other.get("/");
            // The total timeout does not limit this wait.
            async move {
                tokio::time::sleep(Duration::from_secs(4)).await;
                get.await.map(Response::into_http)
            }
        })
    });
    let client = preset("https://api.example.com").with_attempt_timeout(Duration::from_secs(3));
    let client = client.with_total_timeout(Duration::from_secs(3)).with_outer_layer(layer);
    let client = client.client_with_service(ScriptedService::new([200])).unwrap();
    let start = Instant::now();
    let error = client.get("/").timeout(Duration::from_secs(5)).fetch_text().await.unwrap_err();
    assert_eq!((start.elapsed(), error.is_timeout()), (Duration::from_secs(5), true));
    let error = client.get("/").fetch_text().await.unwrap_err();
    assert_eq!((start.elapsed(), error.is_timeout()), (Duration::from_secs(5 + 4 + 3), true));
}

#[tokio::test(start_paused = true)]
async fn timeout_of_a_request_ends_its_wait_in_an_outer_layer() {
    let slow = ScriptedResponse::status(200).with_delay(Duration::from_secs(60));
    let service = ScriptedService::new([slow]);
    let builder = preset("https://api.example.com").with_attempt_timeout(Duration::from_secs(61));
    let builder = builder.with_total_timeout(Duration::from_secs(99));
    let client = builder.with_outer_layer(GlobalConcurrencyLimitLayer::new(1));
    let client = client.client_with_service(service.clone()).unwrap();
    let first = tokio::spawn(client.get("/slow").send());
    settle().await;
    let start = Instant::now();
    let error = client.post("/").timeout(Duration::from_secs(5)).await.unwrap_err();
    assert_eq!((start.elapsed(), error.is_deadline()), (Duration::from_secs(5), true));
    assert_eq!(error.to_string(), "timeout of the request of 5s exceeded");
    assert!(!error.may_have_been_processed(), "{error:?}");
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    // A request that has reached the stack may have been processed.
    let error = client.post("/").timeout(Duration::from_secs(5)).await.unwrap_err();
    assert!(error.is_deadline() && error.may_have_been_processed(), "{error:?}");
    assert_eq!(service.calls(), 2);
}
