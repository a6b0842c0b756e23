use http::{HeaderValue, request::Parts};
use http_body_util::StreamBody;
use support::{Broken, Scripted, ScriptedService, request};
use tokio::time::sleep;
use tower::ServiceBuilder;
use tower_outbound::{
    Body,
    auth::{AppCredentials, Sign, SignLayer, Signing},
    body::BodyTooLarge,
    preset,
    retry::RetryLayer,
};

use super::*;

/// A made-up scheme: the signature is the plain text of what the signer received.
struct Shown {
    credentials: AppCredentials,
    limit: Option<usize>,
}

impl Sign for Shown {
    fn body_limit(&self) -> Option<usize> {
        self.limit
    }

    fn sign<'a>(&'a self, head: &'a mut Parts, body: Option<&'a Bytes>) -> Signing<'a> {
        Box::pin(async move {
            sleep(millis(10)).await; // as a remote key service would take
            let shown = format!("{} {} {} {body:?}", self.credentials.app_id(), head.method, head.uri.path());
            head.headers.insert("x-signature", shown.parse()?);
            Ok(())
        })
    }
}

fn shown(limit: Option<usize>) -> Shown {
    let key = |text| ApiKey::new(text).unwrap();
    Shown { credentials: AppCredentials::new("app", key("k3y"), key("s3cret")).unwrap(), limit }
}

fn signing(limit: Option<usize>) -> SignLayer {
    SignLayer::new(shown(limit), Origin::parse(URI).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_signer_gets_the_body_only_with_a_limit_and_the_server_always_gets_it() {
    for (limit, signature) in [(None, "app POST /v1 None"), (Some(5), "app POST /v1 Some(b\"hello\")")] {
        let probe = ScriptedService::new([Scripted::Status(200)]);
        signing(limit).layer(probe.clone()).oneshot(request("POST", URI)).await.unwrap();
        let seen = probe.seen().remove(0);
        assert_eq!(seen.head.headers["x-signature"], signature);
        assert_eq!(seen.body.unwrap(), "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn debug_of_the_layer_service_and_future_shows_no_secret() {
    let layer = signing(None);
    let mut service = layer.layer(ScriptedService::new([Scripted::NoResponse]));
    let (shown, inner) = (format!("{layer:?}"), format!("{service:?}"));
    assert!(
        shown.starts_with("SignLayer { origins: ") && inner.starts_with("SignService { inner: "),
        "{shown} {inner}"
    );
    ServiceExt::<Request<Content>>::ready(&mut service).await.unwrap();
    let mut call = tokio_test::task::spawn(service.call(request("POST", URI)));
    assert_eq!(format!("{:?}", *call), "SignFuture { .. }");
    tokio_test::assert_pending!(call.poll());
    tokio::time::advance(millis(11)).await;
    tokio_test::assert_pending!(call.poll());
    assert!(!format!("{layer:?} {service:?} {call:?}").contains("s3cret"));
}

#[tokio::test(start_paused = true)]
async fn sends_nothing_if_the_body_is_over_the_limit() {
    let probe = ScriptedService::new([Scripted::Status(200)]);
    let error = signing(Some(4)).layer(probe.clone()).oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!((error.is_auth(), support::cause::<BodyTooLarge>(&error).unwrap().limit()), (true, 4));
    assert_eq!(probe.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn signs_each_attempt_of_a_streamed_body() {
    let frames = ["he", "llo"].map(|data| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(data))));
    let body = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
    let probe = ScriptedService::new([Scripted::Status(503), Scripted::Status(200)]);
    let service =
        ServiceBuilder::new().layer(RetryLayer::new()).layer(signing(Some(64))).service(probe.clone());
    let request = Request::put(URI).body(body).unwrap();
    assert_eq!(service.oneshot(request).await.unwrap().status(), 200);
    let seen = probe.seen();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        assert_eq!(seen.head.headers["x-signature"], "app PUT /v1 Some(b\"hello\")");
        assert_eq!(seen.body.unwrap(), "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn signs_only_for_allowed_origins() {
    let other = "https://other.example.com/v1";
    let probe = ScriptedService::new([Scripted::Status(200)]);
    signing(None).layer(probe.clone()).oneshot(get(other)).await.unwrap();
    let allowed = signing(None).with_allowed_origin(Origin::parse(other).unwrap()).unwrap();
    allowed.layer(probe.clone()).oneshot(get(other)).await.unwrap();
    let signed: Vec<_> = probe.seen().iter().map(|s| s.head.headers.contains_key("x-signature")).collect();
    assert_eq!(signed, [false, true]);
    assert!(signing(None).layer(probe.clone()).oneshot(get("/v1")).await.unwrap_err().is_auth());
    assert_eq!(probe.calls(), 2);
    assert!(SignLayer::new(shown(None), Origin::parse("http://host").unwrap()).is_err());
    assert!(signing(None).with_allowed_origin(Origin::parse("http://host").unwrap()).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_preset_signs_every_attempt() {
    struct Refuses;
    impl Sign for Refuses {
        fn sign<'a>(&'a self, _: &'a mut Parts, _: Option<&'a Bytes>) -> Signing<'a> {
            Box::pin(async { Err(Broken.into()) })
        }
    }
    let preset = preset::realtime_messaging(URI).unwrap();
    let probe = ScriptedService::new([Scripted::Status(503), Scripted::Status(200)]);
    let layer = preset.clone().with_signature(shown(Some(64))).layer().unwrap();
    layer.layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    assert_eq!(probe.calls(), 2);
    let expected = HeaderValue::from_static("app GET /v1 Some(b\"hello\")");
    assert!(probe.seen().iter().all(|seen| seen.head.headers["x-signature"] == expected));

    let error = preset.with_signature(Refuses).layer().unwrap().layer(probe.clone()).oneshot(get(URI)).await;
    let error = error.unwrap_err();
    assert!(error.is_auth() && support::cause::<Broken>(&error).is_some());
    assert_eq!(probe.calls(), 2);
}
