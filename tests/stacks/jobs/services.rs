//! Runs the program of the page about services.

use std::time::Duration;

use program::{read_event, with_delay_of_body};
use tokio::time::Instant;
use tower_outbound::{
    limit::{LocalLimiter, ServerSignal},
    test_util::ScriptedResponse,
};

use super::{builder, server};

pub mod program {
    use std::time::Duration;

    use http::{Response, StatusCode};
    use tokio::time::Instant;
    use tower::util::AndThenLayer;
    use tower_outbound::{
        Body, BoxError,
        limit::{LocalLimiter, ServerSignal},
        stack::StackBuilder,
    };

    pub fn with_delay_of_body(service: StackBuilder) -> StackBuilder {
        service.with_transport_layer(AndThenLayer::new(read_429))
    }

    async fn read_429(response: Response<Body>) -> Result<Response<Body>, BoxError> {
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            return Ok(response);
        }
        let (mut head, body) = response.into_parts();
        let body = body.bytes_up_to(64 * 1024).await?;
        if let Some(delay) = retry_delay(&body) {
            head.extensions.insert(ServerSignal::throttled().with_not_processed().with_delay(delay));
        }
        Ok(Response::from_parts(head, body.into()))
    }

    /// Reads `{"error":{"details":[{"retryDelay":"37s"}]}}`.
    fn retry_delay(body: &[u8]) -> Option<Duration> {
        let body: serde_json::Value = serde_json::from_slice(body).ok()?;
        let details = body["error"]["details"].as_array()?;
        let delay = details.iter().find_map(|detail| detail["retryDelay"].as_str())?;
        Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
    }

    /// Pauses all calls if the stream of a 200 reports a throttle. The reader of the stream calls this for each event.
    pub fn read_event(limiter: &LocalLimiter, event: &str) {
        if event.starts_with("event: error\n") && event.contains("rate_limit") {
            limiter.pause_until(Instant::now() + Duration::from_secs(10));
        }
    }
}

/// Returns Gemini's 429, without its other details.
fn throttled(delay: &str) -> ScriptedResponse {
    let info =
        serde_json::json!({ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay });
    let error = serde_json::json!({ "code": 429, "status": "RESOURCE_EXHAUSTED", "details": [info] });
    ScriptedResponse::status(429).with_body(serde_json::json!({ "error": error }).to_string())
}

#[tokio::test]
async fn delay_in_the_body_of_a_429_pauses_all_calls() {
    let limiter = LocalLimiter::without_quota();
    let (_, server) = server([throttled("37s")]).await;
    let service = with_delay_of_body(builder(&server)).with_limiter(limiter.clone()).with_max_attempts(1);
    let before = Instant::now();
    let response = service.client().unwrap().post("/v1").body("x").await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(response.extensions().get::<ServerSignal>().is_some());
    assert!(response.text().await.unwrap().contains("retryDelay"));
    let pause = limiter.snapshot().paused_until.unwrap() - before;
    assert!(pause >= Duration::from_secs(37) && pause < Duration::from_secs(47), "{pause:?}");
}

/// Without the layer, the retry comes after the pause of a 429 without a hint, which is at least 1 s.
#[tokio::test]
async fn post_is_retried_after_the_delay_in_the_body_of_a_429() {
    let (service, server) = server([throttled("0.25s"), ScriptedResponse::status(200)]).await;
    let client = with_delay_of_body(builder(&server)).with_limiter(LocalLimiter::without_quota());
    let response = client.client().unwrap().post("/v1").body("x").await.unwrap();
    let seen = service.seen();
    assert_eq!((response.status().as_u16(), seen.len()), (200, 2));
    assert!(seen[1].at - seen[0].at >= Duration::from_millis(250), "{seen:?}");
    assert_eq!(seen[0].body, seen[1].body);
}

#[tokio::test]
async fn error_event_of_a_stream_pauses_all_calls() {
    let limiter = LocalLimiter::without_quota();
    let events = "event: ping\n\nevent: error\ndata: {\"type\":\"rate_limit_error\"}\n\n";
    let (_, server) = server([ScriptedResponse::status(200).with_body(events)]).await;
    let client = builder(&server).with_limiter(limiter.clone()).client().unwrap();
    let text = client.get("/v1").await.unwrap().text().await.unwrap();
    let mut paused = Vec::new();
    for event in text.split_terminator("\n\n") {
        read_event(&limiter, event);
        paused.push(limiter.snapshot().paused_until.is_some());
    }
    assert_eq!(paused, [false, true]);
}
