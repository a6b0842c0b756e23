//! Tests requests whose body is created for each attempt, and the time limits of one request.

use tower_outbound::{Body, call::Deadline};

use super::*;

/// Returns content that is larger than any single read or write of hyper. No part of it repeats, so that a test
/// detects lost or moved parts.
fn content() -> Vec<u8> {
    (0..300_000_u32).map(|at| ((at * 31) >> 3) as u8).collect()
}

/// Returns a function that creates a streamed body, and the number of its calls.
fn factory() -> (impl Fn() -> Body + Send + Sync + 'static, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let make = move || {
        count.fetch_add(1, Relaxed);
        let content = content();
        let chunks: Vec<_> = content.chunks(7_000).map(Bytes::copy_from_slice).collect();
        let frames = chunks.into_iter().map(|chunk| Ok::<_, BoxError>(Frame::data(chunk)));
        Body::new(StreamBody::new(stream::iter(frames)))
    };
    (make, made)
}

#[tokio::test]
async fn put_with_a_body_factory_is_retried_after_a_503_and_a_closed_connection() {
    for (wire, transport) in versions() {
        let server = Server::start(wire, |number, _| async move {
            match number {
                1 => Some(reply(503, "later")),
                2 => None,
                _ => Some(reply(200, "stored")),
            }
        })
        .await;
        let (make, made) = factory();
        // The retry layer records at most one byte of a body.
        let preset = preset(&server.url()).with_retry(quick_retry().with_replay_limit(1));
        let client = preset.client_with_transport(transport).unwrap();
        let response = within(client.put("/file").body_with(make)).await.unwrap();
        assert_eq!((response.status().as_u16(), report(&response).attempt_count()), (200, 3));
        assert_eq!(made.load(Relaxed), 3);
        let (seen, content) = (server.seen(), content());
        // The test uses no `assert_eq`, because its failure would print 300 KB.
        assert!(seen.len() == 3 && seen.iter().all(|seen| seen.body == content));
        assert!(seen.iter().all(|seen| seen.header("content-length").is_none()));
    }
}

#[tokio::test]
async fn client_resends_the_body_of_a_retried_put_unchanged() {
    for (body, expected) in
        [(Body::from(content()), content()), (factory().0(), content()), (Body::empty(), Vec::new())]
    {
        let server = Server::with_statuses(Wire::Http1, [503, 502, 200]).await;
        let request = Request::put("/v1/file").body(body).unwrap();
        let response = within(client(&server).execute(request)).await.unwrap();
        assert_eq!((response.status().as_u16(), report(&response).attempt_count()), (200, 3));
        let seen = server.seen();
        assert!(
            seen.len() == 3 && seen.iter().all(|seen| seen.body == expected && seen.method == Method::PUT)
        );
    }
}

#[tokio::test]
async fn request_with_a_body_factory_of_known_length_has_a_content_length() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let put = client(&server).put("/file").body_with(|| "hello");
    assert_eq!(within(put).await.unwrap().status(), 200);
    for seen in server.seen() {
        assert_eq!((&seen.body[..], seen.header("content-length")), (&b"hello"[..], Some("5")));
    }
}

#[tokio::test]
async fn error_of_a_body_from_a_factory_ends_the_call() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let put = client(&server).put("/file").body_with(move || {
        count.fetch_add(1, Relaxed);
        let failed: BoxError = std::io::Error::from(std::io::ErrorKind::NotFound).into();
        Body::new(StreamBody::new(stream::iter([Err::<Frame<Bytes>, _>(failed)])))
    });
    let error = within(put).await.unwrap_err();
    assert_eq!((error.kind(), made.load(Relaxed)), (ErrorKind::Body, 1), "{error:?}");
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotReplayable));
}

type SetLimit = fn(RequestBuilder) -> RequestBuilder;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn after(seconds: u64) -> Deadline {
    Deadline::after(secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn timeout_of_a_request_replaces_the_total_timeout_and_a_deadline_remains_an_upper_bound() {
    let limits: [(SetLimit, u64, &str); 6] = [
        (|get| get, 5, "total timeout of 5s exceeded"),
        (|get| get.timeout(secs(2)), 2, "timeout of the request of 2s exceeded"),
        (|get| get.timeout(secs(19)), 19, "timeout of the request of 19s exceeded"),
        (|get| get.timeout(secs(19)).extension(after(3)), 3, "deadline of 3s exceeded"),
        (|get| get.timeout(secs(2)).extension(after(3)), 2, "timeout of the request of 2s exceeded"),
        (|get| get.extension(after(19)), 5, "total timeout of 5s exceeded"),
    ];
    for (limit, ends, message) in limits {
        let retry = quick_retry().with_max_attempts(9).unwrap().without_budget();
        let preset = preset("http://127.0.0.1:9").with_total_timeout(secs(5)).with_retry(retry);
        let client = preset.client_with_service(ScriptedService::new([ScriptedResponse::never()])).unwrap();
        let start = Instant::now();
        let error = limit(client.get("/")).await.unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!((error.kind(), start.elapsed().as_secs()), (ErrorKind::Deadline, ends), "{message}");
    }
}
