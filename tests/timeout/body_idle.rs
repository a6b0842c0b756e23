//! Tests the idle timeout of a response body.

use std::{convert::Infallible, io, pin::Pin, sync::Arc, time::Duration};

use crate::support::{millis, secs};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::time::{Instant, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_outbound::{Error, body::IdleBody, timeout::BodyIdleTimeoutLayer};

type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, BoxError>>>>;

/// Sends the body `inner` through the layer in a response.
async fn pass_through<B: Body>(layer: BodyIdleTimeoutLayer, inner: B) -> IdleBody<B> {
    let mut inner = Some(inner);
    let service = service_fn(move |_: Request<()>| {
        let response = Response::new(inner.take().unwrap());
        async { Ok::<_, Infallible>(response) }
    });
    layer.layer(service).oneshot(Request::new(())).await.unwrap().into_body()
}

fn idle_timeout(limit: Duration) -> BodyIdleTimeoutLayer {
    BodyIdleTimeoutLayer::new(limit).unwrap()
}

/// Returns a body with one frame for each delay in milliseconds. Each frame is ready when its delay has passed since
/// the reader first polled for the frame. The body stalls after the last frame.
fn frames(delays: impl IntoIterator<Item = u64, IntoIter: 'static>) -> StreamBody<Frames> {
    let frame = |delay| async move {
        if delay > 0 {
            sleep(millis(delay)).await;
        }
        Ok(Frame::data(Bytes::from_static(b"part")))
    };
    StreamBody::new(Box::pin(stream::iter(delays).then(frame).chain(stream::pending())))
}

/// Reads the data of the next frame.
async fn next_data<B: Body<Data = Bytes> + Unpin>(body: &mut B) -> Bytes
where
    B::Error: std::fmt::Debug,
{
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

/// Reads the next frame of the body, which must fail, and returns the error.
async fn next_error<B: Body<Error = BoxError> + Unpin>(body: &mut B) -> Error
where
    B::Data: std::fmt::Debug,
{
    *body.frame().await.unwrap().unwrap_err().downcast().expect("a tower_outbound::Error")
}

#[tokio::test(start_paused = true)]
async fn stalled_body_ends_with_a_timeout_error_and_is_dropped() {
    // The `Arc` represents the connection that a real body owns.
    let connection = Arc::new(());
    let owned = Arc::clone(&connection);
    let inner = frames([0]).map_frame(move |frame| {
        let _ = &owned;
        frame
    });
    let mut body = pass_through(idle_timeout(millis(1500)), inner).await;
    assert_eq!(next_data(&mut body).await, "part");
    let start = Instant::now();
    let error = next_error(&mut body).await;
    assert_eq!(start.elapsed(), millis(1500));
    assert!(error.is_timeout() && !error.is_deadline() && !error.is_service());
    assert_eq!(error.to_string(), "response body stalled for 1.5s");
    assert_eq!(Arc::strong_count(&connection), 1, "the stalled body is dropped");
    assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn body_idle_timeout_returns_errors_of_the_body_unchanged() {
    for layer in [BodyIdleTimeoutLayer::none(), idle_timeout(secs(1))] {
        let broken = StreamBody::new(stream::iter([Err::<Frame<Bytes>, _>(io::Error::other("broken"))]));
        let error = pass_through(layer, broken).await.frame().await.unwrap().unwrap_err();
        assert_eq!(error.downcast_ref::<io::Error>().unwrap().to_string(), "broken");
    }
}

#[tokio::test(start_paused = true)]
async fn ready_body_frame_takes_precedence_over_an_expired_idle_timeout() {
    let mut body = pass_through(idle_timeout(millis(100)), frames([50])).await;
    let mut reading = task::spawn(body.frame());
    assert_pending!(reading.poll());
    tokio::time::advance(secs(60)).await;
    assert!(assert_ready!(reading.poll()).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn time_between_two_body_reads_does_not_count_toward_the_idle_timeout() {
    let mut body = pass_through(idle_timeout(millis(100)), frames([0, 99, 99])).await;
    for _ in 0..3 {
        sleep(secs(60)).await;
        assert_eq!(next_data(&mut body).await, "part");
    }
    sleep(secs(60)).await;
    let start = Instant::now();
    assert!(next_error(&mut body).await.is_timeout());
    assert_eq!(start.elapsed(), millis(100));
}

#[tokio::test(start_paused = true)]
async fn body_frame_may_take_a_day_without_an_idle_timeout() {
    let day = 24 * 60 * 60 * 1000;
    for layer in [BodyIdleTimeoutLayer::none(), idle_timeout(Duration::MAX)] {
        let start = Instant::now();
        assert_eq!(next_data(&mut pass_through(layer, frames([day])).await).await, "part");
        assert_eq!(start.elapsed(), millis(day));
    }
}

#[test]
fn body_idle_timeout_needs_no_tokio_runtime_for_ready_frames() {
    for layer in [BodyIdleTimeoutLayer::none(), idle_timeout(secs(1))] {
        let mut body = assert_ready!(task::spawn(pass_through(layer, frames([0, 0, 0]))).poll());
        for _ in 0..3 {
            assert!(assert_ready!(task::spawn(body.frame()).poll()).unwrap().is_ok());
        }
    }
    let mut body = assert_ready!(task::spawn(pass_through(BodyIdleTimeoutLayer::none(), frames([]))).poll());
    assert_pending!(task::spawn(body.frame()).poll());
}

#[tokio::test(start_paused = true)]
async fn body_idle_timeout_preserves_size_hint_and_end_of_stream_and_trailers() {
    for layer in [BodyIdleTimeoutLayer::none(), idle_timeout(secs(1))] {
        let mut body = pass_through(layer, Full::new(Bytes::from_static(b"five!"))).await;
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(5), false));
        assert_eq!(next_data(&mut body).await, "five!");
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        assert!(body.frame().await.is_none());
        assert!(pass_through(layer, Empty::<Bytes>::new()).await.is_end_stream());

        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "12".parse().unwrap())]);
        let sent = trailers.clone();
        let inner = Full::new(Bytes::from_static(b"x")).with_trailers(async { Some(Ok(sent)) });
        let read = pass_through(layer, inner).await.collect().await.unwrap();
        assert_eq!(read.trailers(), Some(&trailers));
        assert_eq!(read.to_bytes(), "x");
    }
}
