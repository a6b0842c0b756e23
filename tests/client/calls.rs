//! Tests calls over real connections: what the server and the caller receive, retries, and when connections are reused
//! and closed.

use http::header::CONTENT_TYPE;
use tower_outbound::{Body, preset};

use super::*;

#[tokio::test]
async fn every_preset_sends_a_key_and_content_type_and_request_id() {
    for (name, preset) in preset::ALL {
        let server = Server::start(Wire::Http1, |_, seen| async move {
            let mut reply = reply(200, format!("to {}", seen.method));
            reply.headers_mut().insert("x-request-id", "id-of-the-server".parse().unwrap());
            Some(reply)
        })
        .await;
        let client = preset(&server.url()).unwrap().with_api_key(ApiKey::new(KEY).unwrap()).client().unwrap();

        let get = within(client.get("/v1/resources?q=1")).await.unwrap();
        let post = within(client.post("v1/resources").body(r#"{"hello":"world"}"#)).await.unwrap();

        let seen = server.seen();
        assert_eq!(seen.len(), 2, "{name}");
        assert_eq!((&seen[0].method, seen[0].path_and_query()), (&Method::GET, "/v1/resources?q=1"));
        assert_eq!((&seen[1].method, seen[1].path_and_query()), (&Method::POST, "/v1/resources"));
        assert_eq!((&seen[0].body[..], &seen[1].body[..]), (&b""[..], &br#"{"hello":"world"}"#[..]));
        assert_eq!(seen[1].header("content-length"), Some("17"));
        for (seen, response) in seen.iter().zip([get, post]) {
            assert_eq!(seen.version, Version::HTTP_11);
            assert_eq!(seen.header("host"), server.url().strip_prefix("http://"));
            assert_eq!(seen.header("authorization").unwrap(), format!("Bearer {KEY}"));
            assert_eq!(seen.header("content-type"), Some("application/json"));
            let id = seen.header("x-request-id").unwrap();
            assert_eq!(id.len(), 36, "{id}");

            assert_eq!(response.status(), StatusCode::OK);
            let report = report(&response);
            assert_eq!(report.request_id().unwrap(), id);
            assert_eq!(report.server_request_id().unwrap(), "id-of-the-server");
            assert_eq!(outcomes(report), [Outcome::Response(StatusCode::OK)]);
            assert_eq!(report.stop_reason(), Some(StopReason::Success));
            assert_eq!(text(response).await, format!("to {}", seen.method));
        }
        assert_ne!(
            seen[0].header("x-request-id"),
            seen[1].header("x-request-id"),
            "each call has its own request id"
        );
    }
}

#[tokio::test]
async fn client_keeps_headers_that_the_caller_has_set() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let request = Request::patch("/v1")
        .header(CONTENT_TYPE, "text/csv")
        .header("x-request-id", "mine")
        .header("authorization", "Basic mine")
        .body("a,b")
        .unwrap();
    let response = within(client(&server).execute(request)).await.unwrap();
    assert_eq!(report(&response).request_id().unwrap(), "mine");

    let seen = &server.seen()[0];
    assert_eq!((&seen.method, &seen.body[..]), (&Method::PATCH, &b"a,b"[..]));
    assert_eq!(seen.header("content-type"), Some("text/csv"));
    assert_eq!(seen.header("x-request-id"), Some("mine"));
    assert_eq!(seen.header("authorization"), Some("Basic mine"));
    for name in ["content-type", "x-request-id", "authorization"] {
        assert_eq!(seen.headers.get_all(name).iter().count(), 1, "{name}");
    }
}

#[tokio::test]
async fn client_returns_a_redirect_without_following_it() {
    let target = Server::with_statuses(Wire::Http1, [200]).await;
    let location = format!("{}/v2", target.url());
    let server = Server::start(Wire::Http1, move |_, _| {
        let mut reply = reply(302, "over there");
        reply.headers_mut().insert("location", location.parse().unwrap());
        async move { Some(reply) }
    })
    .await;
    let response = within(client(&server).get("/v1")).await.unwrap();
    assert_eq!(response.status(), 302);
    assert_eq!(response.headers()["location"], format!("{}/v2", target.url()));
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn stalled_body_returns_an_error_after_the_idle_timeout() {
    for (wire, transport) in versions() {
        let server = Server::start(wire, |number, _| async move {
            Some(if number == 1 { stalled(200) } else { reply(200, "fine") })
        })
        .await;
        // Even on a busy machine, the body of the second response arrives within one second.
        let limit = Duration::from_millis(1_000);
        let client =
            preset(&server.url()).with_body_idle_timeout(limit).client_with_transport(transport).unwrap();

        let response = within(client.get("/")).await.unwrap();
        assert_eq!(response.status(), 200);
        let start = Instant::now();
        let error = within(response.into_body().bytes_up_to(1024)).await.unwrap_err();
        assert!(start.elapsed() >= limit);
        let error = error.downcast_ref::<Error>().expect("the error of the body is an error of this crate");
        assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
        assert_eq!(error.to_string(), "response body stalled for 1s");

        assert_eq!(text(within(client.get("/")).await.unwrap()).await, "fine");
        // The connection delivered no other response meanwhile, so its path may drop all packets.
        assert_eq!(server.connections(), 2);
    }
}

/// A response without a body has nothing to read.
#[cfg(feature = "decompression")]
#[tokio::test(start_paused = true)]
async fn dropped_response_without_a_body_is_not_cancelled_although_the_client_decompresses() {
    for method in [Method::HEAD, Method::POST] {
        let response = ScriptedResponse::status(202);
        let response = match method {
            Method::HEAD => response.with_header("content-length", "5"),
            _ => response,
        };
        let limiter = LocalLimiter::without_quota().with_max_in_flight(1).unwrap();
        let limiter = limiter.with_hold_after_cancel(Duration::from_secs(5));
        let client = preset("https://api.example.com").with_limiter(limiter).with_decompression();
        let client = client.client_with_service(ScriptedService::new([response])).unwrap();
        let start = Instant::now();
        for _ in 0..3 {
            drop(client.request(method.clone(), "/").await.unwrap());
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "{method}");
    }
}

/// The failed response arrives in parts. A response that arrives at once would not need to be drained.
#[tokio::test]
async fn client_drains_a_failed_response_and_reuses_its_connection() {
    let pause = Duration::from_millis(100);
    let backoff = ExponentialBackoff::new(pause, pause).unwrap().with_jitter(Jitter::none());
    let mut connections = Vec::new();
    // The client drains a response for at most 100 ms, which may not suffice on a busy machine. Therefore one success
    // in ten rounds is enough.
    for _ in 0..10 {
        let server = Server::start(Wire::Http1, |number, _| async move {
            Some(if number == 1 { slow(503) } else { reply(200, "fine") })
        })
        .await;
        let retry = RetryLayer::new().with_backoff(backoff);
        let client = preset(&server.url()).with_retry(retry).client().unwrap();
        assert_eq!(text(within(client.get("/")).await.unwrap()).await, "fine");
        assert_eq!(server.seen().len(), 2);
        connections.push(server.connections());
        if connections.ends_with(&[1]) {
            return;
        }
    }
    panic!("no round reused its connection; connections in each round: {connections:?}");
}

#[tokio::test]
async fn client_retries_without_draining_a_long_or_stalled_response() {
    let long = || reply(503, vec![b'x'; 16 * 1024 * 1024]);
    for failed in [long, || endless(503), || stalled(503)] {
        let server = Server::start(Wire::Http1, move |number, _| async move {
            Some(if number == 1 { failed() } else { reply(200, "fine") })
        })
        .await;
        let response = within(client(&server).get("/")).await.unwrap();
        assert_eq!((response.status().as_u16(), report(&response).attempt_count()), (200, 2));
        assert_eq!(text(response).await, "fine");
        assert_eq!(server.connections(), 2, "a connection with unread data is not reused");
    }
}

#[tokio::test]
async fn dropping_a_call_cancels_the_request_at_the_server_without_a_retry() {
    for (wire, transport) in versions() {
        let (arrived, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (arriving, dropping) = (Arc::clone(&arrived), Arc::clone(&dropped));
        let server = Server::start(wire, move |number, _| {
            let (arriving, dropping) = (Arc::clone(&arriving), OnDrop(Arc::clone(&dropping)));
            async move {
                if number == 1 {
                    arriving.notify_one();
                    std::future::pending::<()>().await;
                }
                std::mem::forget(dropping);
                Some(reply(200, "next"))
            }
        })
        .await;
        let client = preset(&server.url()).client_with_transport(transport).unwrap();
        tokio::select! {
            result = within(client.get("/")) => panic!("the call ended before the server responded: {result:?}"),
            () = arrived.notified() => {}
        }
        within(dropped.notified()).await;
        assert_eq!(text(within(client.get("/")).await.unwrap()).await, "next");
        assert_eq!(server.seen().len(), 2, "the dropped call is not retried");
    }
}

struct OnDrop(Arc<Notify>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A body with an exact `size_hint`. The default `is_end_stream` of the body returns false even after the last frame.
struct SizedFrames(Vec<&'static str>);

impl http_body::Body for SizedFrames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = (!self.0.is_empty()).then(|| self.0.remove(0));
        Poll::Ready(next.map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.iter().map(|chunk| chunk.len() as u64).sum())
    }
}

#[tokio::test]
async fn client_replays_a_body_of_known_length_that_was_not_polled_to_its_end() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let request = Request::put("/v1").body(Body::new(SizedFrames(vec!["hel", "lo"]))).unwrap();
    assert_eq!(status(client(&server).execute(request)).await, 200);
    assert!(server.seen().iter().all(|seen| seen.body == "hello"), "{:?}", server.seen());
    assert_eq!(server.seen().len(), 2);
}
