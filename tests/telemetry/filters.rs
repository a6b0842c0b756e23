//! Tests that a subscriber can filter events and spans by their metadata.

use super::*;

/// Makes a call whose attempts return 429 and 404, and a call that returns 200. Returns the messages of the events that
/// pass the filter.
async fn messages_through(filter: fn(&Metadata<'_>) -> bool) -> Vec<String> {
    let (capture, _) = Capture::subscriber(LevelFilter::OFF);
    let filtered = capture.clone().with_filter(filter_fn(filter));
    let _guard = tracing::subscriber::set_default(Registry::default().with(filtered));
    let quota = Quota::per_minute(2).unwrap();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::sliding_window(quota)))
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([Headers(429, &[("retry-after", "3")]), Status(404), Status(200)]));
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    capture.lines().into_iter().map(|event| event.message).collect()
}

#[tokio::test(start_paused = true)]
async fn filter_that_excludes_spans_passes_all_events() {
    let messages = [
        "limiter paused by the server",
        "attempt ended",
        "retrying",
        "attempt ended",
        "no further attempt",
        "call completed",
        "waited for the limiter",
        "call completed",
    ];
    assert_eq!(messages_through(|_| true).await, messages);
    assert_eq!(messages_through(|metadata| metadata.is_event()).await, messages);
}

#[tokio::test(start_paused = true)]
async fn events_contain_service_and_request_id_if_the_call_span_is_disabled() {
    let capture = capture_events(LevelFilter::WARN, &[Status(500)], "POST", URI).await;
    let [event] = &capture.ours()[..] else { panic!("expected one event") };
    assert_eq!((event.fields["service"].as_str(), event.fields["request_id"].len()), ("rates", 36));
    assert!(event.scope.is_empty());

    // The events of attempts and retries also contain the service and the request id.
    let is_event = |metadata: &Metadata<'_>| metadata.is_event();
    let (capture, _) = Capture::subscriber(LevelFilter::OFF);
    let filtered = Registry::default().with(filter_fn(is_event)).with(capture.clone());
    let guard = tracing::subscriber::set_default(filtered);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(RetryLayer::new())
        .service(ScriptedService::new([Status(503), Status(404)]));
    service.oneshot(get(URI)).await.unwrap();
    drop(guard);
    let events = capture.ours();
    assert_eq!(events.len(), 5, "{events:?}");
    for event in events {
        let (service, request_id) = (event.fields["service"].as_str(), &event.fields["request_id"]);
        assert_eq!((service, request_id.len()), ("rates", 36), "{}", event.message);
    }
}
