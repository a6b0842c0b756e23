//! Calls that are dropped while they wait.

use std::{
    convert::Infallible,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::TryFutureExt;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{
    runtime::{Builder, Handle},
    sync::Semaphore,
    time::Instant,
};
use tokio_test::{assert_pending, task};
use tower::{ServiceBuilder, ServiceExt, limit::GlobalConcurrencyLimitLayer, service_fn};
use tower_outbound::{
    Quota,
    body::ReplayBody,
    limit::{RateLimitLayer, TokenBucket},
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

use super::{
    URI,
    drained::{Kind, Recorded, RecordedBody},
    support::{millis, secs},
};

/// Where a call can wait.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Point {
    Queue,
    Readiness,
    Call,
    Draining,
    BackOff,
}

const POINTS: [Point; 5] = [Point::Queue, Point::Readiness, Point::Call, Point::Draining, Point::BackOff];

/// A request's body whose owner shows whether it is still held.
struct Owner(#[allow(dead_code, reason = "counted")] Arc<()>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        b"hello"
    }
}

/// Returns a runtime on paused time, and how often its thread was parked: once for each time at which a timer is due, so
/// that a leaked timer is detected.
fn watched() -> (tokio::runtime::Runtime, Arc<AtomicUsize>) {
    let parks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&parks);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(move || {
            counted.fetch_add(1, Relaxed);
        })
        .build()
        .unwrap();
    (runtime, parks)
}

/// Returns how often the thread is parked in an hour.
async fn parks_in_an_hour(parks: &AtomicUsize) -> usize {
    // The timer wheel catches up with the time that `advance` skipped.
    tokio::time::sleep(millis(5)).await;
    let before = parks.load(Relaxed);
    tokio::time::sleep(secs(3_600)).await;
    parks.load(Relaxed) - before
}

/// Returns the same for a runtime of this age that never had a timer.
fn parks_alone(age: Duration) -> usize {
    let (runtime, parks) = watched();
    runtime.block_on(async {
        tokio::time::advance(age).await;
        parks_in_an_hour(&parks).await
    })
}

/// Drops a call that waits at this point, in its first or its second attempt, and asserts that nothing is left. Returns how
/// long that took, and how often the thread is parked afterwards.
async fn dropped_at(point: Point, second: bool, parks: &AtomicUsize) -> (Duration, usize) {
    let start = Instant::now();
    let case = format!("{point:?}, {}", if second { "second attempt" } else { "first attempt" });
    // A limit of one, for the attempt that waits in the queue.
    let quota = Quota::per_minute(100).unwrap().with_burst(if point == Point::Queue { 1 } else { 10 });
    let limiter = TokenBucket::new(quota.unwrap().without_margin());
    if point == Point::Queue && !second {
        limiter.try_acquire().unwrap();
    }
    let room = Arc::new(Semaphore::new(1));
    let (stalled, short) = (Recorded::new(Kind::Stalled), Recorded::new(Kind::Short(1)));
    let calls = Arc::new(AtomicUsize::new(0));
    let inner = {
        let (stalled, short, calls) = (stalled.clone(), short.clone(), Arc::clone(&calls));
        service_fn(move |request: Request<ReplayBody<Full<Bytes>>>| {
            let first = calls.fetch_add(1, Relaxed) == 0;
            let (stalled, short) = (stalled.clone(), short.clone());
            async move {
                let answer = |status, body: RecordedBody| {
                    Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
                };
                // Reads the body, so that it is recorded.
                let _ = http_body_util::BodyExt::collect(request.into_body()).await;
                match point {
                    _ if first && second => answer(503, short.body()),
                    Point::Call => std::future::pending().await,
                    Point::Draining => answer(503, stalled.body()),
                    Point::BackOff => answer(503, short.body()),
                    Point::Queue | Point::Readiness => answer(200, short.body()),
                }
            }
        })
    };
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::total(secs(300)).unwrap())
        .layer(RetryLayer::new().with_max_attempts(9).unwrap())
        .layer(RateLimitLayer::new(limiter.clone()))
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&room)))
        .layer(TimeoutLayer::per_attempt(secs(100)).unwrap())
        .service(inner);

    let owner = Arc::new(());
    let body = Full::new(Bytes::from_owner(Owner(Arc::clone(&owner))));
    let call = service.clone().oneshot(Request::put(URI).body(body).unwrap());
    let mut call = task::spawn(call.map_ok(|response| response.status()));
    let mut taken = None;
    if point == Point::Readiness && !second {
        taken = Some(Arc::clone(&room).try_acquire_owned().unwrap());
    }
    assert_pending!(call.poll(), "{case}");
    if second {
        // The first attempt has ended, and the call is in its backoff.
        while call.is_woken() {
            assert_pending!(call.poll(), "{case}");
        }
        assert_eq!((calls.load(Relaxed), room.available_permits()), (1, 1), "{case}");
        if point == Point::Readiness {
            taken = Some(Arc::clone(&room).try_acquire_owned().unwrap());
        }
        tokio::time::advance(millis(101)).await;
        assert_pending!(call.poll(), "{case}");
    }
    while call.is_woken() {
        assert_pending!(call.poll(), "{case}");
    }

    // The call waits at the point now.
    let snapshot = limiter.snapshot();
    let sent = usize::from(second) + usize::from(!matches!(point, Point::Queue | Point::Readiness));
    assert_eq!(calls.load(Relaxed), sent, "{case}");
    assert_eq!(snapshot.queued, usize::from(point == Point::Queue), "{case}");
    let flying = matches!(point, Point::Readiness | Point::Call);
    assert_eq!(snapshot.in_flight, u64::from(flying), "{case}");
    assert_eq!(room.available_permits(), usize::from(!flying), "{case}");
    let answered = usize::from(second) + usize::from(point == Point::BackOff);
    assert_eq!(short.drops().len(), answered, "{case}");
    assert!(stalled.drops().is_empty(), "{case}");
    assert!(Arc::strong_count(&owner) > 1, "{case}: the body is not recorded");

    drop(call);
    let snapshot = limiter.snapshot();
    assert_eq!((snapshot.queued, snapshot.in_flight), (0, 0), "{case}: a permit is left");
    assert_eq!(Arc::strong_count(&owner), 1, "{case}: the request's body is left");
    assert_eq!(
        stalled.drops().len(),
        usize::from(point == Point::Draining),
        "{case}: the response's body is left"
    );
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "{case}: a task is left");
    drop(taken);
    assert_eq!(room.available_permits(), 1, "{case}: a permit of the concurrency limit is held");
    let elapsed = start.elapsed();
    let parked = parks_in_an_hour(parks).await;
    assert_eq!(calls.load(Relaxed), sent, "{case}");
    (elapsed, parked)
}

#[test]
fn a_call_dropped_at_any_wait_leaves_nothing_behind() {
    for point in POINTS {
        for second in [false, true] {
            let (runtime, parks) = watched();
            let (age, parked) = runtime.block_on(dropped_at(point, second, &parks));
            assert_eq!(parked, parks_alone(age), "{point:?}, {second}: a timer is left");
        }
    }
}

#[test]
fn the_test_detects_a_leaked_timer() {
    let (runtime, parks) = watched();
    let parked = runtime.block_on(async {
        let mut left = pin!(tokio::time::sleep(secs(60)));
        std::future::poll_fn(|cx| {
            assert!(left.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        parks_in_an_hour(&parks).await
    });
    assert!(parked > parks_alone(Duration::ZERO));
}
