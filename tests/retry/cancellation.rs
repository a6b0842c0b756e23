//! Tests that a call releases its resources if the caller drops the call while the call waits.

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
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
    time::Instant,
};
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceBuilder, ServiceExt, limit::GlobalConcurrencyLimitLayer, service_fn};
use tower_outbound::{
    Quota,
    body::ReplayBody,
    limit::{LocalLimiter, RateLimitLayer},
    retry::RetryLayer,
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};

use super::{
    URI,
    recorded_body::{BodyKind, BodyRecorder, RecordedBody},
    support::{Scripted::Status, ScriptedService, get, millis, secs},
};

/// The point in a call at which the test drops the call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum WaitPoint {
    /// The call waits in the queue of the rate limiter.
    Queue,
    /// The call waits until the inner service is ready.
    Readiness,
    /// The call waits for the server's response.
    Response,
    /// The call waits for the end of a failed response's body.
    Drain,
    /// The call waits for the end of the backoff.
    Backoff,
}

const WAIT_POINTS: [WaitPoint; 5] =
    [WaitPoint::Queue, WaitPoint::Readiness, WaitPoint::Response, WaitPoint::Drain, WaitPoint::Backoff];

/// Owns the bytes of a request body. The reference count of the `Arc` shows whether the bytes were freed.
struct Owner(#[allow(dead_code, reason = "the test reads the reference count")] Arc<()>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        b"hello"
    }
}

/// Returns a runtime with a paused clock, and a counter of how often the runtime's thread was parked. With a paused
/// clock, the thread is parked once for each timer that expires, so a leaked timer increases the count.
fn runtime_with_park_counter() -> (Runtime, Arc<AtomicUsize>) {
    let parks = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&parks);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(move || {
            counter.fetch_add(1, Relaxed);
        })
        .build()
        .unwrap();
    (runtime, parks)
}

/// Sleeps for an hour of the paused clock. Returns how often the runtime's thread was parked in that hour.
async fn parks_in_an_hour(parks: &AtomicUsize) -> usize {
    // A short sleep lets tokio's timer wheel process the time that `advance` skipped. The count starts after that
    // sleep.
    tokio::time::sleep(millis(5)).await;
    let before = parks.load(Relaxed);
    tokio::time::sleep(secs(3_600)).await;
    parks.load(Relaxed) - before
}

/// Creates a runtime without timers and advances its clock by `age`. Returns how often the runtime's thread is parked
/// in the following hour.
fn parks_without_timers(age: Duration) -> usize {
    let (runtime, parks) = runtime_with_park_counter();
    runtime.block_on(async {
        tokio::time::advance(age).await;
        parks_in_an_hour(&parks).await
    })
}

