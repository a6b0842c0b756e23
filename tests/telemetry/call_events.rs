//! Tests the log event at the end of a call.

use super::*;

#[tokio::test(start_paused = true)]
async fn event_of_a_completed_call_does_not_repeat_the_fields_of_its_span() {
    let script = [Status(503), Headers(200, &[("request-id", "theirs")])];
    let capture =
        capture_call(LevelFilter::DEBUG, &script, "PUT", "https://api.example.com:8443/v1/x?q=1").await;
    let calls = capture.of(CALL);
    assert_eq!(calls.len(), 1, "{calls:?}");
    let event = &calls[0];
    assert_eq!((event.level, event.message.as_str()), (Level::INFO, "call completed"));
    assert_eq!(
        field_names(event),
        sorted([
            "http.response.status_code",
            "attempts",
            "attempt_log",
            "backoff_ms",
            "elapsed_ms",
            "server_request_id",
        ])
    );
    for (field, value) in [
        ("server_request_id", "theirs"),
        ("http.response.status_code", "200"),
        ("attempts", "2"),
        ("attempt_log", "503@0ms, 200@0ms"),
    ] {
        assert_eq!(event.fields[field], value, "{field}");
    }
    let span = capture.span(event.span.unwrap());
    assert_eq!((span.name, span.fields["service"].as_str()), ("call", "rates"));
    assert_eq!(span.fields["request_id"].len(), 36);
    assert_eq!(
        (&*span.fields["http.request.method"], &*span.fields["url.full"]),
        ("PUT", "https://api.example.com:8443/v1/x")
    );
    let elapsed: f64 = event.fields["elapsed_ms"].parse().unwrap();
    assert!((50.0..=102.0).contains(&elapsed), "{elapsed}");
    assert!((elapsed * 10.0).fract() == 0.0, "{elapsed} has one decimal place");
}

