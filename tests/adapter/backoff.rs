//! Retry delays from the crates `backoff` and `backon`, on tokio's paused clock.

use std::time::Duration;

use crate::support::{Scripted, Scripted::*, ScriptedService, get, millis, secs};
use backoff::{Clock, SystemClock, backoff::Backoff, exponential};
use backon::{BackoffBuilder, ExponentialBuilder};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Report,
    adapter::from_backoff,
    call::StopReason,
    retry::{self, RetryLayer},
};

const URI: &str = "https://api.example.com/v1";
const ALWAYS_503: &[Scripted] = &[Status(503)];
const THIRD_SUCCEEDS: &[Scripted] = &[Status(503), Status(503), Status(200)];

/// Returns a retry layer in which only `backoff` limits the number of attempts.
fn limited_only_by(backoff: impl retry::Backoff + 'static) -> RetryLayer {
    RetryLayer::new().with_max_attempts(u32::MAX).unwrap().without_budget().with_custom_backoff(backoff)
}

/// Makes one call. Returns the delays between the call's attempts, as the service measured them, and the call's report.
async fn call(layer: &RetryLayer, script: &[Scripted]) -> (Vec<Duration>, Report) {
    let service = ScriptedService::new(script.iter().copied());
    let response = layer.layer(service.clone()).oneshot(get(URI)).await.unwrap();
    let report = Report::from_response(&response).unwrap().clone();
    (service.seen().windows(2).map(|pair| pair[1].at - pair[0].at).collect(), report)
}

async fn delays(layer: &RetryLayer, script: &[Scripted]) -> Vec<Duration> {
    call(layer, script).await.0
}

/// Asserts that each call of a retry layer uses the delays 1 s, 2 s and 4 s of `backoff`.
async fn assert_backoff_of_1_2_4_s(backoff: impl retry::Backoff + 'static) {
    let layer = limited_only_by(backoff);
    // A call starts with the first delay, even if the previous call did not use all delays.
    for (script, expected, stop_reason) in [
        (ALWAYS_503, &[1, 2, 4][..], StopReason::Exhausted),
        (THIRD_SUCCEEDS, &[1, 2], StopReason::Success),
        (ALWAYS_503, &[1, 2, 4], StopReason::Exhausted),
    ] {
        let (delays, report) = call(&layer, script).await;
        assert_eq!(delays, expected.iter().copied().map(secs).collect::<Vec<_>>());
        assert_eq!(report.stop_reason(), Some(stop_reason));
    }
}

/// A clock for the crate `backoff` that returns the time of tokio's clock, which the tests pause.
#[derive(Debug, Clone, Copy, Default)]
struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> std::time::Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// Returns a policy of the crate `backoff` whose delays double from 1 s to 1 min, without jitter.
fn doubling<C: Clock + Default>(max_elapsed: Option<Duration>) -> exponential::ExponentialBackoff<C> {
    exponential::ExponentialBackoffBuilder::new()
        .with_initial_interval(secs(1))
        .with_multiplier(2.0)
        .with_randomization_factor(0.0)
        .with_max_interval(secs(60))
        .with_max_elapsed_time(max_elapsed)
        .build()
}

#[tokio::test(start_paused = true)]
async fn policy_of_the_backoff_crate_delays_retries_until_the_policy_returns_none() {
    // The policy ends after 14 s: the first three delays take 7 s in total, and the first four would take 15 s.
    assert_backoff_of_1_2_4_s(from_backoff(doubling::<TokioClock>(Some(secs(14))))).await;
}

#[tokio::test(start_paused = true)]
async fn used_policy_of_the_backoff_crate_is_reset_before_a_call() {
    let mut used = doubling::<TokioClock>(Some(secs(14)));
    while used.next_backoff().is_some() {}
    tokio::time::advance(secs(3_600)).await;
    assert_backoff_of_1_2_4_s(from_backoff(used)).await;
}

#[tokio::test(start_paused = true)]
async fn max_elapsed_time_on_the_system_clock_ignores_tokios_paused_clock() {
    let layer = limited_only_by(from_backoff(doubling::<SystemClock>(Some(secs(3_600)))));
    let delays = delays(&layer.with_max_attempts(200).unwrap(), ALWAYS_503).await;
    assert!(delays.len() == 199 && delays.iter().sum::<Duration>() > secs(3 * 3_600));
}

#[tokio::test(start_paused = true)]
async fn a_custom_policy_of_the_backoff_crate_may_return_any_delays() {
    #[derive(Debug, Clone)]
    struct Listed(std::vec::IntoIter<Duration>);
    impl Backoff for Listed {
        fn next_backoff(&mut self) -> Option<Duration> {
            self.0.next()
        }
    }
    let listed = Listed(vec![millis(5), Duration::ZERO, millis(3)].into_iter());
    let layer = limited_only_by(from_backoff(listed));
    assert_eq!(delays(&layer, ALWAYS_503).await, [5, 0, 3].map(millis));
    assert_eq!(delays(&layer, ALWAYS_503).await, [5, 0, 3].map(millis));
}

#[tokio::test(start_paused = true)]
async fn a_closure_that_returns_delays_of_backon_works_as_a_backoff() {
    // By default, `ExponentialBuilder` builds three delays: 1 s, 2 s and 4 s.
    let builder = ExponentialBuilder::default();
    assert_backoff_of_1_2_4_s(move || builder.build()).await;
    let total = ExponentialBuilder::new().without_max_times().with_total_delay(Some(secs(14)));
    assert_backoff_of_1_2_4_s(move || total.build()).await;
}