/// Drops a call while the call waits at `point`, and asserts that the call's resources are released. Returns the age of
/// the call when it is dropped, and how often the runtime's thread is parked in the following hour.
async fn drop_call_at(point: WaitPoint, second_attempt: bool, parks: &AtomicUsize) -> (Duration, usize) {
    let start = Instant::now();
    let case = format!("{point:?}, {}", if second_attempt { "second attempt" } else { "first attempt" });
    // With a burst of 1, the attempt finds no permit and waits in the queue.
    let quota = Quota::per_minute(100).unwrap().with_burst(if point == WaitPoint::Queue { 1 } else { 10 });
    let limiter = LocalLimiter::token_bucket(quota.unwrap().without_margin());
    if point == WaitPoint::Queue && !second_attempt {
        limiter.try_acquire().unwrap();
    }
    let semaphore = Arc::new(Semaphore::new(1));
    let (stalled_bodies, short_bodies) =
        (BodyRecorder::new(BodyKind::Stalled), BodyRecorder::new(BodyKind::Frames(1)));
    let calls = Arc::new(AtomicUsize::new(0));
    let inner = {
        let (stalled_bodies, short_bodies, calls) =
            (stalled_bodies.clone(), short_bodies.clone(), Arc::clone(&calls));
        service_fn(move |request: Request<ReplayBody<Full<Bytes>>>| {
            let first = calls.fetch_add(1, Relaxed) == 0;
            let (stalled_bodies, short_bodies) = (stalled_bodies.clone(), short_bodies.clone());
            async move {
                let respond = |status, body: RecordedBody| {
                    Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
                };
                // The retry layer records a request body while the inner service reads the body.
                let _ = http_body_util::BodyExt::collect(request.into_body()).await;
                match point {
                    _ if first && second_attempt => respond(503, short_bodies.body()),
                    WaitPoint::Response => std::future::pending().await,
                    WaitPoint::Drain => respond(503, stalled_bodies.body()),
                    WaitPoint::Backoff => respond(503, short_bodies.body()),
                    WaitPoint::Queue | WaitPoint::Readiness => respond(200, short_bodies.body()),
                }
            }
        })
    };
    let service = ServiceBuilder::new()
        .layer(TotalTimeoutLayer::new(secs(300)).unwrap())
        .layer(RetryLayer::new().with_max_attempts(9).unwrap())
        .layer(RateLimitLayer::new(limiter.clone()))
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&semaphore)))
        .layer(AttemptTimeoutLayer::new(secs(100)).unwrap())
        .service(inner);

    let owner = Arc::new(());
    let body = Full::new(Bytes::from_owner(Owner(Arc::clone(&owner))));
    let call = service.clone().oneshot(Request::put(URI).body(body).unwrap());
    let mut call = task::spawn(call.map_ok(|response| response.status()));
    let mut held_permit = None;
    if point == WaitPoint::Readiness && !second_attempt {
        held_permit = Some(Arc::clone(&semaphore).try_acquire_owned().unwrap());
    }
    assert_pending!(call.poll(), "{case}");
    if second_attempt {
        // This loop polls the call until the call waits for the end of its backoff.
        while call.is_woken() {
            assert_pending!(call.poll(), "{case}");
        }
        assert_eq!((calls.load(Relaxed), semaphore.available_permits()), (1, 1), "{case}");
        if point == WaitPoint::Readiness {
            held_permit = Some(Arc::clone(&semaphore).try_acquire_owned().unwrap());
        }
        tokio::time::advance(millis(101)).await;
        assert_pending!(call.poll(), "{case}");
    }
    while call.is_woken() {
        assert_pending!(call.poll(), "{case}");
    }

    // The call now waits at `point`.
    let snapshot = limiter.snapshot();
    let sent =
        usize::from(second_attempt) + usize::from(!matches!(point, WaitPoint::Queue | WaitPoint::Readiness));
    assert_eq!(calls.load(Relaxed), sent, "{case}");
    assert_eq!(snapshot.queued, usize::from(point == WaitPoint::Queue), "{case}");
    let in_flight = matches!(point, WaitPoint::Readiness | WaitPoint::Response);
    assert_eq!(snapshot.in_flight, u64::from(in_flight), "{case}");
    assert_eq!(semaphore.available_permits(), usize::from(!in_flight), "{case}");
    let responses = usize::from(second_attempt) + usize::from(point == WaitPoint::Backoff);
    assert_eq!(short_bodies.drop_times().len(), responses, "{case}");
    assert!(stalled_bodies.drop_times().is_empty(), "{case}");
    assert!(Arc::strong_count(&owner) > 1, "{case}: the retry layer did not record the request's body");

    drop(call);
    let snapshot = limiter.snapshot();
    assert_eq!(
        (snapshot.queued, snapshot.in_flight),
        (0, 0),
        "{case}: the call is still queued or in flight"
    );
    assert_eq!(Arc::strong_count(&owner), 1, "{case}: the request's body is not freed");
    assert_eq!(
        stalled_bodies.drop_times().len(),
        usize::from(point == WaitPoint::Drain),
        "{case}: the response's body is not dropped"
    );
    // The task that checks the queue for absent waiters ends within 200 ms.
    tokio::time::sleep(millis(210)).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "{case}: a task still runs after the drop");
    drop(held_permit);
    assert_eq!(semaphore.available_permits(), 1, "{case}: the call kept its concurrency permit");
    let elapsed = start.elapsed();
    let parked = parks_in_an_hour(parks).await;
    assert_eq!(calls.load(Relaxed), sent, "{case}");
    (elapsed, parked)
}

#[test]
fn dropped_call_releases_all_resources_whatever_the_call_waits_for() {
    for point in WAIT_POINTS {
        for second_attempt in [false, true] {
            let (runtime, parks) = runtime_with_park_counter();
            let (age, parked) = runtime.block_on(drop_call_at(point, second_attempt, &parks));
            assert_eq!(
                parked,
                parks_without_timers(age),
                "{point:?}, second attempt: {second_attempt}: a timer was leaked"
            );
        }
    }
}

#[test]
fn park_counter_detects_a_leaked_timer() {
    let (runtime, parks) = runtime_with_park_counter();
    let parked = runtime.block_on(async {
        let mut leaked = pin!(tokio::time::sleep(secs(60)));
        std::future::poll_fn(|cx| {
            assert!(leaked.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        parks_in_an_hour(&parks).await
    });
    assert!(parked > parks_without_timers(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn call_dropped_in_its_backoff_releases_its_service_and_leaves_no_task() {
    let inner = ScriptedService::new([Status(503)]);
    let mut call = task::spawn(RetryLayer::new().layer(inner.clone()).oneshot(get(URI)));
    assert_pending!(call.poll());
    assert_eq!(inner.calls(), 1, "only the first attempt should have called the service");
    assert!(inner.instances() > 1);
    drop(call);
    assert_eq!(inner.instances(), 1);
    assert_eq!(
        tokio::runtime::Handle::current().metrics().num_alive_tasks(),
        0,
        "the retry layer should not spawn a task"
    );
    tokio::time::sleep(secs(60)).await;
    assert_eq!(inner.calls(), 1);
}
