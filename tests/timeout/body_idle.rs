//! How long the body of an answer may stand still, on paused time.

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

/// The body `inner`, as it comes through the layer.
async fn through<B: Body>(layer: BodyIdleTimeoutLayer, inner: B) -> IdleBody<B> {
    let mut inner = Some(inner);
    let service = service_fn(move |_: Request<()>| {
        let response = Response::new(inner.take().unwrap());
        async { Ok::<_, Infallible>(response) }
    });
    layer.layer(service).oneshot(Request::new(())).await.unwrap().into_body()
}

fn limit(limit: Duration) -> BodyIdleTimeoutLayer {
    BodyIdleTimeoutLayer::new(limit).unwrap()
}

/// A frame after each of these milliseconds, counted from when it is asked for, and then silence.
fn frames(millis: impl IntoIterator<Item = u64, IntoIter: 'static>) -> StreamBody<Frames> {
    let frame = |wait| async move {
        if wait > 0 {
            sleep(Duration::from_millis(wait)).await;
        }
        Ok(Frame::data(Bytes::from_static(b"part")))
    };
    StreamBody::new(Box::pin(stream::iter(millis).then(frame).chain(stream::pending())))
}

async fn part<B: Body<Data = Bytes> + Unpin>(body: &mut B) -> Bytes
where
    B::Error: std::fmt::Debug,
{
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

/// The error of a body that stalled.
async fn stall<B: Body<Error = BoxError> + Unpin>(body: &mut B) -> Error
where
    B::Data: std::fmt::Debug,
{
    *body.frame().await.unwrap().unwrap_err().downcast().expect("an error of ours")
}

#[test]
fn zero_is_refused_with_the_name_of_the_field() {
    let error = BodyIdleTimeoutLayer::new(Duration::ZERO).unwrap_err();
    assert_eq!(error.to_string(), "invalid body idle timeout `0ns`: expected more than zero");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stands_still_ends_in_a_timeout_that_tells_the_limit() {
    let held = Arc::new(());
    let inner = Arc::clone(&held);
    // A real one holds its connection.
    let inner = frames([0]).map_frame(move |frame| {
        let _ = &inner;
        frame
    });
    let mut body = through(limit(millis(1500)), inner).await;
    assert_eq!(part(&mut body).await, "part");
    let start = Instant::now();
    let error = stall(&mut body).await;
    assert_eq!(start.elapsed(), millis(1500));
    assert!(error.is_timeout() && !error.is_deadline() && !error.is_service());
    assert_eq!(error.to_string(), "response body stalled for 1.5s");
    assert_eq!(Arc::strong_count(&held), 1, "what stalled is let go");
    assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_body_of_which_nothing_comes_stands_still_too() {
    let start = Instant::now();
    let mut body = through(limit(secs(2)), frames([])).await;
    assert!(stall(&mut body).await.is_timeout());
    assert_eq!(start.elapsed(), secs(2));
}

#[tokio::test(start_paused = true)]
async fn each_frame_begins_the_time_anew() {
    let start = Instant::now();
    let mut body = through(limit(millis(100)), frames([99; 50])).await;
    for _ in 0..50 {
        assert_eq!(part(&mut body).await, "part");
    }
    assert_eq!(start.elapsed(), millis(50 * 99));
    assert!(stall(&mut body).await.is_timeout());
    assert_eq!(start.elapsed(), millis(50 * 99 + 100));
}

#[tokio::test(start_paused = true)]
async fn a_frame_of_the_same_tick_wins() {
    let mut body = through(limit(millis(100)), frames([100, 100, 101])).await;
    assert_eq!(part(&mut body).await, "part");
    assert_eq!(part(&mut body).await, "part");
    assert!(stall(&mut body).await.is_timeout());
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_there_wins_however_late_the_reader_gets_its_turn() {
    let mut body = through(limit(millis(100)), frames([50])).await;
    let mut reading = task::spawn(body.frame());
    assert_pending!(reading.poll());
    tokio::time::advance(secs(60)).await;
    assert!(assert_ready!(reading.poll()).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn time_in_which_nobody_reads_does_not_count() {
    let mut body = through(limit(millis(100)), frames([0, 99, 99])).await;
    for _ in 0..3 {
        sleep(secs(60)).await;
        assert_eq!(part(&mut body).await, "part");
    }
    sleep(secs(60)).await;
    let start = Instant::now();
    assert!(stall(&mut body).await.is_timeout());
    assert_eq!(start.elapsed(), millis(100));
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_silence_may_last_a_day() {
    let day = 24 * 60 * 60 * 1000;
    for layer in [BodyIdleTimeoutLayer::none(), limit(Duration::MAX)] {
        let start = Instant::now();
        assert_eq!(part(&mut through(layer, frames([day])).await).await, "part");
        assert_eq!(start.elapsed(), millis(day));
    }
}

#[test]
fn what_is_ready_at_once_needs_no_runtime() {
    for layer in [BodyIdleTimeoutLayer::none(), limit(secs(1))] {
        let mut body = assert_ready!(task::spawn(through(layer, frames([0, 0, 0]))).poll());
        for _ in 0..3 {
            assert!(assert_ready!(task::spawn(body.frame()).poll()).unwrap().is_ok());
        }
    }
    let mut body = assert_ready!(task::spawn(through(BodyIdleTimeoutLayer::none(), frames([]))).poll());
    assert_pending!(task::spawn(body.frame()).poll());
}

#[tokio::test(start_paused = true)]
async fn length_end_and_trailers_are_passed_on() {
    for layer in [BodyIdleTimeoutLayer::none(), limit(secs(1))] {
        let mut body = through(layer, Full::new(Bytes::from_static(b"five!"))).await;
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(5), false));
        assert_eq!(part(&mut body).await, "five!");
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        assert!(body.frame().await.is_none());
        assert!(through(layer, Empty::<Bytes>::new()).await.is_end_stream());

        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "12".parse().unwrap())]);
        let sent = trailers.clone();
        let inner = Full::new(Bytes::from_static(b"x")).with_trailers(async { Some(Ok(sent)) });
        let read = through(layer, inner).await.collect().await.unwrap();
        assert_eq!(read.trailers(), Some(&trailers));
        assert_eq!(read.to_bytes(), "x");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_body_is_passed_on_as_it_is() {
    let broken = || stream::iter([Err::<Frame<Bytes>, _>(io::Error::other("broken"))]);
    for layer in [BodyIdleTimeoutLayer::none(), limit(secs(1))] {
        let error = through(layer, StreamBody::new(broken())).await.frame().await.unwrap().unwrap_err();
        assert_eq!(error.downcast_ref::<io::Error>().unwrap().to_string(), "broken");
    }
}
