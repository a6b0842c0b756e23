//! Tests the event for a rate limit layer that is outside a retry layer.

use super::*;

const MESSAGE: &str = "retries exceed the quota: move the rate limit layer inside the retry layer";

/// Returns the events of level WARN about the limiter.
fn warnings(capture: &Capture) -> Vec<capture::Line> {
    capture.of(LIMIT).into_iter().filter(|line| line.level == Level::WARN).collect()
}

fn limit() -> RateLimitLayer<LocalLimiter> {
    RateLimitLayer::new(LocalLimiter::without_quota())
}

#[tokio::test(start_paused = true)]
async fn rate_limit_outside_retry_is_reported_once_for_each_layer() {
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    for script in [vec![Status(503), Status(200)], vec![Refused], vec![Status(503)]] {
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new().with_service("rates"))
            .layer(limit())
            .layer(RetryLayer::new())
            .service(ScriptedService::new(script));
        for _ in 0..3 {
            let _ = service.clone().oneshot(get(URI)).await;
        }
    }
    let warnings = warnings(&capture);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for warning in &warnings {
        assert_eq!((&*warning.message, &*warning.fields["service"]), (MESSAGE, "rates"));
    }
    assert_eq!(warnings[1].fields["attempts"], "3");
}

/// Each attempt of these calls ends in another way. The later attempts already have a report.
#[tokio::test(start_paused = true)]
async fn rate_limit_inside_retry_is_not_reported() {
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    for script in [vec![Status(503), NoResponse, Refused], vec![NoResponse], vec![Refused], vec![Status(429)]]
    {
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new())
            .layer(TotalTimeoutLayer::new(secs(12)).unwrap())
            .layer(RetryLayer::new())
            .layer(limit())
            .layer(AttemptSpanLayer::new())
            .layer(AttemptTimeoutLayer::new(secs(5)).unwrap())
            .service(ScriptedService::new(script));
        for _ in 0..2 {
            let _ = service.clone().oneshot(get(URI)).await;
        }
    }
    assert!(warnings(&capture).is_empty(), "{:?}", warnings(&capture));
}
