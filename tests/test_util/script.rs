//! Tests the responses of a `ScriptedService`, and the requests that it records.

use std::{
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use futures_util::{FutureExt, StreamExt};
use http::HeaderMap;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::Instant;
use tokio_test::{assert_pending, task};
use tower::{ServiceBuilder, ServiceExt};
use tower_outbound::{
    attempt_span::AttemptSpanLayer,
    retry::RetryLayer,
    test_util::{ScriptedResponse, ScriptedService},
};

use super::*;

#[tokio::test]
async fn scripted_service_returns_responses_in_order_and_repeats_the_last() {
    let service = ScriptedService::new([500, 404, 200]);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(call(&service).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [500, 404, 200, 200, 200]);
    assert!(service.seen().iter().map(|seen| seen.number).eq(1..=5));
}

#[tokio::test]
async fn scripted_service_panics_if_the_script_is_empty() {
    let empty = ScriptedService::new([0_u16; 0]);
    let panic = AssertUnwindSafe(call(&empty)).catch_unwind().await.unwrap_err();
    assert_eq!(panic_message(panic), "the script has no response for GET /v1");
    assert_eq!(empty.calls(), 1, "the request should be recorded");
}

#[tokio::test]
async fn scripted_service_lets_a_function_choose_the_response_to_each_request() {
    let service = ScriptedService::from_fn(|seen| match seen.header("x-attempt") {
        Some("2") => ScriptedResponse::status(200).with_body(seen.number.to_string()),
        _ => 503.into(),
    });
    let numbered = AttemptSpanLayer::new().with_attempt_header(http::HeaderName::from_static("x-attempt"));
    let stack = ServiceBuilder::new().layer(RetryLayer::new()).layer(numbered).service(service.clone());
    let response = stack.oneshot(get()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.into_body().bytes_up_to(9).await.unwrap()),
        (200, "2".into())
    );
    assert!(service.seen().iter().map(|seen| seen.attempt).eq([Some(1), Some(2)]));
}

#[tokio::test]
async fn scripted_service_returns_the_scripted_status_headers_and_body() {
    let response =
        ScriptedResponse::status(418).with_header("a", "1").with_header("a", "2").with_body("short");
    let response = call(&ScriptedService::new([response])).await.unwrap();
    assert!(response.headers().get_all("a").iter().eq(["1", "2"]));
    assert_eq!(
        (response.status().as_u16(), &response.into_body().bytes_up_to(9).await.unwrap()[..]),
        (418, &b"short"[..])
    );

    let stalled = ScriptedResponse::status(200).with_body("a part").with_body_stalled();
    let mut body = call(&ScriptedService::new([stalled])).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
    assert_pending!(task::spawn(body.frame()).poll());
}

#[tokio::test(start_paused = true)]
async fn scripted_service_returns_scripted_errors_after_scripted_delays() {
    let service = ScriptedService::new([
        ScriptedResponse::refused(),
        ScriptedResponse::io_error(io::ErrorKind::BrokenPipe).with_delay(secs(2)),
        ScriptedResponse::error(|| "custom error".into()),
        ScriptedResponse::never(),
    ]);
    let kind = |error: &BoxError| error.downcast_ref::<io::Error>().unwrap().kind();
    let start = Instant::now();
    assert_eq!(kind(&call(&service).await.unwrap_err()), io::ErrorKind::ConnectionRefused);
    assert_eq!(start.elapsed(), secs(0));
    assert_eq!(kind(&call(&service).await.unwrap_err()), io::ErrorKind::BrokenPipe);
    assert_eq!(start.elapsed(), secs(2));
    assert_eq!(call(&service).await.unwrap_err().to_string(), "custom error");
    assert!(tokio::time::timeout(secs(99), call(&service)).await.is_err());
    let read: Vec<_> = service.seen().iter().map(|seen| seen.body.is_some()).collect();
    assert_eq!(read, [false, true, true, true]);
    assert!(service.seen().iter().map(|seen| seen.at - start).eq([0, 0, 2, 2].map(secs)));
}

#[tokio::test]
async fn scripted_service_reads_only_the_scripted_part_of_the_request_body() {
    let frames = || {
        let trailers: HeaderMap = [("x-sum".parse().unwrap(), "9".parse().unwrap())].into_iter().collect();
        [Frame::data("one"), Frame::data("two"), Frame::trailers(trailers)]
            .map(|frame| frame.map_data(Bytes::from))
    };
    let cases: [(ScriptedResponse, usize, usize); 4] = [
        (200.into(), 3, 0),
        (ScriptedResponse::status(200).with_request_body_unread(), 0, 0),
        (ScriptedResponse::status(200).with_request_body_first_frame(), 1, 0),
        (ScriptedResponse::status(200).with_request_body_kept(), 0, 1),
    ];
    for (response, read, kept) in cases {
        let case = format!("{response:?}");
        let service = ScriptedService::new([response]);
        let (polls, body_alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
        let (counter, kept_alive) = (polls.clone(), body_alive.clone());
        let stream = futures_util::stream::iter(frames()).map(move |frame| {
            let _ = &kept_alive;
            counter.fetch_add(1, Relaxed);
            Ok::<_, io::Error>(frame)
        });
        let request = Request::post(URL).body(StreamBody::new(stream)).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200);
        assert_eq!(polls.load(Relaxed), read, "{case}");
        assert_eq!(Arc::strong_count(&body_alive) - 1, kept, "{case}");
        let seen = &service.seen()[0];
        let whole = (Some("onetwo".into()), Some("9".parse().unwrap()));
        let sum = seen.trailers.as_ref().map(|trailers| trailers["x-sum"].clone());
        assert_eq!((seen.body.clone(), sum), if read == 3 { whole } else { (None, None) }, "{case}");
    }
}

#[tokio::test]
async fn scripted_service_returns_the_error_of_the_request_body() {
    let broken =
        StreamBody::new(futures_util::stream::iter([Err::<Frame<Bytes>, _>(io::Error::other("torn"))]));
    let service = ScriptedService::new([200]);
    let error = service.clone().oneshot(Request::post(URL).body(broken).unwrap()).await.unwrap_err();
    assert_eq!((error.to_string().as_str(), service.seen()[0].body.is_none()), ("torn", true));
}

#[test]
fn constructing_an_invalid_scripted_response_panics() {
    let cases: [(fn(), &str); 5] = [
        (|| drop(ScriptedResponse::status(99)), "invalid status 99: expected 100 to 999"),
        (|| drop(ScriptedResponse::status(200).with_header("a b", "c")), "invalid header name \"a b\""),
        (|| drop(ScriptedResponse::status(200).with_header("a", "\n")), "invalid value for the header a"),
        (|| drop(ScriptedResponse::never().with_body("a")), "only a response with a status has a body"),
        (
            || drop(ScriptedResponse::refused().with_header("a", "b")),
            "only a response with a status has a header",
        ),
    ];
    for (construct, expected) in cases {
        let message = panic_message(std::panic::catch_unwind(construct).unwrap_err());
        assert!(message.starts_with(expected), "{message}");
    }
}
