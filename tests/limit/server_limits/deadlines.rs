//! Tests of the deadlines of waiters and new requests under server limits. The limiter's own quota is one permit per
//! second.

use http::{Request, Response};
use tokio::task::JoinHandle;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_outbound::{limit::RateLimitLayer, timeout::TimeoutLayer};

use super::{
    Server, Service, assert_all_succeed, one_per_second_limiter, remaining, response, seconds, settle,
    spawn_calls,
};

/// The time when a call ended, and the wait that its refusal carried, both in seconds. The wait is `None` if the call
/// succeeded.
type Outcome = (f64, Option<f64>);

/// Queues one waiter for each deadline, in seconds. The server sends `response` after half a second. Returns the
/// outcome of each waiter.
async fn outcomes(response: Response<()>, deadlines: &[u64]) -> Vec<Outcome> {
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(one_per_second_limiter()));
    server.will_respond(0.5, response);
    let first = spawn_calls(&service, 1).await;
    let waiting = spawn_waiters(&server, &service, deadlines).await;
    assert_all_succeed(first).await;
    join(waiting).await
}

async fn spawn_waiters(server: &Server, service: &Service, deadlines: &[u64]) -> Vec<JoinHandle<Outcome>> {
    let mut waiting = Vec::new();
    for deadline in deadlines {
        waiting.push(spawn_waiter(server, service, *deadline));
        settle().await;
    }
    waiting
}

fn spawn_waiter(server: &Server, service: &Service, deadline: u64) -> JoinHandle<Outcome> {
    let (start, total) = (server.start, TimeoutLayer::total(seconds(deadline)).unwrap());
    let service = total.layer(service.clone());
    tokio::spawn(async move {
        let outcome = service.oneshot(Request::new(())).await;
        let wait = outcome.err().map(|error| {
            assert!(
                error.is_rate_limited(),
                "expected a refusal by the limiter, got {error:#} after {:?}",
                start.elapsed()
            );
            error.retry_after().expect("the refusal carries the wait").as_secs_f64()
        });
        // The time is rounded down to half a second, because tokio's timer rounds up to the next millisecond.
        ((start.elapsed().as_secs_f64() * 2.0).floor() / 2.0, wait)
    })
}

async fn join(waiting: Vec<JoinHandle<Outcome>>) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for waiter in waiting {
        outcomes.push(waiter.await.unwrap());
    }
    outcomes
}

/// Compares the end times exactly. Waits may differ by up to 3 ms, because the quota's refill interval is rounded.
#[track_caller]
fn assert_outcomes(outcomes: &[Outcome], expected: &[Outcome]) {
    let same = |((at, wait), (expected_at, expected_wait)): (&Outcome, &Outcome)| match (wait, expected_wait)
    {
        (Some(wait), Some(expected_wait)) => at == expected_at && (wait - expected_wait).abs() < 0.003,
        (None, None) => at == expected_at,
        _ => false,
    };
    assert!(
        outcomes.len() == expected.len() && outcomes.iter().zip(expected).all(same),
        "calls ended with (end, wait) {outcomes:?}, expected {expected:?}"
    );
}

fn granted(at: f64) -> Outcome {
    (at, None)
}

fn refused(at: f64, wait: f64) -> Outcome {
    (at, Some(wait))
}

#[tokio::test(start_paused = true)]
async fn waiter_is_refused_if_its_deadline_is_before_the_end_of_a_pause() {
    // Every waiter would meet its deadline if no pause had started.
    let pause = response(429, &[("retry-after", "10")]);
    let outcomes = outcomes(pause, &[3, 60, 10, 60]).await;
    assert!(outcomes[0].1.is_some_and(|wait| wait >= 9.999), "{outcomes:?}");
    assert!(outcomes[2].1.is_some_and(|wait| wait >= 9.999), "{outcomes:?}");
    assert_eq!(
        (outcomes[0].0, outcomes[2].0),
        (0.5, 0.5),
        "a waiter is refused when the pause starts, not at its deadline: {outcomes:?}"
    );
    assert_outcomes(&[outcomes[1], outcomes[3]], &[granted(10.5), granted(11.5)]);
}

#[tokio::test(start_paused = true)]
async fn waiter_is_refused_if_its_queue_wait_after_a_pause_exceeds_its_deadline() {
    // The pause ends at 10.5 s. After the pause the limiter grants one permit per second.
    let pause = response(429, &[("retry-after", "10")]);
    let outcomes = outcomes(pause, &[12, 12, 12, 60]).await;
    assert_outcomes(&outcomes, &[granted(10.5), granted(11.5), refused(0.5, 12.0), granted(12.5)]);
}

#[tokio::test(start_paused = true)]
async fn waiter_is_refused_if_its_deadline_is_before_the_reset_of_a_server_limit() {
    // The first waiter takes the last remaining permit. The next waiters would be granted after the reset, at 60.5 s
    // and 61.5 s.
    let outcomes = outcomes(remaining(1, 60), &[10, 10, 90, 10]).await;
    assert_outcomes(&outcomes, &[granted(1.0), refused(0.5, 60.0), granted(60.5), refused(0.5, 61.0)]);
}

#[tokio::test(start_paused = true)]
async fn new_request_is_queued_if_its_deadline_allows_a_grant_after_the_reset() {
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(one_per_second_limiter()));
    server.respond_once(&service, remaining(3, 60)).await;
    // The first three waiters are granted at 1 s, 2 s and 3 s. The later waiters would be granted after the reset, at
    // 60 s, 61 s and 62 s.
    let waiting = spawn_waiters(&server, &service, &[90, 90, 90, 90, 62, 61]).await;
    let [first, second, third] = [1.0, 2.0, 3.0].map(granted);
    let expected = [first, second, third, granted(60.0), granted(61.0), refused(0.0, 62.0)];
    assert_outcomes(&join(waiting).await, &expected);
}
