//! Measures an upper and a lower bound for the time of a grant.
//!
//! - Upper bound: the time when the task resumes with its permit. This bound alone is misleading. If the scheduler
//!   resumes the first of two tasks late, the two grants seem closer together than they were.
//! - Lower bound: the start of the poll that woke the task. A limiter of this crate grants permits only while one of
//!   its futures is polled, and then wakes the tasks that got them. Everything runs on one thread, so the grant did not
//!   happen before that poll.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use tokio::time::Instant;

/// The times of a permit's request and grant, in nanoseconds since the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantTime {
    /// The time when the task requested the permit.
    pub(crate) requested: u64,
    /// The earliest possible time of the grant.
    pub(crate) earliest: u64,
    /// The latest possible time of the grant, when the task resumed with its permit.
    pub(crate) granted: u64,
}

#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// The start of the current poll, or `NONE` while no task is polled.
    poll: AtomicU64,
}

const NONE: u64 = u64::MAX;

impl Clock {
    pub(crate) fn new(start: Instant) -> Self {
        Self { start, poll: AtomicU64::new(NONE) }
    }

    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Measures the grants of one task.
pub(crate) struct GrantTimer {
    clock: Arc<Clock>,
    waker: Arc<RecordingWaker>,
}

/// Wakes the task, and records the start of the poll that woke the task.
struct RecordingWaker {
    clock: Arc<Clock>,
    woken_by_poll: AtomicU64,
    task: Waker,
}

impl Wake for RecordingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let poll = self.clock.poll.load(Ordering::Relaxed);
        // A wake while no task is polled comes from the timer, which grants no permit.
        if poll != NONE {
            self.woken_by_poll.store(poll, Ordering::Relaxed);
        }
        self.task.wake_by_ref();
    }
}

impl GrantTimer {
    /// Creates a timer for the current task.
    pub(crate) async fn new(clock: &Arc<Clock>) -> Self {
        let task = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let waker = RecordingWaker { clock: Arc::clone(clock), woken_by_poll: AtomicU64::new(NONE), task };
        Self { clock: Arc::clone(clock), waker: Arc::new(waker) }
    }

    /// Waits for the grant. Returns the grant's times, and whether the first poll was pending.
    pub(crate) async fn measure<T, E>(
        &self,
        grant: impl Future<Output = Result<T, E>>,
    ) -> Result<(GrantTime, bool), E> {
        let mut grant = pin!(grant);
        let waker = Waker::from(Arc::clone(&self.waker));
        let mut first = None;
        poll_fn(|_| {
            let now = self.clock.now();
            let waited = first.is_some();
            let requested = *first.get_or_insert(now);
            // If no poll has woken this task, only the poll that starts now can grant the permit.
            let woken = self.waker.woken_by_poll.swap(NONE, Ordering::Relaxed);
            let earliest = if woken == NONE { now } else { woken.max(requested) };
            self.clock.poll.store(now, Ordering::Relaxed);
            let polled = grant.as_mut().poll(&mut Context::from_waker(&waker));
            self.clock.poll.store(NONE, Ordering::Relaxed);
            polled.map_ok(|_| (GrantTime { requested, earliest, granted: self.clock.now() }, waited))
        })
        .await
    }
}
