//! Tests the request that each attempt sends.

use std::io::ErrorKind::*;

use futures_util::StreamExt;
use http::Version;
use http_body_util::BodyExt;

use super::{
    support::{Scripted::*, request},
    *,
};

#[tokio::test(start_paused = true)]
async fn every_attempt_sends_the_same_request_head() {
    #[derive(Clone)]
    struct CallerExtension;
    // How the layer stores the request head depends on the size of the headers and on the caller's extensions.
    for (with_extension, length) in [(false, 10), (false, 10_000), (true, 10)] {
        let inner = ScriptedService::new([Status(503), Io(ConnectionReset), Status(200)]);
        let mut request = request("PUT", "https://api.example.com/v1?q=1");
        let long = HeaderValue::try_from("x".repeat(length)).unwrap();
        let mut secret = HeaderValue::from_static("b");
        secret.set_sensitive(true);
        request.headers_mut().append("x-many", HeaderValue::from_static("a"));
        request.headers_mut().append("x-long", long.clone());
        request.headers_mut().append("x-many", secret);
        *request.version_mut() = Version::HTTP_2;
        if with_extension {
            request.extensions_mut().insert(CallerExtension);
        }
        RetryLayer::new().layer(inner.clone()).oneshot(request).await.unwrap();
        let seen = inner.seen();
        assert_eq!(seen.len(), 3);
        for seen in &seen {
            assert_eq!((&seen.head.method, seen.head.version), (&Method::PUT, Version::HTTP_2));
            assert_eq!(seen.head.uri, "https://api.example.com/v1?q=1");
            let many = seen.head.headers.get_all("x-many");
            assert!(many.iter().eq(["a", "b"]));
            assert!(many.iter().map(HeaderValue::is_sensitive).eq([false, true]));
            assert_eq!(seen.head.headers["x-long"], long);
            assert_eq!(seen.head.headers.len(), 3, "the layer should not add a header");
            assert_eq!(seen.head.extensions.get::<CallerExtension>().is_some(), with_extension);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retry_layer_replays_a_streamed_body_with_its_trailers() {
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("42"))]);
    let frames = [
        Frame::data(Bytes::from_static(b"one ")),
        Frame::data(Bytes::from_static(b"two ")),
        Frame::data(Bytes::from(vec![b'x'; 10_000])),
        Frame::trailers(trailers.clone()),
    ];
    // The stream is not `Clone`, and a pause of 5 ms precedes each frame.
    let stream = stream::iter(frames.map(Ok::<_, Infallible>)).then(|frame| async {
        tokio::time::sleep(millis(5)).await;
        frame
    });
    let body = StreamBody::new(stream.boxed());
    let inner = ScriptedService::new([Status(503), Io(ConnectionReset), Status(200)]);
    let request = Request::put(URI).body(body).unwrap();
    RetryLayer::new().layer(inner.clone()).oneshot(request).await.unwrap();
    let expected = [b"one two ".as_slice(), &[b'x'; 10_000]].concat();
    assert_eq!(inner.calls(), 3);
    for seen in inner.seen() {
        assert_eq!((seen.body, seen.trailers), (Some(expected.clone().into()), Some(trailers.clone())));
    }
}

/// An HTTP/1 client reads `content-length` bytes of a request body and does not poll for the body's end. A body with
/// trailers is not replayed in this case.
#[tokio::test(start_paused = true)]
async fn retry_layer_replays_a_body_that_was_read_to_its_content_length() {
    for (headers, attempts) in [
        (&[][..], 1),
        (&[("content-length", "5")], 2),
        (&[("content-length", "6")], 1),
        (&[("content-length", "5"), ("trailer", "x-sum")], 1),
    ] {
        let service = service_fn(|request: Request<ReplayBody<_>>| async {
            let mut body: ReplayBody<StreamBody<_>> = request.into_body();
            body.frame().await;
            Response::builder().status(503).body(Content::default())
        });
        let frame = Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"hello")));
        let put = headers.iter().fold(Request::put(URI), |put, (name, value)| put.header(*name, *value));
        let request = put.body(StreamBody::new(stream::iter([frame]))).unwrap();
        let layer = RetryLayer::new().with_max_attempts(2).unwrap();
        let response = layer.layer(service).oneshot(request).await.unwrap();
        assert_eq!(report(&response).attempt_count(), attempts, "{headers:?}");
    }
}
