//! Tests retries and replayed request bodies over real connections.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::time::Instant;
use tower_outbound::{
    Body, BoxError,
    call::{Outcome, StopReason},
    retry::RetryRejected,
};

use super::{
    client, outcomes, preset, quick_retry, report, status,
    support::server::{Server, Wire, reply, settle, within},
    text,
};

const UNAVAILABLE: Outcome = Outcome::Response(StatusCode::SERVICE_UNAVAILABLE);
const OK: Outcome = Outcome::Response(StatusCode::OK);

#[tokio::test]
async fn client_retries_get_after_503_with_the_same_headers() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let response = within(client(&server).get("/v1?q=1")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(outcomes(report(&response)), [UNAVAILABLE, OK]);
    assert_eq!(report(&response).stop_reason(), Some(StopReason::Success));
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].headers, seen[1].headers);
    assert_eq!((seen[1].path_and_query(), seen[1].header("x-request-id").unwrap().len()), ("/v1?q=1", 36));
    assert_eq!(text(response).await, "answer 2");
}

#[tokio::test]
async fn client_does_not_retry_post_after_503() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let response = within(client(&server).post("/v1").body("once")).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(report(&response).stop_reason(), Some(StopReason::NotIdempotent));
    assert_eq!(report(&response).attempt_count(), 1);
    assert_eq!(server.seen().len(), 1);
    assert_eq!(text(response).await, "answer 1");
}

/// Responds to the first request with a 429 and `Retry-After: 1`, and to later requests with a 200.
async fn throttling_server() -> Server {
    Server::start(Wire::Http1, |number, _| async move {
        let mut response = reply(if number == 1 { 429 } else { 200 }, format!("answer {number}"));
        if number == 1 {
            response.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
        }
        Some(response)
    })
    .await
}

#[tokio::test]
async fn client_retries_post_after_429_and_its_retry_after() {
    let server = throttling_server().await;
    let start = Instant::now();
    let response = within(client(&server).post("/v1").body("once")).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(outcomes(report(&response)), [Outcome::Rejected(StatusCode::TOO_MANY_REQUESTS), OK]);
    assert_eq!(report(&response).stop_reason(), Some(StopReason::Success));
    assert_eq!(text(response).await, "answer 2");
    let bodies: Vec<_> = server.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, ["once", "once"]);
}

#[tokio::test]
async fn client_returns_the_429_of_a_post_if_only_idempotent_requests_are_retried() {
    let server = throttling_server().await;
    let retry = quick_retry().with_retry_rejected(RetryRejected::Idempotent);
    let client = preset(&server.url()).with_retry(retry).client().unwrap();
    let response = within(client.post("/v1").body("once")).await.unwrap();
    assert_eq!((response.status().as_u16(), server.seen().len()), (429, 1));
    assert_eq!(report(&response).stop_reason(), Some(StopReason::NotIdempotent));
}

/// The rule orders a retry after every attempt, but a 200 never states that the request was not processed.
#[tokio::test]
async fn client_never_retries_a_post_after_200() {
    let server = Server::start(Wire::Http1, |_, _| async {
        let mut response = reply(200, "done");
        for (name, value) in
            [("retry-after", "1"), ("x-ratelimit-remaining", "0"), ("stripe-should-retry", "true")]
        {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Some(response)
    })
    .await;
    let client = preset(&server.url()).with_retry(quick_retry().retry_if(|_, _| true)).client().unwrap();
    let response = within(client.post("/v1").body("once")).await.unwrap();
    assert_eq!((response.status().as_u16(), server.seen().len()), (200, 1));
    assert_eq!(report(&response).stop_reason(), Some(StopReason::NotIdempotent));
}

#[tokio::test]
async fn client_resends_the_body_of_a_retried_put_unchanged() {
    // The content is larger than any single read or write of hyper. No part of the content repeats, so the test detects
    // lost or moved parts.
    let content: Vec<u8> = (0..300_000_u32).map(|at| ((at * 31) >> 3) as u8).collect();
    let chunks: Vec<_> = content
        .chunks(7_000)
        .map(|chunk| Ok::<_, BoxError>(Frame::data(Bytes::copy_from_slice(chunk))))
        .collect();
    let bodies =
        [Body::from(content.clone()), Body::new(StreamBody::new(stream::iter(chunks))), Body::empty()];
    for (wire, body) in [Wire::Http1, Wire::Http1, Wire::Http1].into_iter().zip(bodies) {
        let expected = if http_body::Body::is_end_stream(&body) { Vec::new() } else { content.clone() };
        let server = Server::with_statuses(wire, [503, 502, 200]).await;
        let request = Request::put("/v1/file").body(body).unwrap();
        let response = within(client(&server).execute(request)).await.unwrap();
        assert_eq!((response.status().as_u16(), report(&response).attempt_count()), (200, 3));
        let seen = server.seen();
        assert_eq!(seen.len(), 3);
        // The test uses no `assert_eq`, because its failure would print 300 KB.
        assert!(seen.iter().all(|seen| seen.body == expected && seen.method == Method::PUT));
    }
}

#[tokio::test]
async fn client_does_not_retry_a_request_if_its_body_exceeds_the_replay_limit() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let client = preset(&server.url()).with_retry(quick_retry().with_replay_limit(3)).client().unwrap();
    let request = Request::put("/v1").body("four").unwrap();
    let response = within(client.execute(request)).await.unwrap();
    assert_eq!((response.status().as_u16(), server.seen().len()), (503, 1));
    assert_eq!(report(&response).stop_reason(), Some(StopReason::NotReplayable));
    assert_eq!(server.seen()[0].body, "four");
}

