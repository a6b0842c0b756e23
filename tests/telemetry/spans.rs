//! Tests the spans of calls and attempts.

use super::*;

#[tokio::test(start_paused = true)]
async fn each_attempt_has_a_client_span_in_the_span_of_its_call() {
    let script = [Status(503), Io(ConnectionReset), Status(200)];
    let capture =
        capture_call(LevelFilter::TRACE, &script, "PUT", "https://me:pw@api.example.com:8443/v1/x?key=1")
            .await;
    let calls = capture.spans("call");
    assert_eq!((calls.len(), calls[0].parent), (1, None));
    let mut call = calls[0].fields.clone();
    assert_eq!(call.remove("request_id").unwrap().len(), 36);
    assert_eq!(
        pairs(&call),
        [
            ("attempts", "3"),
            ("http.request.method", "PUT"),
            ("http.response.status_code", "200"),
            ("service", "rates"),
            ("url.full", "https://api.example.com:8443/v1/x"),
        ]
    );

    let attempts = capture.spans("attempt");
    assert_eq!(attempts.len(), 3);
    let common = [
        ("http.request.method", "PUT"),
        ("otel.kind", "client"),
        ("otel.name", "PUT"),
        ("server.address", "api.example.com"),
        ("server.port", "8443"),
        ("url.full", "https://api.example.com:8443/v1/x"),
    ];
    let specific: [&[(&str, &str)]; 3] = [
        &[
            ("error.type", "503"),
            ("http.response.status_code", "503"),
            ("network.protocol.version", "1.1"),
            ("otel.status_code", "error"),
        ],
        &[("error.type", "reset"), ("http.request.resend_count", "1"), ("otel.status_code", "error")],
        &[
            ("http.request.resend_count", "2"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
        ],
    ];
    for (span, specific) in attempts.iter().zip(specific) {
        let mut expected = [common.as_slice(), specific].concat();
        expected.sort_unstable();
        assert_eq!(pairs(&span.fields), expected);
        assert_eq!(capture.span(span.parent.unwrap()).name, "call");
    }
    // No span covers a backoff.
    for (earlier, later) in attempts.iter().zip(&attempts[1..]) {
        assert!(earlier.closed.unwrap() + millis(40) < later.opened);
    }
}

#[tokio::test(start_paused = true)]
async fn spans_record_an_error_type_only_for_failures() {
    for (response, error_type) in [
        (Status(200), None),
        (Status(304), None),
        (Status(404), Some("404")),
        (Status(500), Some("500")),
        (Headers(200, &[("grpc-status", "0")]), None),
        (Headers(200, &[("grpc-status", "14")]), Some("UNAVAILABLE")),
        (Headers(404, &[("grpc-status", "12")]), Some("UNIMPLEMENTED")),
        (Io(BrokenPipe), Some("closed")),
        (NoResponse, Some("attempt_timeout")),
    ] {
        let capture = capture_call(LevelFilter::TRACE, &[response], "POST", URI).await;
        for span in ["call", "attempt"] {
            let spans = capture.spans(span);
            let field = |name| spans[0].fields.get(name).map(String::as_str);
            assert_eq!(field("error.type"), error_type, "{span} {response:?}");
            assert_eq!(field("otel.status_code"), error_type.map(|_| "error"), "{span} {response:?}");
            assert!(spans.len() == 1 && spans[0].closed.is_some());
        }
    }
}

/// The first call waits for its key. The second call starts a refresh of the key, which is valid for another 20 s.
#[tokio::test(start_paused = true)]
async fn span_of_a_call_contains_only_a_key_refresh_for_which_the_call_waits() {
    let (capture, _guard) = Capture::all();
    let keys = RefreshingKey::new(|| async {
        let _span = tracing::info_span!("token");
        tokio::time::sleep(secs(8)).await;
        ApiKey::new("k3y").map(|key| FreshKey::new(key).with_lifetime(secs(100)))
    });
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(AuthLayer::new(keys, Origin::parse(URI).unwrap()).unwrap())
        .service(ScriptedService::new([Status(200)]));
    for pause in [secs(80), secs(10)] {
        service.clone().oneshot(get(URI)).await.unwrap();
        tokio::time::sleep(pause).await;
    }
    let tokens = capture.spans("token");
    let parents: Vec<_> = tokens.iter().map(|token| token.parent.map(|at| capture.span(at).name)).collect();
    assert_eq!(parents, [Some("call"), None]);
    let calls = capture.spans("call");
    let took: Vec<_> = calls.iter().map(|call| (call.closed.unwrap() - call.opened).as_secs()).collect();
    assert_eq!(took, [8, 0]);
}

#[tokio::test]
async fn attempt_span_marks_unknown_methods_and_omits_missing_uri_parts() {
    let (capture, _guard) = Capture::all();
    for (method, uri) in [("PURGE", "http://[::1]/a"), ("GET", "/v1?key=s3cret"), ("GET", "http://API.test")]
    {
        AttemptSpanLayer::new()
            .layer(ScriptedService::new([Status(200)]))
            .oneshot(request(method, uri))
            .await
            .unwrap();
    }
    let spans = capture.spans("attempt");
    assert_eq!(
        pairs(&spans[0].fields),
        [
            ("http.request.method", "_OTHER"),
            ("http.request.method_original", "PURGE"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("otel.kind", "client"),
            ("otel.name", "HTTP"),
            ("server.address", "::1"),
            ("server.port", "80"),
            ("url.full", "http://[::1]/a"),
        ]
    );
    assert_eq!(
        pairs(&spans[1].fields),
        [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("otel.kind", "client"),
            ("otel.name", "GET"),
        ]
    );
    assert_eq!(spans[2].fields["server.address"], "api.test");
}

#[tokio::test(start_paused = true)]
async fn attempt_span_excludes_the_wait_for_the_limiter() {
    let (capture, _guard) = Capture::all();
    let quota = Quota::per_minute(2).unwrap().with_burst(1).unwrap();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::token_bucket(quota)))
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([Delayed(30, 200)]));
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    let (call, attempt) = (&capture.spans("call")[1], &capture.spans("attempt")[1]);
    let duration = |span: &capture::Span| span.closed.unwrap() - span.opened;
    assert!(duration(attempt) < millis(40) && duration(call) > secs(50), "{attempt:?} {call:?}");
    let waits: Vec<_> = capture.lines().into_iter().filter(|event| event.target.ends_with("limit")).collect();
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].scope, ["call"]);
}

