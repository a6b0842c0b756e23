//! What is lock-free in the limiter, under every interleaving of two threads.

use std::{num::NonZeroU32, sync::Arc, task::Waker, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode};
use loom::thread;

use super::{
    Feedback, PermitRequest,
    gcra::Gcra,
    queue::{Joined, Queue, Standing},
    seat::Seat,
    ticker::Ticker,
};
use crate::policy::Quota;

fn quota(burst: u32) -> Quota {
    let quota = Quota::new(burst + 1, Duration::from_secs(3600)).and_then(|quota| quota.with_burst(burst));
    quota.unwrap()
}

fn queue(burst: u32) -> Arc<Queue<Gcra>> {
    Arc::new(Queue::new(&[quota(burst)], Ticker::still()))
}

fn take(queue: &Queue<Gcra>) -> usize {
    usize::from(queue.try_take(&PermitRequest::default()).is_ok())
}

fn drain(queue: &Queue<Gcra>) -> usize {
    std::iter::from_fn(|| (take(queue) == 1).then_some(())).count()
}

#[test]
fn two_threads_never_get_more_than_there_is() {
    loom::model(|| {
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
fn a_grant_during_a_change_of_the_quota_is_counted_under_the_new_one() {
    loom::model(|| {
        let queue = queue(2);
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || take(&other));
        queue.change(&[quota(3)]);
        let granted = thread.join().unwrap();
        assert_eq!(granted, 1);
        assert_eq!(drain(&queue), 1, "no more than before, less the one that is spent");
    });
}

#[test]
fn a_grant_while_the_server_is_heard_counts_against_what_it_has_left() {
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", HeaderValue::from_static("\"q\";r=1;t=60"));
    let heard = Feedback::read(StatusCode::OK, &headers, || std::time::UNIX_EPOCH).unwrap();
    loom::model(move || {
        let queue = queue(4);
        // The request whose answer is heard, which the server has counted.
        assert_eq!(take(&queue), 1);
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || take(&other));
        queue.release(NonZeroU32::MIN);
        queue.observe(&heard);
        let granted = thread.join().unwrap();
        assert!(granted + drain(&queue) <= 1, "the server has one left");
    });
}

/// Two who wait for a pause to end that has just been lifted.
fn two_waiting() -> (Arc<Queue<Gcra>>, [(u64, Arc<Seat>); 2]) {
    let queue = queue(2);
    queue.observe(&Feedback::pause(Duration::from_secs(1)));
    let seats = [(), ()].map(|()| match queue.join(&PermitRequest::default(), Waker::noop()) {
        Ok(Joined::Seated { place, seat }) => (place, seat),
        _ => panic!("went through a pause"),
    });
    queue.resume();
    (queue, seats)
}

fn visit(queue: &Queue<Gcra>, (place, seat): &(u64, Arc<Seat>)) -> usize {
    usize::from(matches!(queue.visit(*place, seat, NonZeroU32::MIN, Waker::noop()), Standing::Granted))
}

#[test]
fn two_who_are_called_go_once_each_and_leave_the_way_open() {
    loom::model(|| {
        let (queue, [first, second]) = two_waiting();
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || visit(&other, &first));
        // Before the head has served the line, it has to come again.
        let early = visit(&queue, &second);
        assert_eq!(thread.join().unwrap(), 1);
        let late = if early == 0 { visit(&queue, &second) } else { 0 };
        assert_eq!((early + late, queue.snapshot().granted), (1, 2));
        assert!(queue.is_open(), "newcomers need no lock");
    });
}

#[test]
fn who_leaves_while_it_is_called_loses_its_own_permit_at_the_most() {
    loom::model(|| {
        let (queue, [first, (place, seat)]) = two_waiting();
        let other = Arc::clone(&queue);
        let thread = thread::spawn(move || visit(&other, &first));
        queue.leave(place, &seat, NonZeroU32::MIN);
        assert_eq!(thread.join().unwrap(), 1);
        let (granted, in_flight) = (queue.snapshot().granted, queue.snapshot().in_flight);
        assert!(granted <= 2 && in_flight == 1, "{granted} granted, {in_flight} in flight");
        assert!(queue.is_open(), "newcomers need no lock");
    });
}
