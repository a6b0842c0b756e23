//! The schedules of other crates' types, with the real crates and on paused time.

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
/// Fails for good; asks for a pause of 7 s, and then fails; answers to the third attempt.
const DOWN: &[Scripted] = &[Status(503)];
const ASKS: &[Scripted] = &[Headers(503, &[("retry-after", "7")]), Status(503)];
const THIRD: &[Scripted] = &[Status(503), Status(503), Status(200)];

/// Bound by nothing but its schedules.
fn unbound(schedule: impl retry::Backoff + 'static) -> RetryLayer {
    RetryLayer::new().with_max_attempts(u32::MAX).unwrap().without_budget().with_custom_backoff(schedule)
}

/// The pauses between the attempts of a call, as the service saw them, and the call's own report.
async fn call(layer: &RetryLayer, script: &[Scripted]) -> (Vec<Duration>, Report) {
    let probe = ScriptedService::new(script.iter().copied());
    let response = layer.layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    let report = Report::from_response(&response).unwrap().clone();
    (probe.seen().windows(2).map(|pair| pair[1].at - pair[0].at).collect(), report)
}

async fn pauses(layer: &RetryLayer, script: &[Scripted]) -> Vec<Duration> {
    call(layer, script).await.0
}

/// Of a schedule of 1 s, 2 s, 4 s and no more.
async fn holds_its_place(schedule: impl retry::Backoff + Clone + 'static) {
    let layer = unbound(schedule.clone());
    // The second and the third call begin anew, whether the one before used it up or not.
    for (script, expected, ended) in [
        (DOWN, &[1, 2, 4][..], StopReason::Exhausted),
        (THIRD, &[1, 2], StopReason::Success),
        (DOWN, &[1, 2, 4], StopReason::Exhausted),
    ] {
        let (pauses, report) = call(&layer, script).await;
        assert_eq!(pauses, expected.iter().copied().map(secs).collect::<Vec<_>>());
        assert_eq!(report.stop_reason(), Some(ended));
    }
    // So do calls that overlap.
    let (one, other) = tokio::join!(pauses(&layer, DOWN), pauses(&layer, DOWN));
    assert_eq!(one, other);

    // The server's ask goes before, with up to half of the schedule's second on top, and takes its turn.
    let (pauses, report) = call(&layer, ASKS).await;
    assert!((secs(7)..=millis(7_501)).contains(&pauses[0]), "{pauses:?}");
    assert_eq!(pauses[1..], [secs(2), secs(4)]);
    let reasons: Vec<_> = report.attempts().iter().map(|attempt| attempt.delay_reason).collect();
    let transient = Some(DelayReason::Transient);
    assert_eq!(reasons, [Some(DelayReason::Requested), transient, transient, None]);
    // And one below the schedule's own back-off shortens nothing.
    let (pauses, _) = call(&layer, &[Status(503), Headers(503, &[("retry-after", "1")]), Status(200)]).await;
    assert_eq!(pauses, [secs(1), secs(2)]);

    // The layer's attempts still bound it.
    let (pauses, report) = call(&RetryLayer::new().with_custom_backoff(schedule.clone()), DOWN).await;
    assert_eq!((pauses, report.stop_reason()), (vec![secs(1), secs(2)], Some(StopReason::Exhausted)));

    // A throttling has a sequence of its own.
    let layer = layer.with_custom_throttled_backoff(schedule);
    let (pauses, _) = call(&layer, &[Status(503), Status(429), Status(503), Status(429), Status(200)]).await;
    assert_eq!(pauses, [1, 1, 2, 2].map(secs));
}

/// Tokio's, so that it can be paused.
#[derive(Debug, Clone, Copy, Default)]
struct Paused;

impl Clock for Paused {
    fn now(&self) -> std::time::Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// 1 s, doubled up to 1 min, without jitter.
fn doubled<C: Clock + Default>(max_elapsed: Option<Duration>) -> exponential::ExponentialBackoff<C> {
    exponential::ExponentialBackoffBuilder::new()
        .with_initial_interval(secs(1))
        .with_multiplier(2.0)
        .with_randomization_factor(0.0)
        .with_max_interval(secs(60))
        .with_max_elapsed_time(max_elapsed)
        .build()
}

#[tokio::test(start_paused = true)]
async fn its_back_offs_come_out_and_end_when_they_end() {
    // 7 s of back-off fit, 15 s don't.
    holds_its_place(from_backoff(doubled::<Paused>(Some(secs(14))))).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_was_used_before_begins_anew() {
    let mut used = doubled::<Paused>(Some(secs(14)));
    while used.next_backoff().is_some() {}
    tokio::time::advance(secs(3_600)).await;
    holds_its_place(from_backoff(used)).await;
}

#[tokio::test(start_paused = true)]
async fn its_own_clock_does_not_see_paused_time() {
    // Over three hours of paused time, and hardly a moment of the machine's: nothing ends it.
    let layer =
        unbound(from_backoff(doubled::<SystemClock>(Some(secs(3_600))))).with_max_attempts(200).unwrap();
    let pauses = pauses(&layer, DOWN).await;
    assert_eq!(pauses.len(), 199);
    assert!(pauses.iter().sum::<Duration>() > secs(3 * 3_600));
}

#[tokio::test(start_paused = true)]
async fn the_policy_that_it_comes_with_waits_within_its_jitter() {
    let layer = unbound(from_backoff(ExponentialBackoff::default())).with_max_attempts(4).unwrap();
    let (first, second) = (pauses(&layer, DOWN).await, pauses(&layer, DOWN).await);
    for pauses in [&first, &second] {
        // 500 ms, times 1.5, give or take a half; a timer's tick more.
        for (pause, middle) in pauses.iter().zip([500.0, 750.0, 1_125.0]) {
            let within = middle * 0.5..=middle * 1.5 + 1.0;
            assert!(within.contains(&(pause.as_secs_f64() * 1e3)), "{pauses:?}");
        }
    }
    assert_ne!(first, second, "the jitter is drawn anew");
}

#[tokio::test(start_paused = true)]
async fn any_policy_will_do() {
    #[derive(Debug, Clone)]
    struct Listed(std::vec::IntoIter<Duration>);
    impl Backoff for Listed {
        fn next_backoff(&mut self) -> Option<Duration> {
            self.0.next()
        }
    }
    let listed = Listed(vec![millis(5), Duration::ZERO, millis(3)].into_iter());
    let layer = unbound(from_backoff(listed));
    assert_eq!(pauses(&layer, DOWN).await, [5, 0, 3].map(millis));
    assert_eq!(pauses(&layer, DOWN).await, [5, 0, 3].map(millis));
}

#[tokio::test(start_paused = true)]
async fn a_closure_that_builds_delays_of_backon_is_a_backoff() {
    // 1 s, doubled, three of them.
    let builder = ExponentialBuilder::default();
    holds_its_place(move || builder.build()).await;
    let total = ExponentialBuilder::new().without_max_times().with_total_delay(Some(secs(14)));
    holds_its_place(move || total.build()).await;
}
