//! Tests that `deterministic` stacks repeat their request ids and delays.

use std::time::Duration;

use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, preset,
    test_util::{ScriptedService, deterministic},
};

use super::*;

/// Returns the request ids and the times of all attempts of two calls. Each call succeeds at its third attempt.
async fn ids_and_times(seed: Option<u64>) -> (Vec<String>, Vec<Duration>) {
    let preset = preset::email_delivery("https://api.example.com")
        .unwrap()
        .with_api_key(ApiKey::new("s3cret").unwrap());
    let preset = seed.map_or(preset.clone(), |seed| deterministic(preset, seed));
    let service = ScriptedService::new([503, 503, 200, 503, 503, 200]);
    for _ in 0..2 {
        preset.layer().unwrap().layer(service.clone()).oneshot(get()).await.unwrap();
    }
    let seen = service.seen();
    let ids = seen.iter().map(|seen| seen.header("x-request-id").unwrap().to_owned());
    (ids.collect(), seen.iter().map(|each| each.at - seen[0].at).collect())
}

#[tokio::test(start_paused = true)]
async fn deterministic_stack_repeats_its_request_ids_and_times() {
    let (ids, times) = ids_and_times(Some(7)).await;
    assert_eq!(ids, ["req-1", "req-1", "req-1", "req-2", "req-2", "req-2"]);
    assert_eq!(ids_and_times(Some(7)).await, (ids.clone(), times.clone()));
    assert_ne!(ids_and_times(Some(8)).await.1, times);
    let (other_ids, other_times) = ids_and_times(None).await;
    assert!(other_ids != ids && other_times != times);
}
