//! Tests of absent waiters: queued futures that nobody polls, or whose runtime is blocked or has ended. They delay the
//! waiters behind them by at most a second.

use super::*;

/// Returns `count` waiters that were polled once.
fn absent(limiter: &LocalLimiter, count: usize) -> Vec<task::Spawn<Acquire>> {
    (0..count).map(|_| queued(limiter, &PermitRequest::new())).collect()
}

/// Waits for the permits of `count` requests. Returns the time that it took.
async fn acquire(limiter: &LocalLimiter, count: usize) -> Duration {
    let start = Instant::now();
    let waiting: JoinSet<_> = (0..count).map(|_| limiter.acquire()).collect();
    waiting.join_all().await.into_iter().for_each(|permit| drop(permit.unwrap()));
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn absent_waiters_delay_those_behind_them_by_at_most_a_second() {
    for (count, alternate) in [(1, false), (10, false), (36, false), (36, true)] {
        let bucket = refilling(1_000, 1_000).with_initial_burst(0);
        let (start, mut forgotten, mut waiting) = (Instant::now(), Vec::new(), JoinSet::new());
        for _ in 0..count {
            forgotten.extend(absent(&bucket, 1));
            if alternate {
                waiting.spawn(bucket.acquire());
                tokio::task::yield_now().await;
            }
        }
        (0..6).for_each(|_| _ = waiting.spawn(bucket.acquire()));
        waiting.join_all().await.into_iter().for_each(|permit| drop(permit.unwrap()));
        assert!(start.elapsed() <= millis(1_050), "{count} absent, {alternate}: {:?}", start.elapsed());
        assert!(bucket.snapshot().granted < 100, "absent waiters took permits: {:?}", bucket.snapshot());
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_behind_a_late_one_is_served_when_its_permits_are_due() {
    let bucket = refilling(100, 1).with_initial_burst(0);
    let (start, mut late) = (Instant::now(), queued(&bucket, &PermitRequest::new()));
    // Its permit of 10 ms expires.
    sleep(millis(50)).await;
    drop(bucket.try_acquire().unwrap());
    let next = tokio::spawn(bucket.acquire());
    yield_now().await;
    assert_pending!(late.poll());
    let _permit = late.await.unwrap();
    next.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), millis(70));
}

/// Runs in real time, because one of the runtimes is blocked.
#[test]
fn blocked_runtime_delays_the_calls_of_another_by_at_most_a_second() {
    for waiters in [10, 2_000] {
        let quota = Quota::per_second(waiters * 10).unwrap().with_burst(10).unwrap();
        let limiter = LocalLimiter::paced_window(quota).with_initial_burst(0);
        let runtime = || Builder::new_current_thread().enable_time().build().unwrap();
        let (queued, is_queued) = mpsc::channel();
        let (release, is_released) = mpsc::channel::<()>();
        let other = limiter.clone();
        let blocked = std::thread::spawn(move || {
            runtime().block_on(async {
                let waiting: JoinSet<_> = (0..waiters).map(|_| other.acquire()).collect();
                tokio::task::yield_now().await;
                queued.send(()).unwrap();
                // Blocks the runtime until the other calls have ended.
                is_released.recv_timeout(seconds(30)).unwrap();
                waiting.join_all().await.into_iter().for_each(|permit| drop(permit.unwrap()));
            });
        });
        is_queued.recv().unwrap();
        let elapsed = runtime().block_on(acquire(&limiter, 4));
        release.send(()).unwrap();
        blocked.join().unwrap();
        // Without a blocked runtime, the calls take about 0.1 s.
        assert!(elapsed <= millis(1_150), "{elapsed:?}");
        assert_eq!(limiter.snapshot().queued, 0);
    }
}

/// The first waiter sleeps for minutes, and its runtime ends before its timer fires.
#[test]
fn absent_waiter_is_skipped_after_its_runtime_has_ended() {
    let bucket = refilling(1, 1).with_initial_burst(0);
    let ended = run_paused(async { absent(&bucket, 1) });
    run_paused(async {
        assert!(acquire(&bucket, 1).await <= seconds(2));
        // The task that checks the queue for this runtime starts again with each new queue.
        drop(ended);
        sleep(seconds(10)).await;
        while bucket.try_acquire().is_ok() {}
        let _absent = absent(&bucket, 1);
        assert!(acquire(&bucket, 1).await <= seconds(2));
    });
}

/// No timer grants the permit, because the runtime of the waiter has ended.
#[test]
fn snapshot_counts_a_waiter_whose_permit_is_available_as_granted() {
    let bucket = refilling(1, 1).with_initial_burst(0);
    let _ended = run_paused(async { absent(&bucket, 1) });
    run_paused(async {
        sleep(seconds(2)).await;
        let snapshot = bucket.snapshot();
        assert_eq!((snapshot.queued, snapshot.granted), (0, 1));
    });
}

#[tokio::test(start_paused = true)]
async fn no_task_remains_after_a_waiter_for_a_request_in_flight_was_dropped() {
    let metrics = tokio::runtime::Handle::current().metrics();
    for drops_limiter in [false, true] {
        let limiter = LocalLimiter::without_quota().with_max_in_flight(1).unwrap();
        let (kept, permit) = ((!drops_limiter).then(|| limiter.clone()), limiter.acquire().await.unwrap());
        let waiting = absent(&limiter, 1);
        sleep(millis(1)).await;
        assert_eq!(metrics.num_alive_tasks(), 1);
        drop((waiting, permit, limiter));
        sleep(seconds(1)).await;
        assert_eq!(metrics.num_alive_tasks(), 0, "{kept:?}");
    }
}

/// The limit of requests in flight is reached, so the task has no time to wait for. The change refuses the waiter.
#[tokio::test(start_paused = true)]
async fn no_task_remains_after_a_waiter_was_refused_by_a_change_of_the_quota() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let limiter = LocalLimiter::token_bucket(quota(10, 1_000, 5)).with_max_in_flight(1).unwrap();
    let permit = limiter.acquire().await.unwrap();
    let mut waiting = queued(&limiter, &PermitRequest::new().with_cost(NonZeroU32::new(5).unwrap()));
    sleep(seconds(5)).await;
    limiter.set_quotas(quota(10, 1_000, 1));
    assert_ready!(waiting.poll()).unwrap_err();
    drop((waiting, permit, limiter));
    sleep(seconds(1)).await;
    assert_eq!(metrics.num_alive_tasks(), 0);
}

/// The task that checks the queue does not keep a dropped limiter alive, and ends after the last waiter has left.
#[tokio::test(start_paused = true)]
async fn no_task_remains_without_waiters() {
    let metrics = tokio::runtime::Handle::current().metrics();
    for drops_limiter in [false, true] {
        let bucket = refilling(10, 10).with_initial_burst(0);
        let kept = (!drops_limiter).then(|| bucket.clone());
        let waiting = absent(&bucket, 3);
        assert_eq!(metrics.num_alive_tasks(), 1);
        drop((waiting, bucket));
        sleep(millis(210)).await;
        assert_eq!(kept.map_or(0, |bucket| bucket.snapshot().queued), 0);
        assert_eq!(metrics.num_alive_tasks(), 0);
    }
}