#[tokio::test(start_paused = true)]
async fn attempt_span_records_that_the_deadline_ended_the_attempt() {
    let (capture, _guard) = Capture::all();
    let service = ServiceBuilder::new()
        .layer(TotalTimeoutLayer::new(secs(1)).unwrap())
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([NoResponse]));
    service.oneshot(get(URI)).await.unwrap_err();
    let fields = &capture.spans("attempt")[0].fields;
    assert_eq!((fields["error.type"].as_str(), fields["otel.status_code"].as_str()), ("deadline", "error"));
}

#[tokio::test(start_paused = true)]
async fn attempt_span_records_no_deadline_error_after_a_response() {
    let (capture, _guard) = Capture::all();
    let layers = (TotalTimeoutLayer::new(secs(1)).unwrap(), AttemptSpanLayer::new());
    let mut call = task::spawn(layers.layer(ScriptedService::new([Status(200)])).oneshot(get(URI)));
    assert!(call.poll().is_ready());
    tokio::time::advance(secs(2)).await;
    drop(call);
    assert!(!capture.spans("attempt")[0].fields.contains_key("error.type"));
}

#[tokio::test(start_paused = true)]
async fn events_during_call_poll_and_drop_are_in_the_attempt_span() {
    struct LogsOnDrop;

    impl Drop for LogsOnDrop {
        fn drop(&mut self) {
            tracing::info!("dropped");
        }
    }

    let client = tower::service_fn(|_: http::Request<Content>| {
        tracing::info!("called");
        let logs_on_drop = LogsOnDrop;
        async move {
            tracing::info!("polled");
            std::future::pending::<()>().await;
            drop(logs_on_drop);
            Ok::<_, std::convert::Infallible>(Response::new(()))
        }
    });
    let (capture, _guard) = Capture::all();
    let call = (RequestIdLayer::new(), AttemptSpanLayer::new()).layer(client).oneshot(get(URI));
    assert!(tokio::time::timeout(millis(10), call).await.is_err());
    let events = capture.lines();
    let messages: Vec<_> = events.iter().map(|event| event.message.as_str()).collect();
    assert_eq!(messages, ["called", "polled", "dropped"]);
    assert!(events.iter().all(|event| event.scope == ["call", "attempt"]), "{events:?}");
}