#[tokio::test]
async fn client_does_not_retry_post_after_the_server_has_read_the_request() {
    // On a reused connection, hyper-util itself may retry a request.
    for reused in [false, true] {
        let server = Server::start(Wire::Http1, |_, seen| async move {
            (seen.method == Method::GET).then(|| reply(200, "fine"))
        })
        .await;
        let client = client(&server);
        if reused {
            assert_eq!(within(status(client.get("/"))).await, 200);
            settle().await;
        }
        let error = within(client.post("/v1").body("once")).await.unwrap_err();
        assert!(error.is_service(), "{error:?}");
        let report = error.report().unwrap();
        assert_eq!(outcomes(report), [Outcome::Failed]);
        assert_eq!(report.stop_reason(), Some(StopReason::NotIdempotent));
        let posts = server.seen().iter().filter(|seen| seen.method == Method::POST).count();
        assert_eq!((posts, server.connections()), (1, 1));
    }
}

#[tokio::test]
async fn client_retries_get_after_the_server_closed_the_connection() {
    let server =
        Server::start(Wire::Http1, |number, _| async move { (number == 3).then(|| reply(200, "at last")) })
            .await;
    let response = within(client(&server).get("/v1")).await.unwrap();
    assert_eq!(outcomes(report(&response)), [Outcome::Failed, Outcome::Failed, OK]);
    assert_eq!((server.seen().len(), server.connections()), (3, 3));
    assert_eq!(text(response).await, "at last");
}

#[tokio::test]
async fn call_returns_an_error_if_the_server_closes_every_connection() {
    let server = Server::start(Wire::Http1, |_, _| async { None }).await;
    let error = within(client(&server).get("/v1")).await.unwrap_err();
    assert!(error.is_service(), "{error:?}");
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::Failed; 3]);
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Exhausted));
    assert_eq!(server.seen().len(), 3);
}

/// A body with an exact `size_hint`. The default `is_end_stream` of the body returns false even after the last frame.
struct SizedFrames(Vec<&'static str>);

impl http_body::Body for SizedFrames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let next = (!self.0.is_empty()).then(|| self.0.remove(0));
        std::task::Poll::Ready(
            next.map(|chunk| Ok(http_body::Frame::data(Bytes::from_static(chunk.as_bytes())))),
        )
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.iter().map(|chunk| chunk.len() as u64).sum())
    }
}

#[tokio::test]
async fn client_replays_a_body_of_known_length_that_was_not_polled_to_its_end() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let request = http::Request::put("/v1").body(Body::new(SizedFrames(vec!["hel", "lo"]))).unwrap();
    assert_eq!(status(client(&server).execute(request)).await, 200);
    assert!(server.seen().iter().all(|seen| seen.body == "hello"), "{:?}", server.seen());
    assert_eq!(server.seen().len(), 2);

    // Only the `content-length` header states the length of this stream.
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let frames = ["hel", "lo"].map(|chunk| {
        Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from_static(chunk.as_bytes())))
    });
    let stream = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
    let request = http::Request::put("/v1").header("content-length", "5").body(Body::new(stream)).unwrap();
    assert_eq!(status(client(&server).execute(request)).await, 200);
    assert!(server.seen().iter().all(|seen| seen.body == "hello"), "{:?}", server.seen());
}