#[tokio::test(start_paused = true)]
async fn event_without_a_service_name_contains_the_server_address_and_no_empty_fields() {
    let (capture, _guard) = Capture::at(LevelFilter::INFO);
    RequestIdLayer::new()
        .layer(ScriptedService::new([Status(200)]))
        .oneshot(get("https://api.example.com/v1"))
        .await
        .unwrap();
    let calls = capture.of(CALL);
    assert_eq!(
        field_names(&calls[0]),
        sorted([
            "request_id",
            "http.request.method",
            "server.address",
            "server.port",
            "url.path",
            "http.response.status_code",
            "elapsed_ms",
        ])
    );
    assert_eq!(capture.ours().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn completed_calls_are_logged_at_the_configured_level_and_failed_calls_at_warn() {
    for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
        let (capture, _guard) = Capture::at(LevelFilter::TRACE);
        let layer = RequestIdLayer::new().with_log_level(level);
        let service = layer.layer(ScriptedService::new([Status(200), Status(500)]));
        for _ in 0..2 {
            service.clone().oneshot(get(URI)).await.unwrap();
        }
        let events: Vec<_> =
            capture.of(CALL).iter().map(|event| (event.level, event.message.clone())).collect();
        assert_eq!(events, [(level, "call completed".into()), (Level::WARN, "call failed".into())]);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_calls_are_logged_at_warn_and_rejected_requests_at_info() {
    const LATER: Scripted = Headers(429, &[("retry-after", "90")]);
    const NEVER: Scripted = Headers(429, &[("x-should-retry", "false")]);
    const TOO_LATE: Scripted = Headers(429, &[("retry-after", "999")]);
    let (warn, info) = (Level::WARN, Level::INFO);
    // A status, or an error type without digits.
    type Case<'a> = (&'a [Scripted], &'a str, Level, &'a str, usize, Option<&'a str>);
    let cases: [Case<'_>; 18] = [
        (&[Status(204)], "GET", info, "204", 1, None),
        (&[Status(304)], "GET", info, "304", 1, None),
        (&[Status(101)], "GET", info, "101", 1, None),
        (&[Status(404)], "GET", info, "404", 1, None),
        (&[Status(401)], "GET", info, "401", 1, None),
        (&[Status(400)], "POST", info, "400", 1, None),
        (&[Status(501)], "GET", warn, "501", 1, Some("not_retryable")),
        (&[Status(503)], "GET", warn, "503", 3, Some("exhausted")),
        (&[Status(503)], "POST", warn, "503", 1, Some("not_idempotent")),
        (&[Status(429)], "GET", warn, "429", 3, Some("exhausted")),
        (&[NEVER], "GET", warn, "429", 1, Some("not_retryable")),
        (&[Status(408)], "POST", warn, "408", 1, Some("not_idempotent")),
        (&[TOO_LATE], "GET", warn, "429", 1, Some("requested_delay_too_long")),
        (&[LATER], "GET", warn, "429", 1, Some("deadline")),
        (&[Status(503), Io(BrokenPipe)], "GET", warn, "closed", 3, Some("exhausted")),
        (&[NoResponse], "GET", warn, "attempt_timeout", 3, Some("exhausted")),
        (&[NoResponse], "POST", warn, "attempt_timeout", 1, Some("not_idempotent")),
        (&[Status(500), NoResponse, Status(400)], "GET", info, "400", 3, None),
    ];
    for (script, method, level, result, attempts, stop_reason) in cases {
        let capture = capture_call(LevelFilter::DEBUG, script, method, URI).await;
        let calls = capture.of(CALL);
        assert_eq!(calls.len(), 1, "{calls:?}");
        let event = &calls[0];
        let message = if level == warn { "call failed" } else { "call completed" };
        assert_eq!((event.level, event.message.as_str()), (level, message), "{script:?}");
        let field = |name: &str| event.fields.get(name).map(String::as_str);
        let name = if result.parse::<u16>().is_ok() { "http.response.status_code" } else { "error.type" };
        assert_eq!(field(name), Some(result), "{script:?}");
        let attempts_field = (attempts > 1).then(|| attempts.to_string());
        assert_eq!(field("attempts"), attempts_field.as_deref(), "{script:?}");
        assert_eq!(field("stop_reason"), stop_reason, "{script:?}");
        let events = if attempts > 1 { attempts } else { 0 };
        assert_eq!(capture.of(ATTEMPT).len(), events, "one event for each of several attempts: {script:?}");
    }
}

/// Each call fails this way until the account's quota is raised.
#[tokio::test(start_paused = true)]
async fn permanent_responses_are_logged_at_warn_whatever_their_status() {
    for status in [401, 402, 403, 429] {
        let (capture, _guard) = Capture::at(LevelFilter::INFO);
        let stack = StackBuilder::new(URI).unwrap().without_credential();
        let stack = stack.with_server_signal(|status: StatusCode, _: &HeaderMap| {
            (status != StatusCode::NOT_FOUND).then(|| ServerSignal::throttled().with_permanent())
        });
        let service = stack.layer().unwrap().layer(ScriptedService::new([Status(status), Status(404)]));
        for expected in [(Level::WARN, Some("not_retryable")), (Level::INFO, None)] {
            service.clone().oneshot(get(URI)).await.unwrap();
            let calls = capture.of(CALL);
            let call = calls.last().unwrap();
            let stop_reason = call.fields.get("stop_reason").map(String::as_str);
            assert_eq!((call.level, stop_reason), expected, "{status}");
        }
    }
}

/// A failed gRPC call has the HTTP status 200.
#[tokio::test(start_paused = true)]
async fn grpc_status_is_in_the_event_of_the_call_and_in_the_attempt_span() {
    for (code, status) in [(0, "OK"), (7, "PERMISSION_DENIED"), (14, "UNAVAILABLE")] {
        let (capture, event) = grpc_call(code).await;
        for fields in [&event.fields, &capture.spans("attempt")[0].fields] {
            let shown = ["http.response.status_code", "rpc.response.status_code"].map(|name| &*fields[name]);
            assert_eq!(shown, ["200", status]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_server_failures_are_logged_at_warn() {
    for code in 0..=16 {
        let event = grpc_call(code).await.1;
        let expected = match code {
            2 | 4 | 12..=15 => (Level::WARN, "call failed"),
            _ => (Level::INFO, "call completed"),
        };
        assert_eq!((event.level, &*event.message), expected, "{code}");
    }
}

/// Makes a call whose response has this gRPC status. Returns the event of the call.
async fn grpc_call(code: u8) -> (Capture, capture::Line) {
    let response = ScriptedResponse::status(200).with_header("grpc-status", &code.to_string());
    let (capture, _guard) = Capture::all();
    let layers = (RequestIdLayer::new(), AttemptSpanLayer::new());
    layers.layer(ScriptedService::new([response])).oneshot(request("POST", URI)).await.unwrap();
    let event = capture.of(CALL).remove(0);
    (capture, event)
}

#[tokio::test(start_paused = true)]
async fn dropped_call_logs_no_event() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let mut call =
        task::spawn(RequestIdLayer::new().layer(ScriptedService::new([NoResponse])).oneshot(get(URI)));
    assert_pending!(call.poll());
    drop(call);
    assert!(capture.ours().is_empty());
}

/// Returns the log of a call in the default format of tracing-subscriber, with the timestamp.
async fn log_line(request: Request<Content>) -> String {
    let text = Arc::new(Mutex::new(Vec::new()));
    let writer = {
        let text = Arc::clone(&text);
        move || SharedBuffer(Arc::clone(&text))
    };
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let preset = StackBuilder::new("https://api.example.com").unwrap().with_name("rates");
    let preset = preset.with_api_key(ApiKey::new("k3y").unwrap());
    let service = preset.layer().unwrap().layer(ScriptedService::new([Delayed(1_234, 200)]));
    service.oneshot(request).await.unwrap();
    drop(guard);
    let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
    let [line] = &text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    (*line).to_owned()
}

#[tokio::test(start_paused = true)]
async fn ids_and_paths_are_logged_in_quotes_only_if_they_need_them() {
    for (id, path, logged_id, logged_path) in [
        ("7f0c-1", "v1/rates", "7f0c-1", "/v1/rates"),
        ("a attempts=9", "v1", r#""a attempts=9""#, "/v1"),
        (r#"a"b\c"#, "v1/{}", r#""a\"b\\c""#, "/v1/{}"),
        ("", "", r#""""#, "/"),
    ] {
        let mut request = get(&format!("https://api.example.com/{path}"));
        request.headers_mut().insert("x-request-id", id.parse().unwrap());
        let line = log_line(request).await;
        assert!(line.contains(&format!(" request_id={logged_id} http.request.method=GET ")), "{line}");
        assert!(line.contains(&format!(" url.path={logged_path} ")), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn log_line_of_a_plain_get_call_has_at_most_240_characters() {
    let line = log_line(get("https://api.example.com/v1/rates/EUR?q=1")).await;
    assert!(line.len() <= 240, "{}: {line}", line.len());
    assert!(line.contains("call completed") && line.contains("elapsed_ms=123"), "{line}");
    assert_eq!((line.matches("request_id=").count(), line.matches("service=").count()), (1, 1), "{line}");
}

/// Each body stalls, except the body of the response number `good`.
#[cfg(feature = "client")]
async fn capture_broken_bodies(level: LevelFilter, good: usize) -> Capture {
    let (capture, _guard) = Capture::at(level);
    let service = ScriptedService::from_fn(move |seen| {
        let response = ScriptedResponse::status(200).with_body("part");
        if seen.number == good { response } else { response.with_body_stalled() }
    });
    let preset = StackBuilder::new(URI).unwrap().without_credential().with_name("rates");
    let client = preset.with_body_idle_timeout(secs(2)).client_with_service(service).unwrap();
    let _ = client.get("/v1/rates").fetch_text().await;
    capture
}

#[cfg(feature = "client")]
#[tokio::test(start_paused = true)]
async fn call_that_is_retried_after_its_body_broke_logs_one_completed_event() {
    let capture = capture_broken_bodies(LevelFilter::INFO, 2).await;
    let [completed] = &capture.ours()[..] else { panic!("{:?}", capture.ours()) };
    assert_eq!((completed.level, &*completed.message), (Level::INFO, "call completed"));
    assert!(!completed.fields.contains_key("attempts"), "the event is emitted before the body is read");

    let capture = capture_broken_bodies(LevelFilter::TRACE, 2).await;
    let lines: Vec<_> = capture.ours().into_iter().filter(|line| line.target != LIMIT).collect();
    let messages: Vec<_> = lines.iter().map(|line| line.message.as_str()).collect();
    assert_eq!(messages, ["call completed", "attempt ended", "retrying", "attempt ended"], "{lines:#?}");
    let field = |at: usize, name: &str| lines[at].fields.get(name).map(String::as_str);
    assert_eq!([1, 3].map(|at| field(at, "attempt")), [Some("1"), Some("2")]);
    let status = [0, 1, 3].map(|at| field(at, "http.response.status_code"));
    assert_eq!((status, field(1, "error.type")), ([Some("200"), None, Some("200")], Some("body_timeout")));
    // The retry has a span of its own, with the id of the call.
    let calls = capture.spans("call");
    assert_eq!((calls.len(), &calls[0].fields["request_id"]), (2, &calls[1].fields["request_id"]));
    assert_eq!(calls[1].fields["attempts"], "2");
    let attempts = capture.spans("attempt");
    assert_eq!((attempts.len(), &*attempts[1].fields["http.request.resend_count"]), (2, "1"));
}

#[cfg(feature = "client")]
#[tokio::test(start_paused = true)]
async fn call_whose_retries_after_broken_bodies_are_exhausted_also_logs_a_failed_event() {
    let capture = capture_broken_bodies(LevelFilter::INFO, usize::MAX).await;
    let lines = capture.ours();
    let messages: Vec<_> = lines.iter().map(|line| (line.level, line.message.as_str())).collect();
    assert_eq!(messages, [(Level::INFO, "call completed"), (Level::WARN, "call failed")]);
    let field = |name: &str| lines[1].fields.get(name).map(String::as_str);
    assert_eq!(field("request_id"), lines[0].fields.get("request_id").map(String::as_str));
    assert_eq!((field("error.type"), field("stop_reason")), (Some("body_timeout"), Some("exhausted")));
    assert_eq!(field("attempts"), Some("3"));
    let elapsed: f64 = field("elapsed_ms").unwrap().parse().unwrap();
    assert!((6_000.0..7_000.0).contains(&elapsed), "{elapsed}");
}

#[tokio::test(start_paused = true)]
async fn event_has_the_request_id_only_if_the_span_of_its_layer_is_disabled() {
    let layers =
        || [RequestIdLayer::new().with_service("rates"), RequestIdLayer::new().with_service("rates")];
    for inner_has_span in [true, false] {
        let (capture, _guard) = Capture::at(LevelFilter::INFO);
        let [mut outer, mut inner] = layers();
        match inner_has_span {
            true => inner = inner.with_info_spans(),
            false => outer = outer.with_info_spans(),
        }
        let service = (outer, inner).layer(ScriptedService::new([Status(200)]));
        service.oneshot(get(URI)).await.unwrap();
        let names = ["service", "request_id", "http.request.method", "url.path"];
        let calls = capture.of(CALL);
        assert_eq!(calls.len(), 2, "{calls:?}");
        for (event, is_in_span) in calls.iter().zip([inner_has_span, !inner_has_span]) {
            let shown = names.map(|name| event.fields.contains_key(name));
            assert_eq!(shown, [!is_in_span; 4], "{inner_has_span} {event:?}");
        }
    }
}

struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
