//! Tests of absent waiters: queued futures that nobody polls, or whose runtime is blocked. They delay the waiters
//! behind them by at most a second.

use std::{num::NonZeroU32, sync::mpsc, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Limiter, LocalLimiter, PermitRequest, Priority, ResponseInfo},
};

use crate::{bucket, millis, refilling};

/// Returns `count` waiters that were polled once.
fn polled_once(limiter: &LocalLimiter, count: usize) -> Vec<task::Spawn<tower_outbound::limit::Acquire>> {
    let mut waiters: Vec<_> =
        (0..count).map(|_| task::spawn(limiter.acquire_with(&PermitRequest::new()))).collect();
    for waiter in &mut waiters {
        assert_pending!(waiter.poll());
    }
    waiters
}

#[tokio::test(start_paused = true)]
async fn ten_waiters_get_available_permits_although_the_head_is_never_polled() {
    let bucket = refilling(10, 20).with_initial_burst(0);
    let _forgotten = polled_once(&bucket, 1);
    let start = Instant::now();
    let waiting: Vec<_> = (0..10).map(|_| tokio::spawn(bucket.acquire())).collect();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    // The permits of the ten waiters are refilled in 1 s.
    assert!(start.elapsed() <= millis(1_600), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn absent_waiters_delay_those_behind_them_by_at_most_a_second() {
    for (absent, alternate) in [(1, false), (10, false), (36, false), (36, true)] {
        let bucket = refilling(1_000, 1_000).with_initial_burst(0);
        let start = Instant::now();
        let (mut forgotten_waiters, mut waiting) = (Vec::new(), Vec::new());
        if alternate {
            for _ in 0..absent {
                forgotten_waiters.extend(polled_once(&bucket, 1));
                waiting.push(tokio::spawn(bucket.acquire()));
                tokio::task::yield_now().await;
            }
        } else {
            forgotten_waiters.extend(polled_once(&bucket, absent));
        }
        waiting.extend((0..6).map(|_| tokio::spawn(bucket.acquire())));
        for waiter in waiting {
            waiter.await.unwrap().unwrap();
        }
        assert!(start.elapsed() <= millis(1_050), "{absent} absent, {alternate}: {:?}", start.elapsed());
        assert!(bucket.snapshot().granted < 100, "absent waiters took permits: {:?}", bucket.snapshot());
    }
}

#[tokio::test(start_paused = true)]
async fn absent_waiter_that_is_polled_again_returns_to_its_position() {
    let bucket = refilling(1, 1).with_initial_burst(0);
    let mut absent = polled_once(&bucket, 1);
    let behind: Vec<_> = (0..3).map(|_| tokio::spawn(bucket.acquire())).collect();
    // The first permit is wasted.
    tokio::time::sleep(millis(2_500)).await;
    let start = Instant::now();
    assert_eq!(behind.iter().filter(|waiter| waiter.is_finished()).count(), 1);
    absent.remove(0).await.unwrap();
    assert!(start.elapsed() <= millis(1_000), "{:?}", start.elapsed());
    assert!(!behind[1].is_finished());
}

#[tokio::test(start_paused = true)]
async fn waiter_fails_within_10_ms_if_a_returning_waiter_delays_it_beyond_its_max_wait() {
    let bucket = refilling(1, 1).with_initial_burst(0);
    let mut absent = polled_once(&bucket, 1);
    // Gets the first permit, because the queue skips the absent waiter.
    let first = tokio::spawn(bucket.acquire());
    tokio::time::sleep(millis(1_500)).await;
    first.await.unwrap().unwrap();
    let deadline = PermitRequest::new().with_max_wait(millis(1_500));
    let mut bounded = task::spawn(bucket.acquire_with(&deadline));
    assert_pending!(bounded.poll());
    assert_pending!(absent[0].poll());
    tokio::time::sleep(millis(12)).await;
    assert!(bounded.is_woken());
    assert_eq!(assert_ready_err!(bounded.poll()).reason(), Reason::MaxWait);
}

#[tokio::test(start_paused = true)]
async fn dropping_an_absent_waiter_removes_it() {
    let bucket = refilling(10, 20).with_initial_burst(0);
    let absent = polled_once(&bucket, 3);
    let behind = tokio::spawn(bucket.acquire());
    behind.await.unwrap().unwrap();
    assert_eq!(bucket.snapshot().queued, 3);
    drop(absent);
    assert_eq!((bucket.snapshot().queued, bucket.snapshot().in_flight), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn uncollected_grant_expires_and_is_not_passed_on() {
    let quota = Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(10).unwrap();
    let bucket = LocalLimiter::token_bucket(quota).with_initial_burst(0);
    let mut absent = polled_once(&bucket, 1);
    tokio::time::sleep(Duration::from_secs(25)).await;
    let counts = |bucket: &LocalLimiter| {
        let snapshot = bucket.snapshot();
        (snapshot.granted, snapshot.in_flight, snapshot.queued)
    };
    assert_eq!(counts(&bucket), (1, 0, 1));
    // The waiter returns, and gets other permits.
    assert_ready_ok!(absent[0].poll());
    assert_eq!(counts(&bucket), (2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn waiters_that_are_not_polled_take_no_permits_of_a_full_bucket() {
    for absent in [1, 36] {
        let bucket = bucket(100, 3_600, 36);
        while bucket.try_acquire().is_ok() {}
        let _forgotten = polled_once(&bucket, absent);
        tokio::time::sleep(Duration::from_secs(7_200)).await;
        let start = Instant::now();
        bucket.acquire().await.unwrap();
        assert!(start.elapsed() <= millis(1_000), "{:?}", start.elapsed());
        assert_eq!(bucket.snapshot().available, 35);
    }
}

/// The remaining permits of the server do not count requests that were never sent.
#[tokio::test(start_paused = true)]
async fn uncollected_grants_do_not_use_up_the_remaining_permits_of_the_server() {
    let limiter = LocalLimiter::unlimited();
    limiter.pause_until(Instant::now() + Duration::from_secs(1));
    let mut head = task::spawn(limiter.acquire());
    assert_pending!(head.poll());
    let _absent = polled_once(&limiter, 36);
    tokio::time::advance(Duration::from_secs(4)).await;
    let permit = assert_ready_ok!(head.poll());
    tokio::time::advance(Duration::from_secs(12)).await;
    let headers = [("ratelimit", "\"q\";r=10;t=60")]
        .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
    permit.complete(&ResponseInfo::new(StatusCode::OK, &HeaderMap::from_iter(headers)));
    let waiting: Vec<_> = (0..20).map(|_| tokio::spawn(limiter.acquire())).collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(waiting.iter().filter(|waiter| waiter.is_finished()).count(), 10);
}

/// Runs in real time, because one of the runtimes is blocked.
#[test]
fn blocked_runtime_delays_the_calls_of_another_by_at_most_a_second() {
    for waiters in [10, 2_000] {
        assert_blocked_runtime_delays_little(waiters);
    }
}

fn assert_blocked_runtime_delays_little(waiters: u64) {
    let rate = u32::try_from(waiters * 10).unwrap();
    let limiter = LocalLimiter::paced_window(Quota::per_second(rate).unwrap().with_burst(10).unwrap());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let limiter = limiter.with_initial_burst(0);
    let (queued, is_queued) = mpsc::channel();
    let (release, is_released) = mpsc::channel::<()>();
    let other = limiter.clone();
    let blocked = std::thread::spawn(move || {
        runtime().block_on(async {
            let waiting: Vec<_> = (0..waiters).map(|_| tokio::spawn(other.acquire())).collect();
            tokio::task::yield_now().await;
            queued.send(()).unwrap();
            // Blocks the runtime until the other calls have ended.
            is_released.recv_timeout(Duration::from_secs(30)).unwrap();
            for waiter in waiting {
                waiter.await.unwrap().unwrap();
            }
        });
    });
    is_queued.recv().unwrap();
    let elapsed = runtime().block_on(async {
        let start = Instant::now();
        let waiting: Vec<_> = (0..4).map(|_| tokio::spawn(limiter.acquire())).collect();
        for waiter in waiting {
            waiter.await.unwrap().unwrap();
        }
        start.elapsed()
    });
    release.send(()).unwrap();
    blocked.join().unwrap();
    // Without a blocked runtime, the calls take about 0.1 s.
    assert!(elapsed <= Duration::from_millis(1_150), "{elapsed:?}");
    assert_eq!(limiter.snapshot().queued, 0);
}

#[tokio::test(start_paused = true)]
async fn head_that_is_polled_late_keeps_its_position() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire().await.unwrap();
    let mut head = task::spawn(bucket.acquire());
    assert_pending!(head.poll());
    let mut next = task::spawn(bucket.acquire());
    assert_pending!(next.poll());
    // The task of the head runs 80 ms late.
    tokio::time::advance(millis(1_080)).await;
    if next.is_woken() {
        assert_pending!(next.poll());
    }
    assert_ready_ok!(head.poll());
}

/// Drops or serves the waiters around an absent one, so that only sleeping waiters remain behind it.
#[tokio::test(start_paused = true)]
async fn absent_waiter_of_a_long_queue_is_skipped_whichever_other_waiters_leave() {
    for (leaving, first) in [(64, true), (64, false), (1, true), (0, true)] {
        let bucket = refilling(1_000, 1_000).with_initial_burst(0);
        let start = Instant::now();
        let leave = polled_once(&bucket, leaving);
        let absent = polled_once(&bucket, 1);
        let waiting: Vec<_> = (0..20).map(|_| tokio::spawn(bucket.acquire())).collect();
        tokio::task::yield_now().await;
        let high = PermitRequest::new().with_priority(Priority::High);
        drop(task::spawn(bucket.acquire_with(&high)));
        if first {
            drop(leave);
        } else {
            drop(absent);
        }
        for waiter in waiting {
            let remaining = millis(1_050).saturating_sub(start.elapsed());
            tokio::time::timeout(remaining, waiter).await.unwrap().unwrap().unwrap();
        }
    }
}

/// The first waiter sleeps for minutes, and its runtime ends before its timer fires.
#[test]
fn absent_waiter_is_skipped_after_its_runtime_has_ended() {
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let bucket = refilling(1, 1).with_initial_burst(0);
    let ended = runtime();
    let mut absent = ended.block_on(async { polled_once(&bucket, 1) });
    drop(ended);
    runtime().block_on(async {
        let start = Instant::now();
        bucket.acquire().await.unwrap();
        assert!(start.elapsed() <= millis(2_000), "{:?}", start.elapsed());
        // The task that checks the queue for this runtime starts again with each new queue.
        drop(absent.remove(0));
        tokio::time::sleep(Duration::from_secs(10)).await;
        while bucket.try_acquire().is_ok() {}
        let _absent = polled_once(&bucket, 1);
        let start = Instant::now();
        bucket.acquire().await.unwrap();
        assert!(start.elapsed() <= millis(2_000), "{:?}", start.elapsed());
    });
}

/// The task that checks the queue does not keep a dropped limiter alive, and ends after the last waiter has left.
#[tokio::test(start_paused = true)]
async fn no_task_remains_without_waiters() {
    let metrics = tokio::runtime::Handle::current().metrics();
    for drops_limiter in [false, true] {
        let bucket = refilling(10, 10).with_initial_burst(0);
        let waiting = polled_once(&bucket, 3);
        assert_eq!(metrics.num_alive_tasks(), 1);
        drop(waiting);
        if drops_limiter {
            drop(bucket);
            tokio::time::sleep(millis(210)).await;
        } else {
            tokio::time::sleep(millis(210)).await;
            assert_eq!(bucket.snapshot().queued, 0);
        }
        assert_eq!(metrics.num_alive_tasks(), 0);
    }
}

/// The first request of a low priority cannot proceed until its share of the permits is saved. The request of a high
/// priority leaves no room for these permits, so the low one becomes the head.
#[tokio::test(start_paused = true)]
async fn new_head_is_woken_if_another_waiter_joins() {
    let bucket = LocalLimiter::token_bucket(Quota::per_second(1_000).unwrap().with_burst(10).unwrap());
    let bucket = bucket.with_lower_priority_share(10).unwrap().with_initial_burst(0);
    let queue = |priority, cost: u32| {
        let request = PermitRequest::new().with_priority(priority).with_cost(NonZeroU32::new(cost).unwrap());
        tokio::spawn(bucket.acquire_with(&request))
    };
    let low = queue(Priority::Low, 6);
    let normal: Vec<_> = (0..47).map(|_| queue(Priority::Normal, 1)).collect();
    for waiter in normal.into_iter().take(45) {
        waiter.await.unwrap().unwrap();
    }
    let start = Instant::now();
    let high = queue(Priority::High, 8);
    high.await.unwrap().unwrap();
    assert!(low.is_finished());
    assert!(start.elapsed() <= millis(30), "{:?}", start.elapsed());
}
