//! End-to-end tests of `LocalLimiter`: the core through futures, the clock, the driver and the path without a lock.

use super::*;

#[cfg(feature = "quanta")]
#[tokio::test(start_paused = true)]
async fn quanta_clock_does_not_follow_the_paused_clock_of_tokio() {
    let bucket = LocalLimiter::token_bucket(quota(2, 36_000_000, 1)).with_quanta_clock();
    bucket.try_acquire().unwrap();
    advance(seconds(36_000)).await;
    assert!(bucket.try_acquire().is_err());
}

/// The first refusal takes the lock. The others do not, and count as well.
#[tokio::test(start_paused = true)]
async fn refusal_without_the_lock_carries_the_exact_wait_and_is_counted() {
    let bucket = LocalLimiter::token_bucket(one_per_second());
    bucket.try_acquire().unwrap();
    let no_wait = PermitRequest::new().with_max_wait(Duration::ZERO);
    for (number, left) in [1_000, 700, 400, 100].into_iter().enumerate() {
        assert_eq!(bucket.snapshot().refused, 3 * number as u64);
        let mut refusals = Vec::from_iter((0..2).map(|_| bucket.try_acquire().unwrap_err()));
        refusals.push(bucket.acquire_with(&no_wait).await.unwrap_err());
        for refusal in refusals {
            assert_eq!((refusal.reason(), refusal.wait()), (Reason::MaxWait, Some(millis(left))));
        }
        advance(millis(300)).await;
    }
    assert!(bucket.try_acquire().is_ok());
}

#[tokio::test(start_paused = true)]
async fn request_is_refused_immediately_if_its_wait_exceeds_a_bound() {
    let bucket = LocalLimiter::token_bucket(one_per_second());
    bucket.acquire().await.unwrap();
    let (waiting, start) = (queued(&bucket, &PermitRequest::new()), Instant::now());
    for (bounded, reason) in [
        (PermitRequest::new().with_max_wait(millis(1_999)), Reason::MaxWait),
        (PermitRequest::new().with_deadline(start + millis(1_999)), Reason::Deadline),
        (PermitRequest::new().with_max_queue(1), Reason::QueueFull),
    ] {
        let refusal = bucket.acquire_with(&bounded).await.unwrap_err();
        assert_eq!((refusal.reason(), refusal.wait()), (reason, Some(seconds(2))));
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    // A request whose maximum wait equals the forecast wait is queued.
    let fits = queued(&bucket, &PermitRequest::new().with_max_wait(seconds(2)));
    drop(waiting);
    fits.await.unwrap();
    assert_eq!(start.elapsed(), seconds(1), "the waiter ahead was dropped");
}

#[test]
fn share_of_a_lower_priority_is_at_most_25_percent() {
    let error = refilling(1, 1).with_lower_priority_share(26).unwrap_err();
    assert_eq!(error.to_string(), "invalid lower priority share `26`: expected at most 25");
}

#[tokio::test(start_paused = true)]
async fn pause_applies_to_all_clones_until_its_end_or_resume() {
    let (limiter, start) = (LocalLimiter::without_quota(), Instant::now());
    assert_eq!((limiter.snapshot().available, limiter.snapshot().paused_until), (u32::MAX, None));
    limiter.pause_until(start + seconds(3));
    let waiting: Vec<_> = (0..10).map(|_| tokio::spawn(limiter.acquire())).collect();
    sleep(seconds(1)).await;
    limiter.clone().pause_until(start + seconds(5));
    limiter.pause_until(start + seconds(2));
    let mut left = Vec::new();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
        left.push(start.elapsed().as_millis());
    }
    assert_eq!(left, [5_000, 5_100, 5_150, 5_200, 5_225, 5_250, 5_275, 5_300, 5_313, 5_325]);
    limiter.pause_until(start + seconds(u32::MAX.into()));
    let bounded = PermitRequest::new().with_deadline(start + seconds(60));
    assert_eq!(limiter.acquire_with(&bounded).await.unwrap_err().reason(), Reason::Deadline);
    let waiting = tokio::spawn(limiter.acquire());
    sleep(seconds(1)).await;
    limiter.resume();
    waiting.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), millis(6_325));
}
