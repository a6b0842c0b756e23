//! Tests the default headers that a preset sends with every request.

use http::{
    HeaderName, HeaderValue, Method,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, PROXY_AUTHORIZATION, USER_AGENT},
};
use tower_outbound::{attempt_span::AttemptSpanLayer, request_id::RequestIdLayer, retry::IdempotencyKey};

use super::*;

const VERSION: HeaderName = HeaderName::from_static("x-api-version");

fn custom() -> StackBuilder {
    StackBuilder::new("https://host").unwrap().with_name("custom").with_api_key(key())
}

fn value(text: &'static str) -> HeaderValue {
    HeaderValue::from_static(text)
}

/// Sends a request to a scripted service. Returns the value of the header `name` that the service received.
async fn received(preset: &StackBuilder, request: Request<Body>, name: &HeaderName) -> Option<String> {
    let service = ScriptedService::new([ScriptedResponse::status(200)]);
    preset.client_with_service(service.clone()).unwrap().execute(request).await.unwrap();
    let seen = service.seen();
    assert!(seen[0].head.headers.get_all(name).iter().count() <= 1, "{name} is sent twice");
    seen[0].header(name.as_str()).map(str::to_owned)
}

fn request(method: Method, body: impl Into<Body>) -> Request<Body> {
    Request::builder().method(method).uri("/v1").body(body.into()).unwrap()
}

#[tokio::test]
async fn custom_stack_sends_a_json_content_type_only_with_a_body() {
    for (method, body, expected) in [
        (Method::GET, "", None),
        (Method::DELETE, "", None),
        (Method::POST, "", None),
        (Method::POST, "{}", Some("application/json")),
        (Method::DELETE, "{}", Some("application/json")),
    ] {
        let content_type = received(&custom(), request(method.clone(), body), &CONTENT_TYPE).await;
        assert_eq!(content_type.as_deref(), expected, "{method} {body}");
    }
}

#[tokio::test]
async fn client_sends_the_default_headers_with_every_attempt() {
    let service = ScriptedService::new([503, 503, 200].map(ScriptedResponse::status));
    let client = custom()
        .with_retry(RetryLayer::new().with_backoff(ExponentialBackoff::new(MILLI, MILLI).unwrap()))
        .with_header(VERSION, value("1"))
        .with_header(ACCEPT, value("text/csv"))
        .with_header(VERSION, value("2"))
        .with_header(USER_AGENT, value("shop/1.4"))
        .client_with_service(service.clone())
        .unwrap();
    assert_eq!(client.get("/v1").await.unwrap().status(), 200);
    assert_eq!(service.calls(), 3);
    for seen in service.seen() {
        assert_eq!(seen.header("x-api-version"), Some("2"));
        assert_eq!(seen.header("accept"), Some("text/csv"));
        assert_eq!(seen.header("user-agent"), Some("shop/1.4"));
    }
}

#[tokio::test]
async fn request_header_set_by_the_caller_replaces_the_default_header() {
    let preset = custom()
        .with_header(VERSION, value("1"))
        .with_header(CONTENT_TYPE, value("application/xml"))
        .with_header(USER_AGENT, value("shop/1.4"));
    for (name, default) in [(VERSION, "1"), (CONTENT_TYPE, "application/xml"), (USER_AGENT, "shop/1.4")] {
        assert_eq!(received(&preset, request(Method::GET, ""), &name).await.as_deref(), Some(default));
        let mut own = request(Method::GET, "");
        own.headers_mut().insert(name.clone(), value("own"));
        assert_eq!(received(&preset, own, &name).await.as_deref(), Some("own"), "{name}");
    }
}

#[tokio::test]
async fn only_the_client_of_a_preset_sends_the_default_user_agent() {
    let server = server().await;
    let preset = StackBuilder::new(server.url()).unwrap().with_name("custom").with_api_key(key());
    for (preset, expected) in [
        (preset.clone(), StackBuilder::DEFAULT_USER_AGENT),
        (preset.clone().with_header(USER_AGENT, value("shop/1.4")), "shop/1.4"),
    ] {
        status(&preset.client().unwrap(), "/").await.unwrap();
        assert_eq!(server.seen().last().unwrap().header("user-agent"), Some(expected));
    }
    assert_eq!(StackBuilder::DEFAULT_USER_AGENT, concat!("tower-outbound/", env!("CARGO_PKG_VERSION")));
    assert_eq!(
        received(&preset, request(Method::GET, ""), &USER_AGENT).await,
        None,
        "a stack over a custom client sends no default user agent"
    );
}

#[test]
fn stack_rejects_a_key_in_a_header_that_the_stack_itself_sets() {
    for name in ["accept", "content-type", "user-agent", "x-request-id"].map(HeaderName::from_static) {
        let error =
            custom().with_key_placement(KeyPlacement::header(name.clone()).unwrap()).layer().unwrap_err();
        assert_eq!((error.field(), error.value()), ("key header", name.as_str()));
    }
    let trace = HeaderName::from_static("x-trace");
    let preset = custom().with_request_id(RequestIdLayer::new().with_header(trace.clone()));
    assert!(preset.clone().with_key_placement("header:x-request-id".parse().unwrap()).layer().is_ok());
    let error =
        preset.clone().with_key_placement(KeyPlacement::header(trace.clone()).unwrap()).layer().unwrap_err();
    assert_eq!((error.field(), error.value()), ("key header", "x-trace"));
}

#[test]
fn stack_rejects_a_default_header_whose_value_differs_between_calls_or_attempts() {
    let [id, attempt, token] = ["x-id", "x-attempt", "x-token"].map(HeaderName::from_static);
    let retry =
        RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare().with_header(token.clone()));
    let preset = custom()
        .with_request_id(RequestIdLayer::new().with_header(id.clone()))
        .with_attempt_span(AttemptSpanLayer::new().with_attempt_header(attempt.clone()))
        .with_retry(retry);
    assert!(preset.layer().is_ok());
    for name in [id, attempt, token] {
        let error = preset.clone().with_header(name.clone(), value("1")).layer().unwrap_err();
        assert_eq!((error.field(), error.value()), ("header", name.as_str()));
    }
}

#[test]
fn stack_rejects_a_default_header_for_framing_or_credentials() {
    let api_key = HeaderName::from_static("x-api-key");
    let framing = ["connection", "content-length", "host", "te", "transfer-encoding", "upgrade"];
    let framing = framing.map(HeaderName::from_static);
    for name in framing.into_iter().chain([AUTHORIZATION, PROXY_AUTHORIZATION, api_key.clone()]) {
        let preset = custom()
            .with_key_placement(KeyPlacement::header(api_key.clone()).unwrap())
            .with_header(name.clone(), value("s3cret"));
        let error = preset.layer().unwrap_err();
        assert_eq!((error.field(), error.value()), ("header", name.as_str()));
        assert!(!format!("{error} {preset:?}").contains("s3cret"), "{error}");
    }
    assert!(custom().with_header(api_key, value("not the key")).layer().is_ok());
}
