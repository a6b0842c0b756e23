//! Tests the log events of attempts, retries and the limiter.

use super::*;

#[tokio::test(start_paused = true)]
async fn each_attempt_is_logged_at_debug_with_the_documented_fields() {
    let throttled = &[("retry-after", "2"), ("request-id", "theirs")];
    let script = [Headers(429, throttled), Io(ConnectionReset), Delayed(30, 200)];
    let capture = capture_call(LevelFilter::DEBUG, &script, "GET", URI).await;
    let events = capture.of(ATTEMPT);
    assert_eq!(events.len(), 3, "{events:?}");
    let expected: [&[(&str, &str)]; 3] = [
        &[
            ("attempt", "1"),
            ("delivery", "rejected"),
            ("http.response.status_code", "429"),
            ("network.protocol.version", "1.1"),
            ("requested_delay_ms", "2000.0"),
            ("server_request_id", "theirs"),
        ],
        &[("attempt", "2"), ("delivery", "maybe_processed"), ("error.type", "reset")],
        &[("attempt", "3"), ("http.response.status_code", "200"), ("network.protocol.version", "1.1")],
    ];
    for ((event, expected), elapsed) in events.into_iter().zip(expected).zip([0.0, 0.0, 30.0]) {
        assert_eq!((event.level, event.message.as_str()), (Level::DEBUG, "attempt ended"));
        assert_eq!(event.scope, ["call"], "the span of the call has the id");
        let mut fields = event.fields;
        assert_eq!(fields.remove("elapsed_ms").unwrap().parse::<f64>().unwrap().round(), elapsed);
        assert_eq!(pairs(&fields), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn events_of_failed_attempts_have_the_documented_error_types() {
    for (response, error_type, delivery) in [
        (Refused, "connect_refused", "not_sent"),
        (Io(ConnectionReset), "reset", "maybe_processed"),
        (NoResponse, "attempt_timeout", "maybe_processed"),
    ] {
        let capture = capture_call(LevelFilter::DEBUG, &[response, Status(200)], "GET", URI).await;
        let fields = &capture.of(ATTEMPT)[0].fields;
        assert_eq!((&*fields["error.type"], &*fields["delivery"]), (error_type, delivery));
    }
    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let bucket = LocalLimiter::token_bucket(Quota::per_minute(1).unwrap());
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket).with_max_wait(secs(1)))
        .service(ScriptedService::new([Status(503)]));
    service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(capture.of(ATTEMPT)[1].fields["error.type"], "rate_limited");
    assert_eq!(capture.of(CALL)[0].fields["error.type"], "rate_limited");

    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let auth = AuthLayer::new(ApiKey::new("k").unwrap(), Origin::parse(URI).unwrap()).unwrap();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(auth)
        .service(ScriptedService::new([Status(200)]));
    service.oneshot(get("/v1")).await.unwrap_err();
    assert_eq!(capture.of(CALL)[0].fields["error.type"], "auth");
}

#[tokio::test(start_paused = true)]
async fn each_backoff_and_the_end_of_the_retries_are_logged_at_debug() {
    let capture =
        capture_call(LevelFilter::DEBUG, &[Status(503), Status(503), Status(503)], "GET", URI).await;
    let events = capture.of(RETRY);
    let summaries: Vec<_> =
        events.iter().map(|event| (event.level, event.message.as_str(), field_names(event))).collect();
    let retrying = (Level::DEBUG, "retrying", sorted(["delay_ms", "reason"]));
    let stopped = (Level::DEBUG, "no further attempt", sorted(["stop_reason"]));
    assert_eq!(summaries, [retrying.clone(), retrying, stopped]);
    assert_eq!(events[2].fields["stop_reason"], "exhausted");
    let delay: f64 = events[0].fields["delay_ms"].parse().unwrap();
    assert!((50.0..=100.0).contains(&delay));
    assert_eq!(events[0].fields["reason"], "transient");
    let success = capture_call(LevelFilter::DEBUG, &[Status(200)], "GET", URI).await;
    assert!(success.of(RETRY).is_empty());
}

#[tokio::test(start_paused = true)]
async fn limiter_logs_a_wait_at_debug_and_a_pause_at_info() {
    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates".to_owned()))
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::without_quota()))
        .service(ScriptedService::new([Headers(429, &[("retry-after", "3")]), Status(200)]));
    let _ = tokio::join!(service.clone().oneshot(get(URI)), async {
        tokio::time::sleep(millis(1)).await;
        service.oneshot(get(URI)).await
    });
    let events = capture.of(LIMIT);
    assert_eq!((events[0].level, field_names(&events[0])), (Level::INFO, vec!["pause_ms", "service"]));
    assert_eq!(events[0].fields["pause_ms"], "3000.0");
    assert!(events.len() > 1, "the second call waited");
    for event in &events[1..] {
        assert_eq!((event.level, field_names(event)), (Level::DEBUG, vec!["queued_ms", "service"]));
    }
    assert!(events.iter().all(|event| event.fields["service"] == "rates"));
    let calls = capture.of(CALL);
    let waited: Vec<_> = calls.iter().filter_map(|event| event.fields.get("queued_ms").cloned()).collect();
    assert!(waited.iter().any(|waited| waited.parse::<f64>().unwrap() >= 2_999.0), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn limiter_logs_a_pause_at_warn_if_it_exceeds_the_longest_pause() {
    let (capture, _guard) = Capture::at(LevelFilter::INFO);
    let limiter = LocalLimiter::paced_window(Quota::per_second(10).unwrap().with_burst(5).unwrap());
    let responses = [Status(429), Headers(429, &[("retry-after", "7200")])];
    let service = RateLimitLayer::new(limiter).layer(ScriptedService::new(responses));
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    let events = capture.of(LIMIT);
    let field = |event: usize, name: &str| &*events[event].fields[name];
    assert_eq!((events[0].level, field(0, "pause_ms")), (Level::INFO, "1000.0"));
    assert_eq!((events[1].level, field(1, "pause_ms")), (Level::WARN, "7200000.0"));
    assert_eq!(field(1, "probe_after_ms"), "3600000.0");
}

#[tokio::test(start_paused = true)]
async fn debug_event_of_a_call_with_one_attempt_shows_the_attempt() {
    let throttled = [Headers(429, &[("retry-after", "999"), ("request-id", "theirs")])];
    for (script, fields) in [
        (&[Status(200)][..], &["network.protocol.version"][..]),
        (&throttled, &["delivery", "network.protocol.version", "requested_delay_ms"]),
        (&[Io(ConnectionReset)], &["delivery"]),
    ] {
        let names = |event: &capture::Line| {
            let names: BTreeSet<_> = event.fields.keys().cloned().collect();
            ["attempt_log", "attempt"].iter().for_each(|name| assert!(!names.contains(*name), "{names:?}"));
            names
        };
        let debug = capture_call(LevelFilter::DEBUG, script, "POST", URI).await;
        let info = capture_call(LevelFilter::INFO, script, "POST", URI).await;
        assert_eq!((debug.of(ATTEMPT).len(), debug.of(CALL).len()), (0, 1));
        let (debug, info) = (names(&debug.of(CALL)[0]), names(&info.of(CALL)[0]));
        assert_eq!(debug.difference(&info).collect::<Vec<_>>(), fields);
    }
}

/// Without an event of the call, the attempt needs its own.
#[tokio::test(start_paused = true)]
async fn only_attempt_of_a_call_has_its_own_event_if_the_event_of_the_call_is_not_logged() {
    let attempt_only: fn(&Metadata<'_>) -> bool = |metadata| metadata.target() == ATTEMPT;
    for (layer, filter) in [
        (RequestIdLayer::new(), attempt_only),
        (RequestIdLayer::new().with_log_level(Level::TRACE), |metadata| *metadata.level() <= Level::DEBUG),
    ] {
        let (capture, _) = Capture::subscriber(LevelFilter::OFF);
        let subscriber = Registry::default().with(filter_fn(filter)).with(capture.clone());
        let _guard = tracing::subscriber::set_default(subscriber);
        let layers = (layer, RetryLayer::new());
        layers.layer(ScriptedService::new([Status(200)])).oneshot(get(URI)).await.unwrap();
        let [event] = &capture.ours()[..] else { panic!("{:?}", capture.ours()) };
        assert_eq!(event.message, "attempt ended");
    }
}

/// The retry layer does not know that an outer layer continues the call after the only attempt.
#[tokio::test(start_paused = true)]
async fn each_attempt_of_a_redirected_call_is_logged_once() {
    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(FollowRedirectLayer::new())
        .layer(RetryLayer::new())
        .service(ScriptedService::new([
            Headers(303, &[("location", "/v2")]),
            Io(ConnectionReset),
            Status(200),
        ]));
    service.oneshot(request("POST", URI)).await.unwrap();
    let events: Vec<_> = capture.ours().into_iter().filter(|event| event.target != RETRY).collect();
    let fields =
        ["attempt", "http.response.status_code", "network.protocol.version", "error.type", "attempts"];
    let shown: Vec<_> =
        events.iter().map(|event| fields.map(|name| event.fields.get(name).map(String::as_str))).collect();
    let (status, version) = (Some("200"), Some("1.1"));
    assert_eq!(
        shown,
        [
            [Some("1"), Some("303"), version, None, None],
            [Some("2"), None, None, Some("reset"), None],
            [Some("3"), status, version, None, None],
            [None, status, None, None, Some("3")],
        ]
    );
}

/// A layer between two request id layers continues the call after an event that shows its only attempt.
#[tokio::test(start_paused = true)]
async fn attempt_in_the_event_of_an_inner_call_is_not_logged_again() {
    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(FollowRedirectLayer::new())
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .service(ScriptedService::new([Headers(303, &[("location", "/v2")]), Status(200)]));
    service.oneshot(request("POST", URI)).await.unwrap();
    let messages: Vec<_> = capture.ours().into_iter().map(|event| event.message).collect();
    assert_eq!(messages, ["call completed", "attempt ended", "call completed", "call completed"]);
    assert_eq!(capture.of(ATTEMPT)[0].fields["attempt"], "2");
}

/// The error of the only attempt is the result of the call in the retry layer, and a fallback of an outer layer sends
/// another request for the call.
#[tokio::test(start_paused = true)]
async fn failed_attempt_before_a_fallback_is_logged() {
    for (response, error_type) in [(Io(ConnectionReset), "reset"), (NoResponse, "attempt_timeout")] {
        let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
        let layers = ServiceBuilder::new()
            .layer(RetryLayer::new().with_max_attempts(1).unwrap())
            .layer(AttemptTimeoutLayer::new(secs(5)).unwrap());
        let service = layers.service(ScriptedService::new([response, Status(200)]));
        let service = RequestIdLayer::new().layer(tower::service_fn(|request: Request<Content>| {
            let (service, again) = (service.clone(), request.clone());
            async move {
                match service.clone().oneshot(request).await {
                    Err(_) => service.oneshot(again).await,
                    response => response,
                }
            }
        }));
        service.oneshot(get(URI)).await.unwrap();
        let events = capture.of(ATTEMPT);
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!((&*events[0].fields["attempt"], &*events[0].fields["error.type"]), ("1", error_type));
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_that_the_total_deadline_ends_is_logged_only_if_its_attempt_timeout_runs() {
    for (has_attempt_timeout, is_queued) in [(true, false), (false, false), (true, true)] {
        let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
        let limiter = LocalLimiter::without_quota().with_max_in_flight(1).unwrap();
        let _in_flight = is_queued.then(|| limiter.try_acquire_owned().unwrap());
        let attempt_timeout = ServiceBuilder::new()
            .map_err(|error: tower_outbound::Error| BoxError::from(error))
            .layer(AttemptTimeoutLayer::new(secs(5)).unwrap());
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new().with_log_level(Level::DEBUG))
            .layer(TotalTimeoutLayer::new(secs(3)).unwrap())
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(limiter))
            .option_layer(has_attempt_timeout.then_some(attempt_timeout))
            .service(ScriptedService::new([NoResponse]));
        let error = service.oneshot(get(URI)).await.unwrap_err();
        let [report] = &error.report().unwrap().attempts()[..] else { panic!("{error:?}") };
        let is_logged = has_attempt_timeout && !is_queued;
        assert_eq!((report.ended.is_some(), report.outcome.is_some()), (is_logged, is_logged));
        let events = capture.of(ATTEMPT);
        let error_types: Vec<_> = events.iter().map(|event| &*event.fields["error.type"]).collect();
        assert_eq!(error_types, if is_logged { &["deadline"][..] } else { &[] });
    }
}
