//! Filters of a subscriber's, which know an event by its metadata, are asked of the events themselves.

use tower_outbound::limit::SlidingWindow;
use tracing::Metadata;
use tracing_subscriber::{
    Registry,
    filter::{LevelFilter, filter_fn},
    layer::{Layer as _, SubscriberExt},
};

use super::*;

/// What is heard through this filter of a call that is throttled and then not found, and of one that succeeds.
async fn heard_by(wanted: fn(&Metadata<'_>) -> bool) -> Vec<String> {
    let (capture, _) = Capture::subscriber(LevelFilter::OFF);
    let filtered = capture.clone().with_filter(filter_fn(wanted));
    let _guard = tracing::subscriber::set_default(Registry::default().with(filtered));
    let quota = Quota::per_minute(2).unwrap();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(SlidingWindow::new(quota)))
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([Headers(429, &[("retry-after", "3")]), Status(404), Status(200)]));
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    capture.lines().into_iter().map(|line| line.message).collect()
}

#[tokio::test(start_paused = true)]
async fn whoever_wants_events_alone_hears_them_all() {
    let call = [
        "paused by the server",
        "attempt ended",
        "retrying",
        "attempt ended",
        "no further attempt",
        "call completed",
        "waited for the limiter",
        "attempt ended",
        "call completed",
    ];
    assert_eq!(heard_by(|_| true).await, call);
    assert_eq!(heard_by(|metadata| metadata.is_event()).await, call);
}

#[tokio::test(start_paused = true)]
async fn an_event_may_be_chosen_by_its_fields() {
    let chosen = heard_by(|metadata| metadata.is_event() && metadata.fields().field("ended").is_some()).await;
    assert_eq!(chosen, ["no further attempt", "call completed", "call completed"]);
}
