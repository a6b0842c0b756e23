//! Tests the server's request id: the headers that carry the id, and the reports that contain the id.

use super::*;

/// The layer tries the headers in the documented or the configured order, not in the order of the response.
#[tokio::test]
async fn server_request_id_is_read_from_the_first_known_or_configured_header() {
    type Fields = &'static [(&'static str, &'static str)];
    const ALL: Fields = &[
        ("cf-ray", "e"),
        ("x-correlation-id", "d"),
        ("x-amzn-requestid", "c"),
        ("request-id", "b"),
        ("x-request-id", "a"),
    ];
    const CUSTOM: Fields = &[("x-request-id", "a"), ("x-trace", "t"), ("x-span", "s")];
    type Case = (Option<&'static [&'static str]>, Fields, Option<&'static str>);
    let cases: [Case; 12] = [
        (None, &[("x-request-id", "a")], Some("a")),
        (None, &[("request-id", "b")], Some("b")),
        (None, &[("x-amzn-requestid", "c")], Some("c")),
        (None, &[("x-correlation-id", "d")], Some("d")),
        (None, &[("cf-ray", "e")], Some("e")),
        (None, &[("x-trace", "f")], None),
        (None, &[("cf-ray", "e"), ("x-correlation-id", "d"), ("request-id", "b")], Some("b")),
        (None, ALL, Some("a")),
        (Some(&["x-trace"]), CUSTOM, Some("t")),
        (Some(&["x-span", "x-trace"]), CUSTOM, Some("s")),
        (Some(&["x-none", "x-trace"]), CUSTOM, Some("t")),
        (Some(&[]), CUSTOM, None),
    ];
    for (configured, headers, expected) in cases {
        let mut layer = RequestIdLayer::new();
        if let Some(names) = configured {
            layer = layer.with_server_headers(names.iter().map(|name| header(name)));
        }
        let service = layer.layer(ScriptedService::new([Headers(200, headers)]));
        let response = service.oneshot(get(URI)).await.unwrap();
        let id = report(&response).server_request_id();
        assert_eq!(id.as_ref().map(|id| id.to_str().unwrap()), expected, "{configured:?} {headers:?}");
        assert_eq!(response.headers().len(), headers.len(), "the response is unchanged");
        for (name, value) in headers {
            assert_eq!(response.headers()[*name], value);
        }
    }
}

#[tokio::test]
async fn request_id_layer_reads_the_next_header_if_the_server_id_is_too_long() {
    for (length, is_kept) in [(128, true), (129, false), (65_536, false)] {
        let long = "x".repeat(length);
        let scripted =
            ScriptedResponse::status(200).with_header("x-request-id", &long).with_header("cf-ray", "e");
        let response =
            RequestIdLayer::new().layer(ScriptedService::new([scripted])).oneshot(get(URI)).await.unwrap();
        let id = report(&response).server_request_id().unwrap();
        assert_eq!(id, if is_kept { long.as_str() } else { "e" }, "{length}");
        assert_eq!(response.headers()["x-request-id"], long, "the response is unchanged");
    }
}

#[tokio::test(start_paused = true)]
async fn report_has_the_server_request_id_of_each_attempt() {
    let script =
        [Headers(503, &[("cf-ray", "one")]), Headers(503, &[]), Headers(200, &[("x-request-id", "three")])];
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .service(ScriptedService::new(script));
    let response = service.oneshot(get(URI)).await.unwrap();
    let attempts = report(&response).attempts();
    let ids: Vec<_> = attempts
        .iter()
        .map(|attempt| attempt.server_request_id.as_ref().map(|id| id.to_str().unwrap()))
        .collect();
    assert_eq!(ids, [Some("one"), None, Some("three")]);
    assert_eq!(report(&response).server_request_id().unwrap(), "three");
}

/// A layer outside the retry layer, such as a cache, may return its own response.
#[tokio::test(start_paused = true)]
async fn report_keeps_the_server_request_id_if_a_layer_replaces_the_response() {
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .map_response(|_: Response<_>| {
            Response::builder().header("x-request-id", "cached").body(Content::default()).unwrap()
        })
        .layer(RetryLayer::new())
        .service(ScriptedService::new([Headers(200, &[("x-request-id", "theirs")])]));
    let response = service.oneshot(get(URI)).await.unwrap();
    assert_eq!(report(&response).server_request_id().unwrap(), "theirs");
}

/// The inner service makes a nested call and returns the response of that call, which contains a report.
#[tokio::test]
async fn report_has_the_server_request_id_of_a_nested_call() {
    let inner =
        RequestIdLayer::new().layer(ScriptedService::new([Headers(200, &[("x-request-id", "theirs")])]));
    let (sender, receiver) = std::sync::mpsc::channel();
    let service = RequestIdLayer::new().layer(tower::service_fn(move |request: Request<Content>| {
        sender.send(request.extensions().get::<CallContext>().unwrap().report()).unwrap();
        inner.clone().oneshot(get(URI))
    }));
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(receiver.recv().unwrap().server_request_id().unwrap(), "theirs");
}
