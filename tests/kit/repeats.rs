//! Nothing is left to chance.

use std::time::Duration;

use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, preset,
    request_id::RequestIdLayer,
    test_util::{ScriptedService, SequentialIds, repeatable},
};

use super::*;

/// The ids and the times of two calls that fail twice each.
async fn run(seed: Option<u64>) -> (Vec<String>, Vec<Duration>) {
    let preset = preset::email_delivery("https://api.example.com")
        .unwrap()
        .with_api_key(ApiKey::new("s3cret").unwrap());
    let preset = seed.map_or(preset.clone(), |seed| repeatable(preset, seed));
    let service = ScriptedService::new([503, 503, 200, 503, 503, 200]);
    for _ in 0..2 {
        preset.layer().unwrap().layer(service.clone()).oneshot(get()).await.unwrap();
    }
    let seen = service.seen();
    let ids = seen.iter().map(|seen| seen.header("x-request-id").unwrap().to_owned());
    (ids.collect(), seen.iter().map(|each| each.at - seen[0].at).collect())
}

#[tokio::test(start_paused = true)]
async fn a_repeatable_preset_does_the_same_again() {
    let (ids, times) = run(Some(7)).await;
    assert_eq!(ids, ["req-1", "req-1", "req-1", "req-2", "req-2", "req-2"]);
    assert_eq!(run(Some(7)).await, (ids.clone(), times.clone()));
    assert_ne!(run(Some(8)).await.1, times);
    let (other_ids, other_times) = run(None).await;
    assert!(other_ids != ids && other_times != times);
}

#[tokio::test]
async fn ids_are_counted_over_clones_after_a_prefix_of_ones_own() {
    let ids = SequentialIds::with_prefix("call ");
    for number in ["call 1", "call 2"] {
        let service = ScriptedService::new([200]);
        let layer = RequestIdLayer::new().with_maker(ids.clone());
        layer.layer(service.clone()).oneshot(get()).await.unwrap();
        assert_eq!(service.seen()[0].header("x-request-id"), Some(number));
    }
    assert_eq!(format!("{ids:?}"), "SequentialIds { prefix: \"call \", made: 2 }");
}

#[test]
#[should_panic(expected = "no header can hold the prefix")]
fn a_prefix_that_makes_no_header_is_refused() {
    SequentialIds::with_prefix("a\n");
}
