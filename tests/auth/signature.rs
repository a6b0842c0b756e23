//! Tests of signatures over the head and the body of a request.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderValue, request::Parts};
use http_body_util::StreamBody;
use support::{Broken, Scripted};
use tokio::time::sleep;
use tower::ServiceBuilder;
use tower_outbound::{
    Body, ErrorKind,
    auth::{AnySign, AppCredentials, BoxSignFuture, Sign},
    body::BodyTooLarge,
    preset,
    retry::RetryLayer,
};

use super::*;

/// A signer whose signature is the plain text of the app id, the method, the path and the body.
struct PlainTextSigner {
    credentials: AppCredentials,
    limit: Option<usize>,
}

impl Sign for PlainTextSigner {
    fn body_limit(&self) -> Option<usize> {
        self.limit
    }

    fn sign<'a>(&'a self, head: &'a mut Parts, body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async move {
            sleep(millis(10)).await; // the latency of a remote key service
            let signature =
                format!("{} {} {} {body:?}", self.credentials.app_id(), head.method, head.uri.path());
            head.headers.insert("x-signature", signature.parse()?);
            Ok(())
        })
    }
}

fn signer(limit: Option<usize>) -> PlainTextSigner {
    let key = |text| ApiKey::new(text).unwrap();
    PlainTextSigner { credentials: AppCredentials::new("app", key("k3y"), key("s3cret")).unwrap(), limit }
}

fn sign_layer(limit: Option<usize>) -> AuthLayer<AnySign> {
    AuthLayer::from_sign(signer(limit), Origin::parse(URI).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn signer_receives_the_body_only_if_the_signer_sets_a_body_limit() {
    for (limit, signature) in [(None, "app POST /v1 None"), (Some(5), "app POST /v1 Some(b\"hello\")")] {
        let server = ScriptedService::new([Scripted::Status(200)]);
        sign_layer(limit).layer(server.clone()).oneshot(request("POST", URI)).await.unwrap();
        let seen = server.seen().remove(0);
        assert_eq!(seen.head.headers["x-signature"], signature);
        assert_eq!(seen.body.unwrap(), "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn body_over_the_limit_of_the_signer_is_rejected_before_sending() {
    let server = ScriptedService::new([Scripted::Status(200)]);
    let error = sign_layer(Some(4)).layer(server.clone()).oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!((error.is_auth(), support::cause::<BodyTooLarge>(&error).unwrap().limit()), (true, 4));
    assert_eq!(server.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn signed_body_with_trailers_is_rejected_before_sending() {
    let trailers = http::HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("1"))]);
    let frames = [http_body::Frame::data(Bytes::from("hello")), http_body::Frame::trailers(trailers)];
    let body = |frames: [http_body::Frame<Bytes>; 2]| {
        Body::new(StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, Infallible>))))
    };
    let server = ScriptedService::new([Scripted::Status(200)]);
    let service =
        ServiceBuilder::new().layer(RetryLayer::new()).layer(sign_layer(Some(64))).service(server.clone());
    let error = service.oneshot(Request::put(URI).body(body(frames)).unwrap()).await.unwrap_err();
    assert!(error.is_auth() && !error.may_have_been_processed(), "{error:?}");
    assert!(error.to_string().contains("trailers"), "{error}");
    assert_eq!((error.report().unwrap().attempt_count(), server.calls()), (1, 0));
}

/// A body of five bytes, which reports another length.
struct Misreported(Option<Bytes>, u64);

impl http_body::Body for Misreported {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|data| Ok(http_body::Frame::data(data))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.1)
    }
}

impl From<Bytes> for Misreported {
    fn from(data: Bytes) -> Self {
        let length = data.len() as u64;
        Self(Some(data), length)
    }
}

#[tokio::test(start_paused = true)]
async fn signed_body_of_another_length_than_its_size_hint_fails_before_sending() {
    for (length, is_sent) in [(4, false), (5, true), (6, false)] {
        let server = tower_outbound::test_util::ScriptedService::new([200]);
        let body = Misreported(Some(Bytes::from("hello")), length);
        let service = sign_layer(Some(64)).layer(server.clone());
        let result = service.oneshot(Request::put(URI).body(body).unwrap()).await;
        assert_eq!(result.err().map(|error| error.kind()), (!is_sent).then_some(ErrorKind::Body));
        assert_eq!(server.calls(), usize::from(is_sent));
    }
}

