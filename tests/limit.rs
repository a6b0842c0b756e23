//! The limiter and its layer, on paused time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "probe/cases.rs"]
mod cases;

use std::{
    convert::Infallible,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, SystemTime},
};

use cases::cases;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use proptest::prelude::*;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    limit::{Ask, Cost, Feedback, Keyed, Limiter, RateLimitLayer, Reason, SlidingWindow, TokenBucket},
    test_util::{Arrival, Arrivals},
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
    assert_eq!((bucket.snapshot().queued, bucket.snapshot().granted), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_set_again_and_again_costs_nothing() {
    for every in [100, 300, 600, 700] {
        let quota = Quota::per_minute(100).unwrap().with_burst(1).unwrap();
        let other = Quota::per_minute(101).unwrap().with_burst(1).unwrap();
        let (bucket, start) = (TokenBucket::new(quota), Instant::now());
        let mut granted = 0;
        for number in 0.. {
            if start.elapsed() > Duration::from_secs(600) {
                break;
            }
            // The same, and one that hardly differs.
            bucket.set_quotas([if number % 3 == 0 { other } else { quota }]);
            granted += usize::from(bucket.try_acquire(permits(1)).is_ok());
            tokio::time::advance(Duration::from_millis(every)).await;
        }
        let fair = 600_000 / 607_u64.next_multiple_of(every);
        assert!(granted as u64 >= fair && granted <= 991, "{granted} grants, set every {every} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_over_is_none() {
    let limiter = TokenBucket::unmetered();
    tokio::time::advance(Duration::from_secs(1)).await;
    limiter.pause_until(Instant::now() - Duration::from_millis(1));
    assert!((0..100).all(|_| limiter.try_acquire(permits(1)).is_ok()));
    // Nor does a quota that is taken away in a pause let all go at its end.
    let limiter = bucket(100, 60, 10);
    let start = Instant::now();
    limiter.pause_until(start + Duration::from_secs(10));
    let waiting: Vec<_> = (0..50).map(|_| tokio::spawn(limiter.acquire(Ask::default()))).collect();
    tokio::task::yield_now().await;
    limiter.set_quotas([]);
    for wait in waiting {
        wait.await.unwrap().unwrap();
    }
    assert!(start.elapsed() > Duration::from_millis(10_500), "{:?}", start.elapsed());
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
    // Without a quota the eleventh leaves at 3 and 3/8 steps of 100 ms, when twice as many go with every step.
    assert_eq!(refusal.wait(), Some(Duration::from_micros(4_337_500)));
    let mut left = Vec::new();
    for wait in waiting {
        wait.await.unwrap().unwrap();
        left.push(start.elapsed().as_millis());
    }
    assert_eq!(left, [5_000, 5_100, 5_150, 5_200, 5_225, 5_250, 5_275, 5_300, 5_313, 5_325]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!((0..1_000).all(|_| bucket.try_acquire(permits(1)).is_ok()), "and then it is over");
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
    assert!(woken <= 2 * LINE, "{woken} wake-ups for {LINE} grants");
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

fn permits(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn costing(number: u32) -> Ask {
    ask(|ask| ask.cost = permits(number))
}

#[tokio::test(start_paused = true)]
async fn a_window_gives_the_whole_quota_at_once_and_again_when_it_has_passed() {
    let window = SlidingWindow::new(Quota::per_minute(100).unwrap());
    let start = Instant::now();
    let mut grants = Vec::new();
    for _ in 0..300 {
        window.acquire(Ask::default()).await.unwrap();
        grants.push(start.elapsed());
    }
    assert!(grants[..100].iter().all(Duration::is_zero));
    // The window's both ends count, and tokio's timer rounds up to the millisecond.
    let minute = Duration::from_millis(60_001);
    assert!(grants[100..200].iter().all(|at| *at == minute), "{:?}", &grants[100..102]);
    assert!(grants[200..].iter().all(|at| *at == 2 * minute));
}

#[tokio::test(start_paused = true)]
async fn of_several_quotas_all_are_spent_or_none() {
    let ten_a_second = Quota::per_second(10).unwrap().with_burst(5).unwrap();
    let hundred_a_minute = Quota::per_minute(100).unwrap().with_burst(7).unwrap();
    let bucket = TokenBucket::all_of([ten_a_second, hundred_a_minute]);
    // The first gives five, of the second two are left.
    for _ in 0..5 {
        bucket.try_acquire(permits(1)).unwrap();
    }
    assert!(bucket.try_acquire(permits(1)).is_err());
    assert_eq!(bucket.snapshot().available, 0);
    // Refused by the first quota a hundred times, the second still has its two.
    for _ in 0..100 {
        assert!(bucket.try_acquire(permits(1)).is_err());
    }
    tokio::time::advance(Duration::from_millis(600)).await;
    assert_eq!(bucket.snapshot().available, 2);
    for _ in 0..2 {
        bucket.try_acquire(permits(1)).unwrap();
    }
    // The first has one more; it is the second that says no, for 60 s / 93 less what has passed.
    let wait = bucket.try_acquire(permits(1)).unwrap_err().wait().unwrap();
    assert!((Duration::from_millis(45)..Duration::from_millis(46)).contains(&wait), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cost_is_taken_whole_and_one_that_can_never_fit_is_its_own_error() {
    let bucket = bucket(20, 10, 10);
    bucket.acquire(costing(7)).await.unwrap();
    let start = Instant::now();
    bucket.acquire(costing(5)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(2), "three were there, two more a second each");
    let refusal = bucket.acquire(costing(11)).await.unwrap_err();
    assert_eq!((refusal.reason(), refusal.wait(), refusal.largest()), (Reason::TooCostly, None, Some(10)));
    let window = SlidingWindow::new(Quota::per_minute(20).unwrap());
    assert_eq!(window.acquire(costing(21)).await.unwrap_err().largest(), Some(20));
    window.acquire(costing(20)).await.unwrap();
    assert!(window.try_acquire(permits(1)).is_err());

    let layer = RateLimitLayer::new(bucket);
    let service = || tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let mut request = Request::new(());
    request.extensions_mut().insert(Cost(permits(11)));
    let error = layer.layer(service()).oneshot(request).await.unwrap_err();
    assert!(error.is_too_costly() && !error.is_rate_limited());
    assert_eq!(
        format!("{error:#}"),
        "the request can never fit in the rate limit: the request costs more permits than can ever be had at once, \
         which is 10"
    );
    let drawn = layer.with_cost(|head| permits(head.uri.path().len() as u32));
    let request = Request::get("/0123456789").body(()).unwrap();
    assert!(drawn.layer(service()).oneshot(request).await.unwrap_err().is_too_costly());
}

#[tokio::test(start_paused = true)]
async fn a_costly_head_is_not_overtaken_by_cheap_ones() {
    let bucket = bucket(20, 10, 10);
    bucket.acquire(costing(10)).await.unwrap();
    let start = Instant::now();
    let mut costly = task::spawn(bucket.acquire(costing(10)));
    assert_pending!(costly.poll());
    let cheap = tokio::spawn(bucket.acquire(costing(1)));
    tokio::task::yield_now().await;
    assert_eq!(bucket.try_acquire(permits(1)).unwrap_err().wait(), Some(Duration::from_secs(12)));
    costly.await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    cheap.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(11));
}

#[tokio::test(start_paused = true)]
async fn starting_empty_there_is_no_burst() {
    let bucket = bucket(20, 10, 10).starting_empty();
    assert_eq!(bucket.snapshot().available, 0);
    assert_eq!(bucket.try_acquire(permits(1)).unwrap_err().wait(), Some(Duration::from_secs(1)));
    let window = SlidingWindow::new(Quota::per_second(5).unwrap()).starting_empty();
    let start = Instant::now();
    window.acquire(Ask::default()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(1_001));
}

#[tokio::test(start_paused = true)]
async fn a_new_quota_keeps_what_is_spent() {
    let before = Quota::new(20, Duration::from_secs(10)).unwrap().with_burst(10).unwrap();
    let after = Quota::new(40, Duration::from_secs(10)).unwrap().with_burst(20).unwrap();
    let bucket = TokenBucket::new(before);
    bucket.acquire(costing(8)).await.unwrap();
    bucket.set_quotas([after]);
    assert_eq!(bucket.snapshot().available, 2, "the larger burst comes by and by");
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(bucket.snapshot().available, 12);

    // Whoever waits, waits by the new quota from now on; whoever can never fit is told.
    let bucket = TokenBucket::new(before);
    bucket.acquire(costing(10)).await.unwrap();
    let waiting = tokio::spawn(bucket.acquire(costing(6)));
    let hopeless = tokio::spawn(bucket.acquire(costing(9)));
    tokio::task::yield_now().await;
    let start = Instant::now();
    bucket.set_quotas([Quota::new(80, Duration::from_secs(10)).unwrap().with_burst(8).unwrap()]);
    assert_eq!(hopeless.await.unwrap().unwrap_err().reason(), Reason::TooCostly);
    waiting.await.unwrap().unwrap();
    // Ten are spent of a burst of eight, six are wanted: eight have to come, one each 10 s / 72.
    assert_eq!(start.elapsed().as_millis(), 1_112);

    let window = SlidingWindow::new(before);
    window.acquire(costing(15)).await.unwrap();
    window.set_quotas([Quota::new(16, Duration::from_secs(10)).unwrap()]);
    assert_eq!(window.snapshot().available, 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_burst_or_there_and_back_lets_no_more_through() {
    let minute = Duration::from_secs(60);
    let of = |limit, burst| Quota::new(limit, minute).unwrap().with_burst(burst).unwrap();
    for bursts in [[10, 90, 90], [90, 10, 90], [10, 90, 10], [50, 99, 1]] {
        let bucket = TokenBucket::new(of(100, bursts[0]));
        let grants = Arrivals::new();
        for second in 0..200 {
            if second % 20 == 10 {
                bucket.set_quotas([of(100, bursts[second / 20 % 3])]);
            }
            for _ in 0..10 {
                while bucket.try_acquire(permits(1)).is_ok() {
                    grants.note();
                }
                tokio::time::advance(Duration::from_millis(100)).await;
            }
        }
        assert!(grants.most_in(minute) <= 100, "{bursts:?}: {}", grants.most_in(minute));
    }
    let window = SlidingWindow::new(of(100, 1));
    let mut grants = Vec::new();
    for limit in [100, 10, 100] {
        window.set_quotas([of(limit, 1)]);
        while window.try_acquire(permits(1)).is_ok() {
            grants.push(Instant::now());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(grants.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_idle_only_when_nothing_is_owed_under_any_of_its_quotas() {
    let quotas = [Quota::per_second(10).unwrap(), Quota::per_minute(20).unwrap()];
    let windows = Keyed::new(|_| 0, move |_: &u32| SlidingWindow::all_of(quotas));
    let mut granted = 0;
    for second in 0..59 {
        granted += (0..10).filter(|_| windows.limiter(&0).unwrap().try_acquire(permits(1)).is_ok()).count();
        for other in 0..50 {
            let _ = windows.limiter(&(1 + 50 * second + other));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(granted, 20);
}

#[tokio::test(start_paused = true)]
async fn any_number_of_keys_may_be_allowed() {
    let quota = Quota::per_second(10).unwrap();
    let keyed = Keyed::with_max_keys(usize::MAX, |_| 0, move |_: &u32| TokenBucket::new(quota));
    assert!((0..1_000).all(|key| keyed.limiter(&key).is_ok()));
}

#[tokio::test(start_paused = true)]
async fn permits_that_nobody_fetched_are_stale_after_a_breath_in_a_pause_or_where_nothing_is_left() {
    let nothing_left = [(HeaderName::from_static("ratelimit"), HeaderValue::from_static("\"a\";r=0;t=60"))];
    let nothing_left =
        Feedback::read(StatusCode::OK, &HeaderMap::from_iter(nothing_left), || SystemTime::UNIX_EPOCH)
            .unwrap();
    for (stopped, by_pause) in [(true, true), (true, false), (false, false)] {
        let window = SlidingWindow::new(Quota::new(2, Duration::from_secs(10)).unwrap());
        window.acquire(costing(2)).await.unwrap();
        let mut first = task::spawn(window.acquire(Ask::default()));
        let mut second = task::spawn(window.acquire(Ask::default()));
        assert_pending!(first.poll());
        assert_pending!(second.poll());
        tokio::time::advance(Duration::from_millis(10_001)).await;
        assert_ready_ok!(first.poll());
        // Granted together with the first, and not polled until the next window is there.
        assert!(second.is_woken());
        if stopped {
            match by_pause {
                true => window.pause_until(Instant::now() + Duration::from_secs(60)),
                false => window.observe(&nothing_left),
            }
            assert_pending!(second.poll());
            let start = Instant::now();
            second.await.unwrap();
            assert!(start.elapsed() >= Duration::from_secs(60));
        } else {
            tokio::time::advance(Duration::from_secs(15)).await;
            assert_ready_ok!(second.poll());
            assert_eq!(window.snapshot().available, 1, "it took another, which is counted now");
        }
        assert_eq!(window.snapshot().queued, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_tells_how_it_stands() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire(Ask::default()).await.unwrap();
    let mut waiting = task::spawn(bucket.acquire(Ask::default()));
    assert_pending!(waiting.poll());
    let until = Instant::now() + Duration::from_secs(5);
    bucket.pause_until(until);
    bucket.try_acquire(permits(1)).unwrap_err();
    let snapshot = bucket.snapshot();
    assert_eq!((snapshot.available, snapshot.queued, snapshot.granted, snapshot.refused), (0, 1, 1, 1));
    assert_eq!(snapshot.paused_until, Some(until));
    let free = TokenBucket::unmetered().snapshot();
    assert_eq!((free.available, free.paused_until), (u32::MAX, None));
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_quota_and_an_idle_one_is_let_go() {
    let quota = Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(1).unwrap();
    let keyed = Keyed::with_max_keys(
        16,
        |head| head.uri.host().unwrap_or_default().to_owned(),
        move |_: &String| TokenBucket::new(quota),
    );
    let layer = RateLimitLayer::new(keyed.clone()).with_max_wait(Duration::ZERO);
    let service =
        layer.layer(tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) }));
    let to = |host: usize| Request::get(format!("https://host-{host}.example/")).body(()).unwrap();
    service.clone().oneshot(to(0)).await.unwrap();
    assert!(service.clone().oneshot(to(0)).await.unwrap_err().is_rate_limited(), "its permit is spent");

    // Keys that owe something are never forgotten: a shard that is full of them takes no more.
    let mut refused = 0;
    for host in 1..200 {
        refused += usize::from(service.clone().oneshot(to(host)).await.is_err());
    }
    assert!(refused >= 199 - 16, "{refused}");
    assert!(keyed.len() <= 16);
    assert!(service.clone().oneshot(to(0)).await.is_err(), "and the first still owes its permit");

    // A second later nothing is owed any more, and the old make way for the new.
    tokio::time::advance(Duration::from_secs(1)).await;
    for host in 1_000..1_010 {
        service.clone().oneshot(to(host)).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(keyed.len() <= 16);
}

#[tokio::test(start_paused = true)]
async fn idle_keys_go_though_there_is_room() {
    let quota = Quota::per_second(10).unwrap();
    let keyed = Keyed::new(|_| 0, move |_: &u32| TokenBucket::new(quota));
    for key in 0..10_000 {
        keyed.limiter(&key).unwrap().try_acquire(permits(1)).unwrap();
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    // A permit is owed for a ninth of a second: eleven keys at a time, and those that were not looked at yet.
    assert!(keyed.len() < 500, "{}", keyed.len());
}

/// Notes when each request arrives; the first of them take their time.
fn slow_at_first(
    slow: usize,
    takes: Duration,
    status: u16,
) -> (impl Service<Request<()>, Response = Response<()>, Error = http::Error, Future: Send> + Clone, Arrivals)
{
    let arrivals = Arrivals::new();
    let noted = arrivals.clone();
    let service = tower::service_fn(move |_: Request<()>| {
        noted.note();
        let number = noted.count();
        let takes = if number <= slow { takes } else { Duration::ZERO };
        async move {
            tokio::time::sleep(takes).await;
            let status = if number == 1 { status } else { 200 };
            Response::builder().status(status).header("retry-after", "30").body(())
        }
    });
    (service, arrivals)
}

#[tokio::test(start_paused = true)]
async fn permits_that_waited_for_room_below_are_renewed_so_the_window_holds_where_it_counts() {
    for (guard, sliding) in [(0, false), (0, true), (500, false)] {
        let quota = Quota::per_second(10).unwrap().with_guard(Duration::from_millis(guard)).unwrap();
        let (service, arrivals) = slow_at_first(8, Duration::from_secs(10), 200);
        let slots = tower::limit::ConcurrencyLimitLayer::new(8).layer(service);
        let calls: Vec<_> = if sliding {
            let limited = RateLimitLayer::new(SlidingWindow::new(quota)).layer(slots);
            (0..100).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect()
        } else {
            let limited = RateLimitLayer::new(TokenBucket::new(quota)).layer(slots);
            (0..100).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect()
        };
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(arrivals.count(), 100);
        let most = arrivals.most_in(Duration::from_secs(1));
        assert!(most <= 10, "guard {guard}, sliding {sliding}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_those_who_have_a_permit_but_no_room_below() {
    let (service, arrivals) = slow_at_first(1, Duration::from_secs(1), 429);
    let slot = tower::limit::ConcurrencyLimitLayer::new(1).layer(service);
    let limiter = TokenBucket::unmetered();
    let limited = RateLimitLayer::new(limiter.clone()).layer(slot);
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let arrivals = arrivals.times();
    assert!(arrivals[1] - arrivals[0] >= Duration::from_secs(31), "{:?}", arrivals[1] - arrivals[0]);
    assert_eq!(limiter.snapshot().in_flight, 0, "what was renewed is not counted twice");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_moves_to_another_task_wakes_that_one() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire(Ask::default()).await.unwrap();
    let mut head = task::spawn(bucket.acquire(Ask::default()));
    assert_pending!(head.poll());
    let mut second = Box::pin(bucket.acquire(Ask::default()));
    let (old, new) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
    assert!(second.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&old)))).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&new)))).is_pending());
    drop(head);
    assert_eq!((old.0.load(Ordering::Relaxed), new.0.load(Ordering::Relaxed)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_nobody_wants_to_wait_out_can_be_lifted() {
    let bucket = TokenBucket::unmetered();
    bucket.observe(&Feedback::pause(Duration::from_secs(99_999_999)));
    let start = Instant::now();
    let waiting = tokio::spawn(bucket.acquire(Ask::default()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.resume();
    waiting.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn who_can_not_be_served_in_time_any_more_is_told_when_that_is_known() {
    let bucket = bucket(11, 110, 1);
    bucket.acquire(Ask::default()).await.unwrap();
    let start = Instant::now();
    // A permit comes every eleven seconds.
    let until = |seconds| ask(|ask| ask.deadline = Some(start + Duration::from_secs(seconds)));
    let head = tokio::spawn(bucket.acquire(until(30)));
    let second = tokio::spawn(bucket.acquire(until(200)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.pause_until(start + Duration::from_secs(100));
    assert_eq!(head.await.unwrap().unwrap_err().reason(), Reason::Deadline);
    assert_eq!(start.elapsed(), Duration::from_secs(1), "at once, and not when its deadline has come");
    // What is spent counts for one who comes during the pause, too.
    let refusal = bucket.acquire(until(105)).await.unwrap_err();
    assert_eq!(refusal.wait(), Some(Duration::from_secs(110)));
    second.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(100));
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_is_counted_from_the_first_moment() {
    let bucket = bucket(2, 6, 1);
    bucket.acquire(Ask::default()).await.unwrap();
    let start = Instant::now();
    let wait = tokio::spawn(bucket.acquire(ask(|ask| ask.max_wait = Some(Duration::from_secs(10)))));
    tokio::time::sleep(Duration::from_secs(5)).await;
    bucket.pause_until(start + Duration::from_secs(14));
    assert_eq!(wait.await.unwrap().unwrap_err().reason(), Reason::MaxWait);
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

/// What a caller does, and when.
#[derive(Debug, Clone)]
struct Caller {
    gap: Duration,
    cost: u32,
    patience: Option<Duration>,
}

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let caller = (0..400_u64, 1..4_u32, prop::option::weighted(0.3, 0..3_000_u64));
    let caller = caller.prop_map(|(gap, cost, patience)| Caller {
        // Half of them come together.
        gap: Duration::from_millis(gap.saturating_sub(200)),
        cost,
        patience: patience.map(Duration::from_millis),
    });
    prop::collection::vec(caller, 1..60)
}

fn quota() -> impl Strategy<Value = Quota> {
    let burst = (2..30_u32).prop_flat_map(|limit| (Just(limit), 1..limit));
    (burst, 1..8_000_u64).prop_map(|((limit, burst), window)| {
        Quota::new(limit, Duration::from_millis(window)).unwrap().with_burst(burst).unwrap()
    })
}

/// Runs the callers on paused time and checks what every strategy promises: never more than the quota in any
/// window, both ends counted; in order; and nobody forgotten, whoever comes and goes when.
fn holds<L>(
    make: impl FnOnce() -> L,
    quotas: &[Quota],
    pause: Option<(u64, u64)>,
    callers: &[Caller],
) -> Result<(), TestCaseError>
where
    L: Limiter + Send + 'static,
    L::Acquire: Send,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let (grants, finished) = runtime.unwrap().block_on(async {
        let limiter = make();
        if let Some((at, length)) = pause {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(at)).await;
                limiter.observe(&Feedback::pause(Duration::from_millis(length)));
            });
        }
        let grants = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (number, caller) in callers.iter().cloned().enumerate() {
            tokio::time::sleep(caller.gap).await;
            let (limiter, grants) = (limiter.clone(), Arc::clone(&grants));
            tasks.push(tokio::spawn(async move {
                let wait = limiter.acquire(costing(caller.cost));
                // Without a patience, a day: who is forgotten by the line fails the count below.
                let patience = caller.patience.unwrap_or(Duration::from_secs(86_400));
                match tokio::time::timeout(patience, wait).await {
                    Ok(Ok(())) => grants.lock().unwrap().push((number, Instant::now(), caller.cost)),
                    Ok(Err(refusal)) => assert_eq!(refusal.reason(), Reason::TooCostly),
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
    let arrivals = grants.iter().map(|(_, at, cost)| Arrival::from(*at).with_permits(*cost));
    let arrivals: Arrivals = arrivals.collect();
    for quota in quotas {
        let most = arrivals.most_in(quota.window());
        prop_assert!(most <= u64::from(quota.limit()), "{} under {}", most, quota);
    }
    // Whose patience ends at the very moment of its grant is polled for that reason, maybe before its turn.
    let patient = grants.iter().filter(|(number, _, _)| callers[*number].patience.is_none());
    prop_assert!(patient.is_sorted_by_key(|(number, _, _)| *number), "{:?}", grants);
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn the_window_holds_for_a_token_bucket(
        quota in quota(),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        holds(|| TokenBucket::new(quota), &[quota], pause, &callers)?;
    }

    #[test]
    fn the_window_holds_for_a_sliding_window(
        quota in quota(),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        holds(|| SlidingWindow::new(quota), &[quota], pause, &callers)?;
    }

    #[test]
    fn the_window_holds_for_several_quotas_of_buckets(
        quotas in prop::collection::vec(quota(), 1..4),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        holds(|| TokenBucket::all_of(quotas.clone()), &quotas, pause, &callers)?;
    }

    #[test]
    fn the_window_holds_for_several_quotas_of_windows(
        quotas in prop::collection::vec(quota(), 1..4),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        holds(|| SlidingWindow::all_of(quotas.clone()), &quotas, pause, &callers)?;
    }

    /// What is foretold to a newcomer is when it goes, as long as nobody before it gives up.
    #[test]
    fn the_wait_is_the_one_that_was_foretold(
        quota in quota(),
        sliding in any::<bool>(),
        costs in prop::collection::vec(1..4_u32, 1..40),
    ) {
        // A window leaves a gap before a cost that does not fit, which is not foretold.
        let costs = if sliding { vec![1; costs.len()] } else { costs };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            if sliding {
                foretold(SlidingWindow::new(quota), |limiter, cost| limiter.try_acquire(cost).err(), &costs).await
            } else {
                foretold(TokenBucket::new(quota), |limiter, cost| limiter.try_acquire(cost).err(), &costs).await
            }
        })?;
    }
}

async fn foretold<L>(
    limiter: L,
    ask: impl Fn(&L, NonZeroU32) -> Option<tower_outbound::limit::Refusal>,
    costs: &[u32],
) -> Result<(), TestCaseError>
where
    L: Limiter + Send + 'static,
    L::Acquire: Send + 'static,
{
    let (start, mut before) = (Instant::now(), 0);
    let mut waiting = Vec::new();
    for cost in costs.iter().map(|cost| permits(*cost)) {
        // None: it took its permits at once.
        let Some(refusal) = ask(&limiter, cost) else { continue };
        let Some(wait) = refusal.wait() else { continue };
        let mut acquire = task::spawn(limiter.acquire(self::ask(|ask| ask.cost = cost)));
        prop_assert!(acquire.poll().is_pending());
        before += u128::from(cost.get());
        waiting.push((start + wait, before, acquire));
    }
    for (foretold, before, acquire) in waiting {
        acquire.await.unwrap();
        let late = Instant::now().saturating_duration_since(foretold);
        // A timer may fire a millisecond late, and what is late at one permit may be so at all that follow; and
        // the head sleeps on for up to 4 ms, to be served together with others.
        prop_assert!(Instant::now() >= foretold && late.as_millis() <= before + 4, "{:?}", late);
    }
    Ok(())
}
