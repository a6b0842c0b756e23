//! Tests the timeouts of a request whose body takes longer than the attempt timeout.

use futures_util::{StreamExt as _, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use tower_outbound::{Body, ErrorKind, Jitter, retry::RetryLayer};

use super::*;

/// The attempt timeout of each stack.
const LIMIT: Duration = Duration::from_secs(3);

/// A body that returns each frame this many seconds after the previous one.
fn paced(gaps: &[u64]) -> Body {
    let frames = stream::iter(gaps.to_vec()).then(|gap| async move {
        tokio::time::sleep(secs(gap)).await;
        Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"part")))
    });
    Body::new(StreamBody::new(frames))
}

/// Sends a request through a stack without a backoff. Returns the result and the time that the call took.
async fn send(
    method: &str,
    body: Body,
    server: &ScriptedService,
) -> (Result<Response<Body>, Error>, Duration) {
    let backoff = tower_outbound::ExponentialBackoff::new(millis(1), millis(1)).unwrap();
    let service = ServiceBuilder::new()
        .layer(total(secs(30)))
        .layer(RetryLayer::new().with_backoff(backoff.with_jitter(Jitter::none())))
        .layer(per_attempt(LIMIT))
        .service(server.clone());
    let start = Instant::now();
    let result = service.oneshot(Request::builder().method(method).uri(URI).body(body).unwrap()).await;
    (result, start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn upload_outlasts_the_attempt_timeout_while_its_body_advances() {
    let server = ScriptedService::new([Status(200)]);
    let (result, elapsed) = send("POST", paced(&[1; 20]), &server).await;
    assert_eq!((result.unwrap().status().as_u16(), elapsed), (200, secs(20)));
    assert_eq!(server.seen()[0].body.as_ref().unwrap().len(), 80);
}

#[tokio::test(start_paused = true)]
async fn stalled_upload_times_out_after_its_last_frame_and_counts_as_maybe_processed() {
    for (gaps, elapsed) in [(&[1, 1, 4, 1][..], 5), (&[4], 3), (&[2, 2, 2, 4], 9)] {
        let server = ScriptedService::new([Status(200)]);
        let (result, took) = send("POST", paced(gaps), &server).await;
        let error = result.unwrap_err();
        assert_eq!((error.kind(), took), (ErrorKind::AttemptTimeout, secs(elapsed)), "{gaps:?}");
        assert_eq!(error.to_string(), "no response within 3s");
        let report = error.report().unwrap();
        assert_eq!(report.attempts()[0].outcome, Some(Outcome::Timeout));
        assert_eq!((report.stop_reason(), server.calls()), (Some(StopReason::NotIdempotent), 1));
        assert_eq!(server.instances(), 1, "the attempt and its body are dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_timeout_limits_the_wait_for_the_response_after_the_end_of_the_body() {
    for (delay, is_in_time) in [(2_900, true), (3_100, false)] {
        let server = ScriptedService::new([Delayed(delay, 200)]);
        let (result, elapsed) = send("POST", paced(&[1; 5]), &server).await;
        assert_eq!(result.is_ok(), is_in_time, "{delay}");
        assert_eq!(elapsed, secs(5) + millis(delay).min(LIMIT));
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_of_an_upload_with_a_factory_restarts_its_timeout() {
    let server = ScriptedService::new([Status(503), Status(200)]);
    let (result, elapsed) = send("PUT", Body::from_fn(|| paced(&[2; 4])), &server).await;
    assert_eq!((result.unwrap().status().as_u16(), elapsed), (200, secs(16) + millis(1)));
    assert!(server.seen().iter().all(|seen| seen.body.as_ref().unwrap().len() == 16));

    // Without a factory, the second attempt sends the recording.
    let server = ScriptedService::new([Status(503), Status(200)]);
    let (result, elapsed) = send("PUT", paced(&[2; 4]), &server).await;
    assert_eq!((result.unwrap().status().as_u16(), elapsed), (200, secs(8) + millis(1)));
}

/// The attempt that timed out has sent a part of the body.
#[tokio::test(start_paused = true)]
async fn stalled_upload_is_retried_only_if_its_body_has_a_factory() {
    for (has_factory, calls) in [(true, 3), (false, 1)] {
        let server = ScriptedService::new([Status(200)]);
        let stalling = || paced(&[1, 9]);
        let body = if has_factory { Body::from_fn(stalling) } else { stalling() };
        let (result, _) = send("PUT", body, &server).await;
        let error = result.unwrap_err();
        let stop_reason = if has_factory { StopReason::Exhausted } else { StopReason::NotReplayable };
        assert_eq!((error.kind(), server.calls()), (ErrorKind::AttemptTimeout, calls));
        assert_eq!(error.report().unwrap().stop_reason(), Some(stop_reason));
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_timeout_without_a_retry_layer_counts_from_the_start_of_the_attempt() {
    let request = Request::post(URI).body(paced(&[1; 20])).unwrap();
    let start = Instant::now();
    let service = total(secs(60)).layer(per_attempt(LIMIT).layer(ScriptedService::new([Status(200)])));
    assert!(service.oneshot(request).await.unwrap_err().is_timeout());
    assert_eq!(start.elapsed(), LIMIT);
}
