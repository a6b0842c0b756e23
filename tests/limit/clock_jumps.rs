//! Tests that every limiter serves its waiters after the paused clock has jumped by more than a century.

use super::*;

/// A limiter that wakes its waiters without end never lets the paused clock advance. The test fails after this time.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// 127 years. The times of a limiter reach 584 years.
const JUMP: Duration = Duration::from_secs(4_000_000_000);

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

/// Asserts that the waiters are served at the quota's rate after jumps of the clock, and at the end of a pause.
async fn serve_after_jumps(limiter: LocalLimiter, quota: Quota) {
    let arrivals = Arrivals::new();
    for jump in [JUMP, JUMP, seconds(60)] {
        let waiters = queue(&limiter, &arrivals).await;
        advance(jump).await;
        let start = Instant::now();
        waiters.join_all().await;
        assert!(start.elapsed() < seconds(30), "{:?}", start.elapsed());
    }
    limiter.pause_until(Instant::now() + seconds(60));
    let start = Instant::now();
    queue(&limiter, &arrivals).await.join_all().await;
    assert!((60..70).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(arrivals.times().len(), 24);
    arrivals.assert_within(quota);
}

#[test]
fn waiters_are_served_after_the_clock_jumps_by_more_than_a_century_and_after_a_pause() {
    let (quota, single) = (one_per_second(), Quota::new(1, seconds(1)).unwrap());
    type Kind = (Quota, fn(Quota) -> LocalLimiter);
    let kinds: [Kind; 6] = [
        (quota, LocalLimiter::token_bucket),
        (quota, |quota| LocalLimiter::token_bucket([quota, Quota::per_hour(1_000).unwrap()])),
        (quota, LocalLimiter::paced_window),
        (single, LocalLimiter::sliding_window),
        (quota, LocalLimiter::adaptive),
        (quota, |quota| Keyed::new(|_| 0, move |_| LocalLimiter::token_bucket(quota)).limiter(&0).unwrap()),
    ];
    for (number, (quota, make)) in kinds.into_iter().enumerate() {
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            run_paused(async { serve_after_jumps(make(quota), quota).await });
            done.send(())
        });
        assert_eq!(ended.recv_timeout(HANG_TIMEOUT), Ok(()), "limiter {number}");
    }
}
