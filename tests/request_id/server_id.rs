//! Tests the server's request id: the headers that carry the id, and the reports that contain the id.

use super::*;

#[tokio::test]
async fn server_request_id_is_read_from_the_first_known_header() {
    type Case = (&'static [(&'static str, &'static str)], Option<&'static str>);
    let cases: [Case; 8] = [
        (&[("x-request-id", "a")], Some("a")),
        (&[("request-id", "b")], Some("b")),
        (&[("x-amzn-requestid", "c")], Some("c")),
        (&[("x-correlation-id", "d")], Some("d")),
        (&[("cf-ray", "e")], Some("e")),
        (&[("x-trace", "f")], None),
        // The layer tries the headers in the documented order, not in the order of the response.
        (&[("cf-ray", "e"), ("x-correlation-id", "d"), ("request-id", "b")], Some("b")),
        (
            &[
                ("cf-ray", "e"),
                ("x-correlation-id", "d"),
                ("x-amzn-requestid", "c"),
                ("request-id", "b"),
                ("x-request-id", "a"),
            ],
            Some("a"),
        ),
    ];
    for (headers, expected) in cases {
        let service = RequestIdLayer::new().layer(ScriptedService::new([Headers(200, headers)]));
        let response = service.oneshot(get(URI)).await.unwrap();
        let id = report(&response).server_request_id();
        assert_eq!(id.as_ref().map(|id| id.to_str().unwrap()), expected, "{headers:?}");
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

#[tokio::test]
async fn server_request_id_is_read_from_custom_headers() {
    let scripted = Headers(200, &[("x-request-id", "a"), ("x-trace", "t"), ("x-span", "s")]);
    for (headers, expected) in [
        (vec![header("x-trace")], Some("t")),
        (vec![header("x-span"), header("x-trace")], Some("s")),
        (vec![header("x-none"), header("x-trace")], Some("t")),
        (vec![], None),
    ] {
        let layer = RequestIdLayer::new().with_server_headers(headers);
        let response = layer.layer(ScriptedService::new([scripted])).oneshot(get(URI)).await.unwrap();
        let id = report(&response).server_request_id();
        assert_eq!(id.as_ref().map(|id| id.to_str().unwrap()), expected);
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
