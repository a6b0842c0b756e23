//! Tests that the retry layer reads the body of a failed response, so that the connection can be reused.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use http_body::Body;
use http_body_util::{BodyExt, Either, Empty};
use tower_outbound::BoxError;

use super::*;

type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, BoxError>>>>;

/// What a body reports to the test: the bytes that were read, whether its end was read, and when it was dropped.
#[derive(Default)]
struct Reading {
    bytes: usize,
    is_ended: bool,
    dropped: Option<Instant>,
}

/// A body that reports how far it was read.
struct RecordedBody {
    frames: StreamBody<Frames>,
    reading: Arc<Mutex<Reading>>,
}

impl Body for RecordedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = std::task::ready!(Pin::new(&mut self.frames).poll_frame(cx));
        let mut reading = self.reading.lock().unwrap();
        match &frame {
            Some(Ok(frame)) => reading.bytes += frame.data_ref().unwrap().len(),
            Some(Err(_)) => {}
            None => reading.is_ended = true,
        }
        Poll::Ready(frame)
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        self.reading.lock().unwrap().dropped = Some(Instant::now());
    }
}

fn frame(length: usize) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from(vec![0; length])))
}

/// Returns a body that ends after some frames of 1 KiB.
fn short(frames: usize) -> Frames {
    Box::pin(stream::iter((0..frames).map(|_| frame(1_024))))
}

/// Makes a call whose first response has this status and body. Returns the times in milliseconds from this response to
/// the drop of its body and to the retry, and what was read.
async fn retry_after(
    layer: RetryLayer,
    response: http::response::Builder,
    frames: Frames,
) -> (u64, u64, Reading) {
    let reading = Arc::<Mutex<Reading>>::default();
    let body = RecordedBody { frames: StreamBody::new(frames), reading: Arc::clone(&reading) };
    let (first, starts) = (Mutex::new(Some(response.body(body).unwrap())), Mutex::new(Vec::new()));
    let service = service_fn(|_: Request<ReplayBody<Content>>| {
        starts.lock().unwrap().push(Instant::now());
        let response = first.lock().unwrap().take().unwrap_or_else(|| {
            Response::new(RecordedBody { frames: StreamBody::new(short(0)), reading: Arc::default() })
        });
        std::future::ready(Ok::<_, Infallible>(response))
    });
    assert_eq!(layer.layer(service).oneshot(get(URI)).await.unwrap().status(), 200);
    let (reading, starts) = (std::mem::take(&mut *reading.lock().unwrap()), starts.into_inner().unwrap());
    let since_start = |time: Instant| u64::try_from((time - starts[0]).as_millis()).unwrap();
    (since_start(reading.dropped.unwrap()), since_start(starts[1]), reading)
}

#[tokio::test(start_paused = true)]
async fn body_of_a_failed_response_is_read_to_its_end_within_64_kib_and_100_ms() {
    let endless = || stream::repeat_with(|| frame(8_192));
    let slow = || {
        stream::repeat(()).then(|()| async {
            tokio::time::sleep(millis(10)).await;
            frame(10)
        })
    };
    let failing = stream::iter([frame(1_024), Err("the body failed".into())]);
    type Case = (&'static str, Frames, RangeInclusive<u64>, RangeInclusive<usize>, bool);
    let cases: [Case; 8] = [
        ("empty", short(0), 0..=0, 0..=0, true),
        ("one frame", short(1), 0..=0, 1_024..=1_024, true),
        ("64 KiB", short(64), 0..=0, 65_536..=65_536, true),
        ("endless", Box::pin(endless()), 0..=0, 65_536..=73_728, false),
        ("late", Box::pin(slow().take(1)), 10..=12, 10..=10, true),
        ("slow", Box::pin(slow()), 100..=101, 0..=100, false),
        ("stalled", Box::pin(stream::pending()), 100..=101, 0..=0, false),
        ("failing", Box::pin(failing), 0..=0, 1_024..=1_024, false),
    ];
    for (name, frames, dropped_after, bytes, is_ended) in cases {
        // Reading the body does not extend the requested delay.
        let response = Response::builder().status(503).header("retry-after", "1");
        let (dropped, next, reading) = retry_after(RetryLayer::new(), response, frames).await;
        assert!(dropped_after.contains(&dropped) && bytes.contains(&reading.bytes), "{name}: {dropped} ms");
        assert_eq!(reading.is_ended, is_ended, "{name}");
        assert!((1_000..=1_052).contains(&next), "{name}: the retry started after {next} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn body_is_dropped_at_the_end_of_a_short_backoff_and_within_100_ms_before_a_resend_with_a_new_key() {
    let backoff = ExponentialBackoff::new(millis(20), secs(1)).unwrap();
    let unauthorized = || Response::builder().status(401).extension(KeyReplaced);
    for (layer, response, frames, expected) in [
        (
            RetryLayer::new().with_backoff(backoff),
            Response::builder().status(503),
            Box::pin(stream::pending()) as Frames,
            10..=21,
        ),
        (RetryLayer::new(), unauthorized(), short(40), 0..=1),
        (RetryLayer::new(), unauthorized(), Box::pin(stream::pending()), 100..=102),
    ] {
        let (dropped, next, _) = retry_after(layer, response, frames).await;
        assert!(
            expected.contains(&next) && dropped <= next,
            "dropped after {dropped} ms, retry after {next} ms"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn call_returns_a_401_at_once_if_its_body_could_be_read_beyond_the_deadline() {
    for (arrives, is_ended, status) in [(905, false, 401), (890, false, 200), (950, true, 200)] {
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let service = service_fn(|_: Request<ReplayBody<Content>>| {
            let is_first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
            async move {
                if !is_first {
                    return Ok(Response::new(Either::Left(Empty::<Bytes>::new())));
                }
                tokio::time::sleep(millis(arrives)).await;
                let stalled: Frames = Box::pin(stream::pending());
                let body = if is_ended {
                    Either::Left(Empty::new())
                } else {
                    Either::Right(StreamBody::new(stalled))
                };
                let response = Response::builder().status(401).extension(KeyReplaced);
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        });
        let (start, layers) = (Instant::now(), (TotalTimeoutLayer::new(secs(1)).unwrap(), RetryLayer::new()));
        let response = layers.layer(service).oneshot(get(URI)).await.unwrap();
        assert_eq!(response.status(), status, "{arrives}");
        if status == 401 {
            assert!(start.elapsed() <= millis(arrives + 1), "{:?}", start.elapsed());
            assert_eq!(report(&response).stop_reason(), Some(StopReason::Deadline));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn last_response_is_returned_without_reading_its_body() {
    let reading = Arc::<Mutex<Reading>>::default();
    let body = RecordedBody { frames: StreamBody::new(short(3)), reading: Arc::clone(&reading) };
    let response = Mutex::new(Response::builder().status(503).body(body).ok());
    let service = service_fn(|_: Request<ReplayBody<Content>>| {
        std::future::ready(Ok::<_, Infallible>(response.lock().unwrap().take().unwrap()))
    });
    let layer = RetryLayer::new().with_max_attempts(1).unwrap();
    let response = layer.layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!(reading.lock().unwrap().bytes, 0);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 3 * 1_024);
}
