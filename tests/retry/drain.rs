//! Tests that the retry layer reads the body of a failed response, so that the connection can be reused.

use std::{cell::Cell, rc::Rc, time::Duration};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    ExponentialBackoff,
    body::ReplayBody,
    call::{KeyReplaced, StopReason::Success},
    retry::RetryLayer,
};

use super::{
    URI,
    recorded_body::{BodyKind, BodyRecorder, RecordedBody, responds_503_once},
    report,
    support::{Content, get, millis, secs},
};

/// Makes a call. The first response is a 503 that has a body of `kind` and requests a delay of 1 s. Returns the time
/// from the 503 to the drop of its body, the time from the 503 to the retry, and the body recorder.
async fn retry_after_503_with_body(kind: BodyKind) -> (Duration, Duration, BodyRecorder) {
    let (bodies, starts) = (BodyRecorder::new(kind), Rc::new(Cell::new(Vec::new())));
    let service = responds_503_once(&bodies, &[("retry-after", "1")], &starts);
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!(response.status(), 200);
    let (starts, drop_times) = (starts.take(), bodies.drop_times());
    assert_eq!(
        drop_times.len(),
        1,
        "only the first body should be dropped, because the caller owns the second body"
    );
    (drop_times[0] - starts[0], starts[1] - starts[0], bodies)
}

#[tokio::test(start_paused = true)]
async fn retry_layer_reads_the_whole_body_of_a_failed_response_before_the_backoff() {
    for frames in [0, 1, 40, 64] {
        let (dropped, next, bodies) = retry_after_503_with_body(BodyKind::Frames(frames)).await;
        assert_eq!(dropped, Duration::ZERO, "{frames} frames");
        assert_eq!(bodies.bytes_read(), u64::from(frames) * 1_024);
        assert_eq!(bodies.ends(), 1, "the layer should read the body to its end");
        assert!(next >= secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn retry_layer_stops_reading_an_endless_body_after_64_kib_plus_a_frame() {
    let (dropped, _, bodies) = retry_after_503_with_body(BodyKind::Endless).await;
    assert_eq!(dropped, Duration::ZERO);
    assert!((64 * 1_024..=72 * 1_024).contains(&bodies.bytes_read()), "{}", bodies.bytes_read());
}

#[tokio::test(start_paused = true)]
async fn retry_layer_drops_a_stalled_or_slow_response_body_after_100_ms() {
    for kind in [BodyKind::Stalled, BodyKind::Trickling] {
        let (dropped, next, bodies) = retry_after_503_with_body(kind).await;
        assert!((millis(100)..=millis(101)).contains(&dropped), "{kind:?}: {dropped:?}");
        assert!(next >= secs(1) && bodies.bytes_read() <= 100, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_layer_retries_if_the_body_of_the_failed_response_returns_an_error() {
    let (dropped, next, _) = retry_after_503_with_body(BodyKind::Failing).await;
    assert_eq!(dropped, Duration::ZERO);
    assert!(next >= secs(1));
}

#[tokio::test(start_paused = true)]
async fn retry_layer_drops_a_stalled_response_body_at_the_end_of_the_backoff() {
    let (bodies, starts) = (BodyRecorder::new(BodyKind::Stalled), Rc::new(Cell::new(Vec::new())));
    let backoff = ExponentialBackoff::new(millis(20), secs(1)).unwrap();
    let service = responds_503_once(&bodies, &[], &starts);
    RetryLayer::new().with_backoff(backoff).layer(service).oneshot(get(URI)).await.unwrap();
    let starts = starts.take();
    assert!(starts[1] - starts[0] <= millis(21), "{:?}", starts[1] - starts[0]);
    assert!(bodies.drop_times()[0] <= starts[1], "the layer should drop the body before the next attempt");
}

#[tokio::test(start_paused = true)]
async fn stalled_response_body_does_not_extend_a_requested_delay() {
    let bodies = BodyRecorder::new(BodyKind::Stalled);
    let starts = Rc::new(Cell::new(Vec::new()));
    let service = responds_503_once(&bodies, &[("retry-after", "3")], &starts);
    RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    let starts = starts.take();
    let waited = starts[1] - starts[0];
    assert!((secs(3)..millis(3_052)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_layer_reads_the_body_of_a_401_for_at_most_100_ms() {
    for (kind, expected) in
        [(BodyKind::Frames(40), 0..=1), (BodyKind::Delayed, 10..=12), (BodyKind::Stalled, 100..=102)]
    {
        let (bodies, starts) = (BodyRecorder::new(kind), Rc::new(Cell::new(Vec::new())));
        let service = responds_503_once(&bodies, &[], &starts);
        let service = service.map_response(|mut response: Response<RecordedBody>| {
            if response.status() == 503 {
                *response.status_mut() = StatusCode::UNAUTHORIZED;
                response.extensions_mut().insert(KeyReplaced);
            }
            response
        });
        RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
        let starts = starts.take();
        let elapsed = u64::try_from((starts[1] - starts[0]).as_millis()).unwrap();
        assert!(expected.contains(&elapsed), "{kind:?}: the retry started after {elapsed} ms");
        assert_eq!(bodies.ends(), u64::from(kind != BodyKind::Stalled), "{kind:?}");
        assert!(
            bodies.drop_times()[0] <= starts[1],
            "the layer should drop the body before the next attempt"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn retry_layer_returns_the_last_response_without_reading_its_body() {
    let bodies = BodyRecorder::new(BodyKind::Frames(3));
    let service = {
        let bodies = bodies.clone();
        service_fn(move |_: Request<ReplayBody<Content>>| {
            std::future::ready(Response::builder().status(503).body(bodies.body()))
        })
    };
    let layer = RetryLayer::new().with_max_attempts(1).unwrap();
    let response = layer.layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!((bodies.bytes_read(), bodies.drop_times().len()), (0, 0));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 3 * 1_024);
}

#[tokio::test(start_paused = true)]
async fn retry_layer_returns_a_101_response_unchanged_without_a_retry() {
    #[derive(Debug, Clone, PartialEq)]
    struct UpgradeMark;
    let bodies = BodyRecorder::new(BodyKind::Stalled);
    let service = {
        let bodies = bodies.clone();
        service_fn(move |_: Request<ReplayBody<Content>>| {
            let response = Response::builder().status(101).header("retry-after", "1").extension(UpgradeMark);
            std::future::ready(response.body(bodies.body()))
        })
    };
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.extensions().get(), Some(&UpgradeMark));
    assert!(bodies.drop_times().is_empty());
    assert_eq!((report(&response).stop_reason(), report(&response).attempt_count()), (Some(Success), 1));
}
