//! Tests requests whose body is created for each attempt, and the time limits of one request.

use http::request::Parts;
use http_body::SizeHint;
use tower_outbound::{
    Body,
    auth::{BoxSignFuture, Sign},
    call::Deadline,
};

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
async fn estimate_reads_the_size_of_the_body_on_each_attempt() {
    let server = Server::with_statuses(Wire::Http1, [503, 200, 200, 200, 200]).await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sizes);
    let preset = preset(&server.url()).with_retry(quick_retry()).with_limit(|limit| {
        limit.with_estimate(move |head| {
            seen.lock().unwrap().push(head.body_size());
            Amounts::NONE
        })
    });
    let client = preset.client().unwrap();
    within(client.put("/file").body("hello")).await.unwrap();
    within(client.get("/file")).await.unwrap();
    within(client.put("/file").body_with(factory().0)).await.unwrap();
    within(client.put("/file").header("content-length", "300000").body_with(factory().0)).await.unwrap();
    let expected = [Some(5), Some(5), Some(0), None, Some(300_000)];
    assert_eq!(*sizes.lock().unwrap(), expected);
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

/// A body of `remaining` chunks of five bytes, which announces another length.
struct Announced {
    length: Option<u64>,
    remaining: usize,
    knows_end: bool,
}

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(remaining) = self.remaining.checked_sub(1) else { return Poll::Ready(None) };
        self.remaining = remaining;
        self.length = self.length.map(|length| length.saturating_sub(5));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"12345")))))
    }

    fn is_end_stream(&self) -> bool {
        self.knows_end && self.remaining == 0
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// Reads the whole body, and signs nothing.
struct Reader;

impl Sign for Reader {
    fn body_limit(&self) -> Option<usize> {
        Some(100)
    }

    fn sign<'a>(&'a self, _: &'a mut Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn upload_of_another_length_than_announced_fails_and_is_not_resent() {
    // Whether the length is announced by the size hint, whether the body has a factory, and whether it is signed.
    let uploads = [
        (true, false, false),
        (false, false, false),
        (true, true, false),
        (false, true, false),
        (true, false, true),
        (false, false, true),
    ];
    for (wire, transport) in versions() {
        let server = Server::with_statuses(wire, [200]).await;
        // The announced length, and the number of chunks of five bytes. Over HTTP/1.1, hyper takes no chunk after the
        // announced length, so the last chunk of the long body exceeds it.
        for (length, remaining, knows_end) in [(10, 0, false), (10, 1, false), (10, 1, true), (8, 2, false)] {
            for (has_hint, is_made_again, is_signed) in uploads {
                let preset = preset(&server.url());
                let preset = if is_signed { preset.with_signature(Reader) } else { preset };
                let put = preset.client_with_transport(transport.clone()).unwrap().put("/file");
                let announced = has_hint.then_some(length);
                let body = move || Body::new(Announced { length: announced, remaining, knows_end });
                let put = if has_hint { put } else { put.header("content-length", length) };
                let put = if is_made_again { put.body_with(body) } else { put.body(body()) };
                let error = within(put).await.unwrap_err();
                let case = format!("{length} {remaining} {knows_end} {has_hint} {is_made_again} {is_signed}");
                assert_eq!(error.kind(), ErrorKind::Body, "{case}: {error:?}");
                assert_eq!(error.report().unwrap().attempt_count(), 1, "{case}");
            }
        }
        assert_eq!(server.seen().len(), 0);
    }
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

#[tokio::test(start_paused = true)]
async fn retry_of_a_broken_body_keeps_the_timeout_of_the_request() {
    let second = Duration::from_secs(1);
    let stalled = ScriptedResponse::status(200).with_body("[").with_body_stalled();
    let late = ScriptedResponse::status(200).with_body("whole").with_delay(4 * second);
    let preset =
        preset("http://127.0.0.1:9").with_total_timeout(5 * second).with_body_idle_timeout(3 * second);
    let client = preset.client_with_service(ScriptedService::new([stalled, late])).unwrap();
    let start = Instant::now();
    assert_eq!(client.get("/").timeout(20 * second).fetch_text().await.unwrap(), "whole");
    assert_eq!(start.elapsed().as_secs(), 7);
}
