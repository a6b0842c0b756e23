//! Tests that every limiter serves its waiters after the paused clock has jumped by more than a century.

use std::{sync::mpsc, thread, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, advance},
};
use tower_outbound::{
    Quota,
    limit::{Keyed, Limiter, LocalLimiter, PermitRequest, Priority},
    test_util::Arrivals,
};

use crate::{Pause, one_per_second};

/// A limiter that wakes its waiters without end never lets the paused clock advance. The test fails after this time.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// 127 years. The times of a limiter reach 584 years.
const JUMP: Duration = Duration::from_secs(4_000_000_000);

/// Runs the test of one limiter on a paused clock, in a thread of its own.
#[track_caller]
fn run<F: Future<Output = ()>>(name: &str, test: impl FnOnce() -> F + Send + 'static) {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(test());
        done.send(())
    });
    assert_eq!(ended.recv_timeout(HANG_TIMEOUT), Ok(()), "{name}");
}

/// Queues six waiters.
async fn queue(limiter: &LocalLimiter, arrivals: &Arrivals) -> JoinSet<()> {
    let mut waiters = JoinSet::new();
    for number in 0..6 {
        let priority = [Priority::Normal, Priority::Low, Priority::High][number % 3];
        let acquire = limiter.acquire_with(&PermitRequest::new().with_priority(priority));
        let arrivals = arrivals.clone();
        waiters.spawn(async move {
            acquire.await.unwrap();
            arrivals.note();
        });
    }
    tokio::task::yield_now().await;
    waiters
}

/// Asserts that the waiters are served at the quota's rate, before and after two jumps of the clock.
async fn serve_after_jumps(limiter: LocalLimiter, quota: Quota) {
    let arrivals = Arrivals::new();
    for jump in [JUMP, JUMP, Duration::from_secs(60)] {
        let waiters = queue(&limiter, &arrivals).await;
        advance(jump).await;
        let start = Instant::now();
        waiters.join_all().await;
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }
    assert_eq!(arrivals.times().len(), 18);
    arrivals.assert_within(quota);
}

#[test]
fn waiters_are_served_after_the_clock_jumps_by_more_than_a_century() {
    let quota = one_per_second();
    run("token bucket", move || serve_after_jumps(LocalLimiter::token_bucket(quota), quota));
    run("token bucket with two quotas", move || {
        let hourly = Quota::new(1_000, Duration::from_secs(3_600)).unwrap();
        serve_after_jumps(LocalLimiter::token_bucket([quota, hourly]), quota)
    });
    run("paced window", move || serve_after_jumps(LocalLimiter::paced_window(quota), quota));
    run("sliding window", move || {
        let quota = Quota::new(1, Duration::from_secs(1)).unwrap();
        serve_after_jumps(LocalLimiter::sliding_window(quota), quota)
    });
    run("adaptive", move || serve_after_jumps(LocalLimiter::adaptive(quota), quota));
    run("keyed", move || async move {
        let keyed = Keyed::new(|_| 0, move |_| LocalLimiter::token_bucket(quota));
        serve_after_jumps(keyed.limiter(&0).unwrap(), quota).await;
    });
}

#[test]
fn waiters_of_a_paused_limiter_are_served_after_the_clock_jumps_by_more_than_a_century() {
    async fn serve(limiter: LocalLimiter) {
        advance(JUMP).await;
        limiter.pause(Duration::from_secs(60));
        let waiters = queue(&limiter, &Arrivals::new()).await;
        let start = Instant::now();
        waiters.join_all().await;
        assert_eq!(start.elapsed().as_secs(), 60);
    }
    run("token bucket", || serve(LocalLimiter::unlimited()));
    run("paced window", || serve(LocalLimiter::unlimited()));
    run("sliding window", || serve(LocalLimiter::unlimited()));
}
