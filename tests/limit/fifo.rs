//! Tests of the FIFO queue: the order of waiters, wake-ups, and waiters that are dropped or no longer polled.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use proptest::prelude::*;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower_outbound::limit::{Limiter, PermitRequest};

use crate::{bucket, costing, millis, refilling, support::cases::cases};

#[tokio::test(start_paused = true)]
async fn new_request_does_not_overtake_queued_waiters() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut waiting = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(waiting.poll());
    // The refilled permit belongs to the queued waiter, not to a new request.
    tokio::time::advance(Duration::from_millis(1_500)).await;
    let mut newcomer = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(newcomer.poll());
    assert!(
        waiting.is_woken(),
        "the new request grants the permit to the first waiter and wakes that waiter"
    );
    assert_ready_ok!(waiting.poll());
}

#[tokio::test(start_paused = true)]
async fn cheap_requests_do_not_overtake_a_costly_first_waiter() {
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
async fn unpolled_acquire_future_is_not_queued_and_spends_no_permits() {
    let bucket = bucket(11, 10, 1);
    let unpolled = bucket.acquire_with(&PermitRequest::new());
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    drop(unpolled);
    assert_eq!((bucket.snapshot().queued, bucket.snapshot().granted), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn second_waiter_gets_its_permit_on_time_after_first_waiter_is_dropped() {
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

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The waiters whose tasks were woken, in the order of the wake-ups.
#[derive(Default)]
struct Woken(Mutex<VecDeque<usize>>);

/// A waker of one waiter.
struct WakerOf(usize, Arc<Woken>);

impl Wake for WakerOf {
    fn wake(self: Arc<Self>) {
        self.1.0.lock().unwrap().push_back(self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn each_grant_wakes_at_most_two_waiters_whatever_the_queue_length() {
    const WAITERS: usize = 5_000;
    let bucket = bucket(1_100, 10, 100);
    for _ in 0..100 {
        bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    }
    let woken = Arc::new(Woken::default());
    let mut waiting: Vec<Option<Pin<Box<_>>>> =
        (0..WAITERS).map(|_| Some(Box::pin(bucket.acquire_with(&PermitRequest::new())))).collect();
    let mut poll = |number: usize| {
        let Some(waiter) = &mut waiting[number] else { return 0 };
        let waker = Waker::from(Arc::new(WakerOf(number, Arc::clone(&woken))));
        let is_granted = waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if is_granted {
            waiting[number] = None;
        }
        usize::from(is_granted)
    };
    assert_eq!((0..WAITERS).map(&mut poll).sum::<usize>(), 0);
    let (mut granted, mut wakes) = (0, 0);
    while granted < WAITERS {
        let next = woken.0.lock().unwrap().pop_front();
        match next {
            Some(number) => {
                // Counts only the wake-ups during a poll, which come from the queue. A waiter's own timer wakes it
                // between the polls.
                let before = woken.0.lock().unwrap().len();
                granted += poll(number);
                wakes += woken.0.lock().unwrap().len() - before;
            }
            None => tokio::time::advance(Duration::from_millis(10)).await,
        }
    }
    assert!(wakes <= 2 * WAITERS, "{wakes} wake-ups for {WAITERS} grants, expected at most two per grant");
}

#[tokio::test(start_paused = true)]
async fn queued_future_wakes_only_the_task_that_polled_it_last() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut head = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(head.poll());
    let mut second = Box::pin(bucket.acquire_with(&PermitRequest::new()));
    let (old, new) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
    assert!(second.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&old)))).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&new)))).is_pending());
    drop(head);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!((old.0.load(Ordering::Relaxed), new.0.load(Ordering::Relaxed)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn new_request_gets_its_permit_after_all_woken_waiters() {
    let bucket = refilling(1, 10);
    while bucket.try_acquire().is_ok() {}
    let mut waiting = [(); 2].map(|()| task::spawn(bucket.acquire_with(&PermitRequest::new())));
    for waiter in &mut waiting {
        assert_pending!(waiter.poll());
    }
    tokio::time::advance(millis(60_000)).await;
    for waiter in &mut waiting {
        assert_ready_ok!(waiter.poll());
    }
    assert_ready_ok!(task::spawn(bucket.acquire_with(&PermitRequest::new())).poll());
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Creates an acquire future. The future joins the queue at its first poll.
    Join,
    /// Polls one of the futures. The index of the future is the number modulo the count of futures.
    Poll(usize),
    /// Polls every future whose task was woken.
    PollWoken,
    /// Drops one of the futures. The index of the future is the number modulo the count of futures.
    Drop(usize),
    /// Sleeps for the given number of milliseconds.
    Sleep(u64),
    /// Pauses the limiter for the given number of milliseconds.
    Pause(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Join),
        2 => any::<usize>().prop_map(Step::Poll),
        3 => Just(Step::PollWoken),
        2 => any::<usize>().prop_map(Step::Drop),
        3 => (0..2_500_u64).prop_map(Step::Sleep),
        1 => (0..3_000_u64).prop_map(Step::Pause),
    ];
    prop::collection::vec(step, 1..80)
}

/// Applies `steps` to acquire futures in all states: unpolled, queued, first in the queue, woken, or waiting for the
/// end of a pause.
async fn run_steps(steps: &[Step]) -> Result<(), TestCaseError> {
    let bucket = refilling(1, 3);
    let mut waiting: Vec<task::Spawn<_>> = Vec::new();
    let mut granted = Vec::new();
    for step in steps {
        let index = |at: &usize| (!waiting.is_empty()).then(|| at % waiting.len());
        match step {
            Step::Join => waiting.push(task::spawn(bucket.acquire_with(&PermitRequest::new()))),
            Step::Poll(at) => {
                let Some(at) = index(at) else { continue };
                if let Poll::Ready(permit) = waiting[at].poll() {
                    granted.push(permit.unwrap());
                    drop(waiting.remove(at));
                }
            }
            Step::PollWoken => {
                // The loop repeats, because polling one waiter may wake another waiter.
                while let Some(at) = waiting.iter().position(task::Spawn::is_woken) {
                    if let Poll::Ready(permit) = waiting[at].poll() {
                        granted.push(permit.unwrap());
                        drop(waiting.remove(at));
                    }
                }
                let snapshot = bucket.snapshot();
                prop_assert!(
                    snapshot.queued == 0 || snapshot.available == 0,
                    "permits are available although waiters are queued: {:?}",
                    snapshot
                );
            }
            Step::Drop(at) => {
                if let Some(at) = index(at) {
                    let (before, woken) = (bucket.snapshot(), waiting[at].is_woken());
                    drop(waiting.remove(at));
                    let after = bucket.snapshot();
                    prop_assert_eq!(after.granted, before.granted, "a dropped waiter must spend no permits");
                    let lost = before.in_flight - after.in_flight;
                    prop_assert!(lost <= u64::from(woken), "dropping one waiter lost {} permits", lost);
                }
            }
            // A sleep lets the runtime fire timers, unlike `tokio::time::advance`.
            Step::Sleep(time) => tokio::time::sleep(millis(*time)).await,
            Step::Pause(time) => bucket.pause_until(Instant::now() + millis(*time)),
        }
    }
    // All remaining waiters eventually get their permits. Afterwards, exactly the granted permits are in flight.
    bucket.resume();
    for permit in futures_util::future::join_all(waiting).await {
        granted.push(permit.unwrap());
    }
    prop_assert_eq!(bucket.snapshot().in_flight, granted.len() as u64);
    tokio::time::sleep(millis(4_000)).await;
    prop_assert_eq!(bucket.snapshot().available, 3);
    prop_assert_eq!(bucket.snapshot().queued, 0);
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn dropping_a_waiter_loses_at_most_one_permit(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(run_steps(&steps))?;
    }
}
