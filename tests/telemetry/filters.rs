//! Tests that a subscriber can filter events and spans by their metadata.

use super::*;

/// Makes a call whose attempts return 429 and 404, and a call that returns 200. Returns the events that pass the
/// filter of one layer of the subscriber, or of all.
async fn events_through(filter: fn(&Metadata<'_>) -> bool, is_of_layer: bool) -> Vec<capture::Line> {
    let (capture, _) = Capture::subscriber(LevelFilter::OFF);
    let (registry, layer, filter) = (Registry::default(), capture.clone(), filter_fn(filter));
    let _guard = match is_of_layer {
        true => tracing::subscriber::set_default(registry.with(layer.with_filter(filter))),
        false => tracing::subscriber::set_default(registry.with(filter).with(layer)),
    };
    let quota = Quota::per_minute(2).unwrap();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::sliding_window(quota)))
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([Headers(429, &[("retry-after", "3")]), Status(404), Status(200)]));
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    capture.ours()
}

#[tokio::test(start_paused = true)]
async fn filter_that_excludes_spans_passes_all_events_with_service_and_request_id() {
    let all = events_through(|_| true, false).await;
    let messages: Vec<_> = all.iter().map(|event| event.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "limiter paused by the server",
            "attempt ended",
            "retrying",
            "attempt ended",
            "no further attempt",
            "call completed",
            "waited for the limiter",
            "call completed",
        ]
    );
    // The filter of a layer does not always disable the span for the crate, so the span may carry service and id.
    let through_layer = events_through(|metadata| metadata.is_event(), true).await;
    assert!(through_layer.iter().map(|event| event.message.as_str()).eq(messages.iter().copied()));
    let without_spans = events_through(|metadata| metadata.is_event(), false).await;
    assert!(without_spans.iter().map(|event| event.message.as_str()).eq(messages.iter().copied()));
    for event in without_spans {
        assert!(event.fields["service"] == "rates" && event.scope.is_empty(), "{event:?}");
        // The limiter does not know the call.
        let has_id = event.fields.get("request_id").is_some_and(|id| id.len() == 36);
        assert_eq!(has_id, event.target != LIMIT, "{event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn event_of_a_failed_call_contains_service_and_request_id_at_warn() {
    let capture = capture_call(LevelFilter::WARN, &[Status(500)], "POST", URI).await;
    let [event] = &capture.ours()[..] else { panic!("expected one event") };
    assert_eq!((event.fields["service"].as_str(), event.fields["request_id"].len()), ("rates", 36));
    assert!(event.scope.is_empty());
}
