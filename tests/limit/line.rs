//! The queue: its order, cancelled waiters, wake-ups and refusals.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower_outbound::{
    error::Reason,
    limit::{Limiter, PermitRequest},
};

use crate::{bucket, costing};

#[tokio::test(start_paused = true)]
async fn a_refusal_spends_nothing_and_carries_the_necessary_wait() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut waiting = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(waiting.poll());

    let now = Instant::now();
    let bounded = [
        (PermitRequest::new().with_max_wait(Duration::from_millis(1_999)), Reason::MaxWait),
        (PermitRequest::new().with_deadline(now + Duration::from_millis(1_999)), Reason::Deadline),
        (PermitRequest::new().with_max_queue(1), Reason::QueueFull),
    ];
    for (bounded, reason) in bounded {
        let refusal = bucket.acquire_with(&bounded).await.unwrap_err();
        assert_eq!((refusal.reason(), refusal.wait()), (reason, Some(Duration::from_secs(2))));
        assert_eq!(now.elapsed(), Duration::ZERO, "at once");
    }
    // A request whose bound equals the forecast is queued.
    let fits = PermitRequest::new().with_max_wait(Duration::from_secs(2));
    let mut fits = task::spawn(bucket.acquire_with(&fits));
    assert_pending!(fits.poll());
    drop(waiting);
    fits.await.unwrap();
    assert_eq!(now.elapsed(), Duration::from_secs(1), "the waiter before it was dropped");
}

#[tokio::test(start_paused = true)]
async fn a_new_request_does_not_overtake_waiters() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut waiting = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(waiting.poll());
    // A permit is available now, and it belongs to the waiter.
    tokio::time::advance(Duration::from_millis(1_500)).await;
    let mut newcomer = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(newcomer.poll());
    assert!(
        waiting.is_woken(),
        "the new request granted the head's permit, although the head was not polled"
    );
    assert_ready_ok!(waiting.poll());
}

#[tokio::test(start_paused = true)]
async fn cheap_requests_do_not_overtake_a_costly_head() {
    let bucket = bucket(20, 10, 10);
    bucket.acquire_with(&costing(10)).await.unwrap();
    let start = Instant::now();
    let mut costly = task::spawn(bucket.acquire_with(&costing(10)));
    assert_pending!(costly.poll());
    let cheap = tokio::spawn(bucket.acquire_with(&costing(1)));
    tokio::task::yield_now().await;
    assert_eq!(bucket.try_acquire().unwrap_err().wait(), Some(Duration::from_secs(12)));
    costly.await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    cheap.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(11));
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_future_is_not_queued_and_spends_nothing() {
    let bucket = bucket(11, 10, 1);
    let unpolled = bucket.acquire_with(&PermitRequest::new());
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    drop(unpolled);
    assert_eq!((bucket.snapshot().queued, bucket.snapshot().granted), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_next_waiter_arms_the_timer_after_the_head_is_dropped() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let start = Instant::now();
    let mut head = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(head.poll());
    let next = tokio::spawn(bucket.acquire_with(&PermitRequest::new()));
    tokio::task::yield_now().await;
    drop(head);
    next.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

/// Counts how often a task was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn wake_ups_per_grant_do_not_grow_with_the_queue() {
    const LINE: usize = 5_000;
    let bucket = bucket(1_100, 10, 100);
    for _ in 0..100 {
        bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    }
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut line: Vec<Pin<Box<_>>> =
        (0..LINE).map(|_| Box::pin(bucket.acquire_with(&PermitRequest::new()))).collect();
    let mut cx = Context::from_waker(&waker);
    for wait in &mut line {
        assert!(wait.as_mut().poll(&mut cx).is_pending());
    }
    // Polls only the front of the queue: the head has the timer, and the others have been granted.
    let mut granted = 0;
    while granted < LINE {
        match line[granted].as_mut().poll(&mut cx) {
            Poll::Ready(result) => {
                result.unwrap();
                granted += 1;
            }
            Poll::Pending => tokio::time::advance(Duration::from_millis(10)).await,
        }
    }
    let woken = wakes.0.load(Ordering::Relaxed);
    assert!(woken <= 2 * LINE, "{woken} wake-ups for {LINE} grants");
}

#[tokio::test(start_paused = true)]
async fn a_future_that_moves_to_another_task_wakes_the_new_task() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut head = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(head.poll());
    let mut second = Box::pin(bucket.acquire_with(&PermitRequest::new()));
    let (old, new) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
    assert!(second.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&old)))).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&new)))).is_pending());
    drop(head);
    assert_eq!((old.0.load(Ordering::Relaxed), new.0.load(Ordering::Relaxed)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_refused_as_soon_as_it_cannot_meet_its_deadline() {
    let bucket = bucket(11, 110, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let start = Instant::now();
    // A permit is refilled every eleven seconds.
    let until = |seconds| PermitRequest::new().with_deadline(start + Duration::from_secs(seconds));
    let head = tokio::spawn(bucket.acquire_with(&until(30)));
    let second = tokio::spawn(bucket.acquire_with(&until(200)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.pause_until(start + Duration::from_secs(100));
    assert_eq!(head.await.unwrap().unwrap_err().reason(), Reason::Deadline);
    assert_eq!(start.elapsed(), Duration::from_secs(1), "at once, not at its deadline");
    // Spent permits also count for a request that arrives during the pause.
    let refusal = bucket.acquire_with(&until(105)).await.unwrap_err();
    assert_eq!(refusal.wait(), Some(Duration::from_secs(110)));
    second.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(100));
}

#[tokio::test(start_paused = true)]
async fn max_wait_counts_from_the_arrival() {
    let bucket = bucket(2, 6, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let start = Instant::now();
    let wait =
        tokio::spawn(bucket.acquire_with(&PermitRequest::new().with_max_wait(Duration::from_secs(10))));
    tokio::time::sleep(Duration::from_secs(5)).await;
    bucket.pause_until(start + Duration::from_secs(14));
    assert_eq!(wait.await.unwrap().unwrap_err().reason(), Reason::MaxWait);
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}
