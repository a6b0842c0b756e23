//! Retry delays from the crates `backoff` and `backon`, on tokio's paused clock.

use std::time::Duration;

use crate::support::{Scripted, Scripted::*, ScriptedService, get, millis, secs};
use backoff::{Clock, ExponentialBackoff, SystemClock, backoff::Backoff, exponential};
use backon::{BackoffBuilder, ExponentialBuilder};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Report,
    adapter::from_backoff,
    call::{DelayReason, StopReason},
    retry::{self, RetryLayer},
};

const URI: &str = "https://api.example.com/v1";
const ALWAYS_503: &[Scripted] = &[Status(503)];
const RETRY_AFTER_7_THEN_503: &[Scripted] = &[Headers(503, &[("retry-after", "7")]), Status(503)];
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

/// Asserts that a retry layer uses the delays 1 s, 2 s and 4 s of `backoff`. Covers several calls, requested delays and
/// throttled attempts.
async fn assert_backoff_of_1_2_4_s(backoff: impl retry::Backoff + Clone + 'static) {
    let layer = limited_only_by(backoff.clone());
    // Each call starts with the first delay, even if the previous call did not use all delays.
    for (script, expected, stop_reason) in [
        (ALWAYS_503, &[1, 2, 4][..], StopReason::Exhausted),
        (THIRD_SUCCEEDS, &[1, 2], StopReason::Success),
        (ALWAYS_503, &[1, 2, 4], StopReason::Exhausted),
    ] {
        let (delays, report) = call(&layer, script).await;
        assert_eq!(delays, expected.iter().copied().map(secs).collect::<Vec<_>>());
        assert_eq!(report.stop_reason(), Some(stop_reason));
    }
    // Concurrent calls have independent delays.
    let (first, second) = tokio::join!(delays(&layer, ALWAYS_503), delays(&layer, ALWAYS_503));
    assert_eq!(first, second);

    // The requested delay of 7 s replaces the first delay of 1 s. The jitter is at most half of the replaced delay.
    let (delays, report) = call(&layer, RETRY_AFTER_7_THEN_503).await;
    assert!((secs(7)..=millis(7_501)).contains(&delays[0]), "{delays:?}");
    assert_eq!(delays[1..], [secs(2), secs(4)]);
    let reasons: Vec<_> = report.attempts().iter().map(|attempt| attempt.delay_reason).collect();
    let transient = Some(DelayReason::Transient);
    assert_eq!(reasons, [Some(DelayReason::Requested), transient, transient, None]);
    // A requested delay that is shorter than the backoff has no effect.
    let (delays, _) = call(&layer, &[Status(503), Headers(503, &[("retry-after", "1")]), Status(200)]).await;
    assert_eq!(delays, [secs(1), secs(2)]);

    // The layer's maximum number of attempts still applies.
    let (delays, report) = call(&RetryLayer::new().with_custom_backoff(backoff.clone()), ALWAYS_503).await;
    assert_eq!((delays, report.stop_reason()), (vec![secs(1), secs(2)], Some(StopReason::Exhausted)));

    // Throttled attempts and other failures each start with the first delay of their own backoff.
    let layer = layer.with_custom_throttled_backoff(backoff);
    let (delays, _) = call(&layer, &[Status(503), Status(429), Status(503), Status(429), Status(200)]).await;
    assert_eq!(delays, [1, 1, 2, 2].map(secs));
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
    // Three hours pass on tokio's paused clock, but almost no time passes on the system clock.
    let policy = doubling::<SystemClock>(Some(secs(3_600)));
    let layer = limited_only_by(from_backoff(policy)).with_max_attempts(200).unwrap();
    let delays = delays(&layer, ALWAYS_503).await;
    assert_eq!(delays.len(), 199);
    assert!(delays.iter().sum::<Duration>() > secs(3 * 3_600));
}

#[tokio::test(start_paused = true)]
async fn default_policy_of_the_backoff_crate_jitters_each_delay_by_at_most_half() {
    let layer = limited_only_by(from_backoff(ExponentialBackoff::default())).with_max_attempts(4).unwrap();
    let (first, second) = (delays(&layer, ALWAYS_503).await, delays(&layer, ALWAYS_503).await);
    for delays in [&first, &second] {
        // The delays grow from 500 ms by a factor of 1.5, with a jitter of ±50 %. A timer may fire a millisecond late.
        for (delay, middle) in delays.iter().zip([500.0, 750.0, 1_125.0]) {
            let range = middle * 0.5..=middle * 1.5 + 1.0;
            assert!(range.contains(&(delay.as_secs_f64() * 1e3)), "{delays:?}");
        }
    }
    assert_ne!(first, second, "each call has its own jitter");
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
