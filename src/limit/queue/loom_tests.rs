//! Tests the lock-free code of the queue under every interleaving of two threads.

use std::{
    num::NonZeroU32,
    sync::{Arc, PoisonError},
    task::Waker,
    time::Duration,
};

use http::{HeaderMap, HeaderValue, StatusCode};
use loom::thread;

use super::{
    Queue,
    any::{AnyQueue, Joined, Standing},
    clock::Clock,
    waiter::{State, Waiter, latest_of},
};
use crate::{
    limit::{
        algorithm::Algorithm,
        algorithm::token_bucket::Buckets,
        permit::{Permit, PermitIssuer, ResponseInfo},
        permit_request::PermitRequest,
    },
    policy::Quota,
};

/// Runs a loom test on a clock that never advances, so that every run is the same.
fn model(run: impl Fn() + Send + Sync + 'static) {
    // The threads of all tests share the slots, so concurrent tests would make a run depend on other tests.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.unwrap();
    let _entered = runtime.enter();
    loom::model(run);
}

fn quota(burst: u32) -> Quota {
    let quota = Quota::new(burst + 1, Duration::from_secs(3600)).and_then(|quota| quota.with_burst(burst));
    quota.unwrap()
}

fn queue(burst: u32) -> Arc<Queue<Buckets>> {
    Arc::new(Queue::new(&[quota(burst)], Clock::tokio()))
}

fn take(queue: &Queue<Buckets>) -> usize {
    usize::from(queue.try_take(NonZeroU32::MIN).is_ok())
}

fn drain(queue: &Queue<Buckets>) -> usize {
    std::iter::from_fn(|| (take(queue) == 1).then_some(())).count()
}

#[test]
fn two_threads_never_take_more_than_the_available_permits() {
    model(|| {
        let queue = queue(2);
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || take(&other) + take(&other));
        let own = take(&queue);
        let granted = own + thread.join().unwrap();
        assert_eq!(granted + drain(&queue), 2);
        assert_eq!(queue.snapshot().granted, 2);
    });
}

#[test]
fn grant_during_a_change_of_quotas_counts_under_the_new_quotas() {
    model(|| {
        let queue = queue(2);
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || take(&other));
        queue.change(&[quota(3)]);
        let granted = thread.join().unwrap();
        assert_eq!(granted, 1);
        assert_eq!(drain(&queue), 1, "as many permits as before, except for the spent one");
    });
}

#[test]
fn grant_during_a_response_counts_against_the_reported_remaining_permits() {
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", HeaderValue::from_static("\"q\";r=1;t=60"));
    model(move || {
        let queue = queue(4);
        queue.obey_remaining();
        // Takes a permit for the request whose response arrives below. The server has counted this request.
        assert_eq!(take(&queue), 1);
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || take(&other));
        let permit = Permit::new(NonZeroU32::MIN);
        queue.completed(&permit, &ResponseInfo::new(StatusCode::OK, &headers));
        let granted = thread.join().unwrap();
        assert!(granted + drain(&queue) <= 1, "one permit remains at the server");
    });
}

#[test]
fn thread_that_closes_the_fast_path_counts_every_earlier_grant_as_in_flight() {
    model(|| {
        let queue = queue(2);
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || take(&other) + take(&other));
        let (in_flight, available) = queue
            .locked(|list, _| (queue.fast.in_flight(), list.algorithm.available(queue.fast.clock().now())));
        assert!(in_flight + u64::from(available) >= 2, "{in_flight} in flight, {available} available");
        assert_eq!(thread.join().unwrap(), 2);
        assert_eq!((queue.fast.granted(), queue.fast.in_flight()), (2, 2));
    });
}

#[test]
fn granted_permits_are_either_collected_or_expire() {
    model(|| {
        let waiter = Arc::new(Waiter::new(
            1,
            (1, NonZeroU32::MIN),
            latest_of(&PermitRequest::new(), 0, &Clock::tokio()),
        ));
        waiter.set(State::Granted(7));
        let other = Arc::clone(&waiter);
        let thread = thread::spawn(move || other.collect(7));
        let is_expired = waiter.expire(7);
        let is_collected = thread.join().unwrap();
        assert!(is_expired != is_collected);
    });
}

/// Returns two waiters that were queued during a pause that has just been lifted.
fn two_waiting() -> (Arc<Queue<Buckets>>, [Arc<Waiter>; 2]) {
    let queue = queue(2);
    queue.pause_until(crate::clock::now() + Duration::from_secs(1));
    let waiters = [(), ()].map(|()| match queue.join(&PermitRequest::new(), Some(Waker::noop())) {
        Ok(Joined::Queued { waiter, .. }) => waiter,
        _ => panic!("granted during a pause"),
    });
    queue.resume();
    (queue, waiters)
}

fn visit(queue: &Queue<Buckets>, waiter: &Arc<Waiter>) -> usize {
    usize::from(matches!(queue.visit(waiter, Waker::noop()), Ok(Standing::Granted(_))))
}

#[test]
fn two_woken_waiters_get_one_permit_each_and_the_fast_path_reopens() {
    model(|| {
        let (queue, [first, second]) = two_waiting();
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || visit(&other, &first));
        // The second waiter gets no permit if it is polled before the first waiter, because the first grants the
        // permits of both.
        let early = visit(&queue, &second);
        assert_eq!(thread.join().unwrap(), 1);
        let late = if early == 0 { visit(&queue, &second) } else { 0 };
        assert_eq!((early + late, queue.snapshot().granted), (1, 2));
        assert!(queue.arrival.close().is_some(), "new requests need no lock");
    });
}

#[test]
fn dropped_waiter_wastes_at_most_its_own_permit() {
    model(|| {
        let (queue, [first, second]) = two_waiting();
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || visit(&other, &first));
        queue.leave(&second);
        assert_eq!(thread.join().unwrap(), 1);
        let (granted, in_flight) = (queue.snapshot().granted, queue.snapshot().in_flight);
        assert!(granted <= 2 && in_flight == 1, "{granted} granted, {in_flight} in flight");
        assert!(queue.arrival.close().is_some(), "new requests need no lock");
    });
}
