//! Tests that log events and spans contain no secrets.

use super::*;

#[tokio::test(start_paused = true)]
async fn log_error_and_snapshot_name_the_quota_of_the_server_unless_its_name_contains_the_key() {
    for (resource, shown) in [("search", "search"), ("s3cret-key", "redacted"), ("a/s3cret-key", "redacted")]
    {
        let (capture, _guard) = Capture::all();
        let preset = preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("s3cret-key").unwrap());
        let preset = preset
            .with_quota(Quota::per_minute(600).unwrap())
            .with_retry(RetryLayer::new().with_max_attempts(1).unwrap());
        let headers =
            [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "90"), ("x-ratelimit-resource", resource)];
        let script = headers
            .iter()
            .fold(ScriptedResponse::status(429), |response, (name, value)| response.with_header(name, value));
        let service =
            preset.layer().unwrap().layer(tower_outbound::test_util::ScriptedService::new([script]));
        let _ = service.clone().oneshot(request("GET", URI)).await;
        let error = service.oneshot(request("GET", URI)).await.unwrap_err();
        let text = format!("{error:?} {error}");
        assert!(text.contains(&format!("quota of the server: {shown}")), "{text}");
        let paused =
            capture.of(LIMIT).into_iter().find(|event| event.fields.contains_key("pause_ms")).unwrap();
        assert_eq!((paused.fields["quota"].as_str(), paused.fields["pause_ms"].as_str()), (shown, "90000.0"));
        let limiter: &LocalLimiter = preset.limiter().downcast_ref().unwrap();
        assert_eq!(limiter.snapshot().quota.unwrap().as_str(), shown);
        assert!(!format!("{limiter:?} {}", capture.text()).contains("s3cret"), "{}", capture.text());
    }
}
