//! The limiter and its layer, on paused time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use http::{Request, Response};
use proptest::prelude::*;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    limit::{Ask, Limiter, RateLimitLayer, Reason, TokenBucket},
};

fn bucket(limit: u32, window: u64, burst: u32) -> TokenBucket {
    let quota = Quota::new(limit, Duration::from_secs(window)).unwrap();
    TokenBucket::new(quota.with_burst(burst).unwrap())
}

/// Bounds are set by name: `Ask` may grow.
fn ask(change: impl FnOnce(&mut Ask)) -> Ask {
    let mut ask = Ask::default();
    change(&mut ask);
    ask
}

#[tokio::test(start_paused = true)]
async fn the_burst_goes_at_once_and_the_rest_at_the_safe_rate() {
    let bucket = bucket(100, 60, 10);
    let start = Instant::now();
    let mut grants = Vec::new();
    for _ in 0..100 {
        bucket.acquire(Ask::default()).await.unwrap();
        grants.push(start.elapsed());
    }
    assert!(grants[..10].iter().all(Duration::is_zero));
    // 60 s / 90, and tokio's timer rounds up to the millisecond.
    for (number, grant) in grants[10..].iter().enumerate() {
        let due = Duration::from_secs_f64((number + 1) as f64 * 60.0 / 90.0);
        assert!(*grant >= due && *grant <= due + Duration::from_millis(2), "{number}: {grant:?} {due:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_spends_nothing_and_says_how_long_it_would_have_taken() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire(Ask::default()).await.unwrap();
    let mut waiting = task::spawn(bucket.acquire(Ask::default()));
    assert_pending!(waiting.poll());

    let now = Instant::now();
    let bounded = [
        (ask(|ask| ask.max_wait = Some(Duration::from_millis(1_999))), Reason::MaxWait),
        (ask(|ask| ask.deadline = Some(now + Duration::from_millis(1_999))), Reason::Deadline),
        (ask(|ask| ask.max_queue = 1), Reason::QueueFull),
    ];
    for (bounded, reason) in bounded {
        let refusal = bucket.acquire(bounded).await.unwrap_err();
        assert_eq!((refusal.reason(), refusal.wait()), (reason, Some(Duration::from_secs(2))));
        assert_eq!(now.elapsed(), Duration::ZERO, "at once");
    }
    // The one whose bound is just wide enough is let in, and served when it was foretold.
    let fits = ask(|ask| ask.max_wait = Some(Duration::from_secs(2)));
    let mut fits = task::spawn(bucket.acquire(fits));
    assert_pending!(fits.poll());
    drop(waiting);
    fits.await.unwrap();
    assert_eq!(now.elapsed(), Duration::from_secs(1), "the one before gave up");
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_does_not_overtake_who_waits() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire(Ask::default()).await.unwrap();
    let mut waiting = task::spawn(bucket.acquire(Ask::default()));
    assert_pending!(waiting.poll());
    // A permit is there by now, and it is not the newcomer's.
    tokio::time::advance(Duration::from_millis(1_500)).await;
    let mut newcomer = task::spawn(bucket.acquire(Ask::default()));
    assert_pending!(newcomer.poll());
    assert!(waiting.is_woken(), "the newcomer has served the line, though its head was not polled");
    assert_ready_ok!(waiting.poll());
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_wait_takes_no_place_and_spends_nothing() {
    let bucket = bucket(11, 10, 1);
    let unpolled = bucket.acquire(Ask::default());
    bucket.acquire(Ask::default()).await.unwrap();
    drop(unpolled);
    assert!(format!("{bucket:?}").contains("waiting: 0"), "{bucket:?}");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_leaves_hands_the_timer_on() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire(Ask::default()).await.unwrap();
    let start = Instant::now();
    let mut head = task::spawn(bucket.acquire(Ask::default()));
    assert_pending!(head.poll());
    let next = tokio::spawn(bucket.acquire(Ask::default()));
    tokio::task::yield_now().await;
    drop(head);
    next.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_all_and_is_only_ever_extended() {
    let bucket = TokenBucket::unmetered();
    let start = Instant::now();
    bucket.pause_until(start + Duration::from_secs(3));
    let waiting: Vec<_> = (0..10).map(|_| tokio::spawn(bucket.acquire(Ask::default()))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.clone().pause_until(start + Duration::from_secs(5));
    bucket.pause_until(start + Duration::from_secs(2));
    let refusal = bucket.acquire(ask(|ask| ask.max_wait = Some(Duration::ZERO))).await.unwrap_err();
    assert_eq!(refusal.wait(), Some(Duration::from_secs(4)));
    for wait in waiting {
        wait.await.unwrap().unwrap();
    }
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    bucket.acquire(Ask::default()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5), "and then it is over");
}

#[tokio::test(start_paused = true)]
async fn a_pause_into_the_far_future_is_a_refusal_and_not_a_panic() {
    let bucket = bucket(100, 60, 10);
    bucket.pause_until(Instant::now() + Duration::from_secs(u64::from(u32::MAX)));
    let deadline = ask(|ask| ask.deadline = Some(Instant::now() + Duration::from_secs(60)));
    assert_eq!(bucket.acquire(deadline).await.unwrap_err().reason(), Reason::Deadline);
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
async fn wake_ups_a_grant_do_not_grow_with_the_line() {
    const LINE: usize = 5_000;
    let bucket = bucket(1_100, 10, 100);
    for _ in 0..100 {
        bucket.acquire(Ask::default()).await.unwrap();
    }
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut line: Vec<Pin<Box<_>>> = (0..LINE).map(|_| Box::pin(bucket.acquire(Ask::default()))).collect();
    let mut cx = Context::from_waker(&waker);
    for wait in &mut line {
        assert!(wait.as_mut().poll(&mut cx).is_pending());
    }
    // Only those at the front are polled: the head holds the timer, the rest have been granted.
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
    assert!(woken <= 3 * LINE, "{woken} wake-ups for {LINE} grants");
}

#[tokio::test(start_paused = true)]
async fn every_layer_of_one_limiter_and_every_clone_share_the_bucket() {
    let layer = RateLimitLayer::new(bucket(11, 10, 1)).with_max_wait(Duration::ZERO);
    let service = || tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let (one, two) = (layer.layer(service()), layer.clone().layer(service()));
    one.clone().oneshot(Request::new(())).await.unwrap();
    for service in [one, two] {
        let error = service.oneshot(Request::new(())).await.unwrap_err();
        assert!(error.is_rate_limited());
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn no_readiness_is_held_during_the_wait() {
    // One slot below; two wait in the limiter above it.
    let layer = RateLimitLayer::new(bucket(11, 10, 1));
    let slots = tower::limit::ConcurrencyLimitLayer::new(1);
    let inner =
        slots.layer(tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) }));
    let limited = layer.layer(inner.clone());
    limited.clone().oneshot(Request::new(())).await.unwrap();
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut other = inner;
    assert!(tokio_test::task::spawn(other.ready()).poll().is_ready(), "the slot is free");
    drop(other);
    for wait in waiting {
        wait.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_on_other_statuses_pauses_nobody() {
    for (status, pauses) in [(429, true), (503, true), (202, false), (301, false), (500, false)] {
        let layer = RateLimitLayer::new(TokenBucket::unmetered());
        let mut service = layer.layer(tower::service_fn(move |_: Request<()>| async move {
            Response::builder().status(status).header("retry-after", "2").body(())
        }));
        let start = Instant::now();
        service.ready().await.unwrap().call(Request::new(())).await.unwrap();
        service.ready().await.unwrap().call(Request::new(())).await.unwrap();
        assert_eq!(start.elapsed() >= Duration::from_secs(2), pauses, "{status}");
    }
}

/// One caller: when it comes, and when it gives up.
#[derive(Debug, Clone)]
struct Caller {
    gap: Duration,
    patience: Option<Duration>,
}

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let caller = (0..400_u64, prop::option::weighted(0.3, 0..3_000_u64)).prop_map(|(gap, patience)| Caller {
        // Half of them come together.
        gap: Duration::from_millis(gap.saturating_sub(200)),
        patience: patience.map(Duration::from_millis),
    });
    prop::collection::vec(caller, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Never N+1 in any window, in order, and nobody forgotten, whoever comes and goes when.
    #[test]
    fn the_window_holds_for_random_arrivals_and_cancels(
        (limit, burst) in (2..30_u32).prop_flat_map(|limit| (Just(limit), 1..limit)),
        window in 1..8_000_u64,
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        let window = Duration::from_millis(window);
        let quota = Quota::new(limit, window).unwrap().with_burst(burst).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let (grants, finished) = runtime.unwrap().block_on(async {
            let bucket = TokenBucket::new(quota);
            if let Some((at, length)) = pause {
                let (bucket, start) = (bucket.clone(), Instant::now() + Duration::from_millis(at));
                tokio::spawn(async move {
                    tokio::time::sleep_until(start).await;
                    bucket.pause_until(start + Duration::from_millis(length));
                });
            }
            let grants = Arc::new(Mutex::new(Vec::new()));
            let mut tasks = Vec::new();
            for (number, caller) in callers.iter().cloned().enumerate() {
                tokio::time::sleep(caller.gap).await;
                let (bucket, grants) = (bucket.clone(), Arc::clone(&grants));
                tasks.push(tokio::spawn(async move {
                    let wait = bucket.acquire(Ask::default());
                    // Without a patience, a day: who is forgotten by the line fails the count below.
                    let patience = caller.patience.unwrap_or(Duration::from_secs(86_400));
                    match tokio::time::timeout(patience, wait).await {
                        Ok(granted) => {
                            granted.unwrap();
                            grants.lock().unwrap().push((number, Instant::now()));
                        }
                        Err(_) => assert!(caller.patience.is_some(), "forgotten"),
                    }
                }));
            }
            let mut finished = 0;
            for task in tasks {
                finished += usize::from(task.await.is_ok());
            }
            let grants = grants.lock().unwrap().clone();
            (grants, finished)
        });
        prop_assert_eq!(finished, callers.len());
        for (first, (_, from)) in grants.iter().enumerate() {
            let within = grants[first..].iter().take_while(|(_, at)| *at - *from <= window).count();
            prop_assert!(within <= limit as usize, "{} in {:?}", within, window);
        }
        prop_assert!(grants.is_sorted_by_key(|(number, _)| *number), "{:?}", grants);
    }
}