#[tokio::test(start_paused = true)]
async fn body_that_fails_before_its_signature_ends_the_call_as_a_body_error_without_sending() {
    let frames = [Ok(http_body::Frame::data(Bytes::from("he"))), Err(std::io::Error::other("disk"))];
    let body = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
    let server = ScriptedService::new([Scripted::Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_idempotent(|_| true))
        .layer(sign_layer(Some(64)))
        .service(server.clone());
    let error = service.oneshot(Request::post(URI).body(body).unwrap()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_service()), (ErrorKind::Body, false), "{error:?}");
    assert!(!error.may_have_been_processed() && support::cause::<std::io::Error>(&error).is_some());
    assert_eq!((error.report().unwrap().attempt_count(), server.calls()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn every_attempt_with_a_streamed_body_is_signed() {
    let frames = ["he", "llo"].map(|data| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(data))));
    let body = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
    let server = ScriptedService::new([Scripted::Status(503), Scripted::Status(200)]);
    let service =
        ServiceBuilder::new().layer(RetryLayer::new()).layer(sign_layer(Some(64))).service(server.clone());
    let request = Request::put(URI).body(body).unwrap();
    assert_eq!(service.oneshot(request).await.unwrap().status(), 200);
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        assert_eq!(seen.head.headers["x-signature"], "app PUT /v1 Some(b\"hello\")");
        assert_eq!(seen.body.unwrap(), "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn only_requests_to_allowed_origins_are_signed() {
    let other = "https://other.example.com/v1";
    let server = ScriptedService::new([Scripted::Status(200)]);
    sign_layer(None).layer(server.clone()).oneshot(get(other)).await.unwrap();
    let allowed = sign_layer(None).with_allowed_origin(Origin::parse(other).unwrap()).unwrap();
    allowed.layer(server.clone()).oneshot(get(other)).await.unwrap();
    let signed: Vec<_> =
        server.seen().iter().map(|seen| seen.head.headers.contains_key("x-signature")).collect();
    assert_eq!(signed, [false, true]);
    assert!(sign_layer(None).layer(server.clone()).oneshot(get("/v1")).await.unwrap_err().is_auth());
    assert_eq!(server.calls(), 2);
    assert!(AuthLayer::from_sign(signer(None), Origin::parse("http://host").unwrap()).is_err());
    assert!(sign_layer(None).with_allowed_origin(Origin::parse("http://host").unwrap()).is_err());
}

/// A signer that replaces the URI by another origin, and adds its signature to the query.
struct UriSigner;

impl Sign for UriSigner {
    fn sign<'a>(&'a self, head: &'a mut Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async {
            head.uri = format!("https://other.example.com{}?signature=1", head.uri.path()).parse()?;
            Ok(())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn uri_of_a_signer_is_sent_without_another_origin_check_and_changed_once_for_each_attempt() {
    let server = ScriptedService::new([Scripted::Status(503), Scripted::Status(200)]);
    let layer = AuthLayer::from_sign(UriSigner, Origin::parse(URI).unwrap()).unwrap();
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(layer).service(server.clone());
    service.oneshot(get(URI)).await.unwrap();
    let uris: Vec<_> = server.seen().iter().map(|seen| seen.head.uri.to_string()).collect();
    assert_eq!(uris, ["https://other.example.com/v1?signature=1"; 2]);
}

#[tokio::test(start_paused = true)]
async fn preset_signs_every_attempt() {
    struct FailingSigner;
    impl Sign for FailingSigner {
        fn sign<'a>(&'a self, _: &'a mut Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
            Box::pin(async { Err(Broken.into()) })
        }
    }
    let preset = preset::realtime_messaging(URI).unwrap();
    let server = ScriptedService::new([Scripted::Status(503), Scripted::Status(200)]);
    let layer = preset.clone().with_signature(signer(Some(64))).layer().unwrap();
    layer.layer(server.clone()).oneshot(get(URI)).await.unwrap();
    assert_eq!(server.calls(), 2);
    let expected = HeaderValue::from_static("app GET /v1 Some(b\"hello\")");
    assert!(server.seen().iter().all(|seen| seen.head.headers["x-signature"] == expected));

    let error =
        preset.with_signature(FailingSigner).layer().unwrap().layer(server.clone()).oneshot(get(URI)).await;
    let error = error.unwrap_err();
    assert!(error.is_auth() && support::cause::<Broken>(&error).is_some());
    assert_eq!(server.calls(), 2);
}
