//! When a grant happened, between two bounds.
//!
//! A task learns of its grant some time after the limiter has given it, when its turn comes. Counting by that
//! moment alone blames the limiter for what the scheduler did: two grants a window apart seem closer when the
//! first was learnt of late. The other bound: a limiter of this crate gives permits only while one of its futures
//! is polled, and then wakes those who got them. All run on one thread, so who is woken during a poll was not
//! granted before that poll began.

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

/// In nanoseconds since the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) asked: u64,
    /// It was not granted before this moment.
    pub(crate) earliest: u64,
    /// The task knew.
    pub(crate) granted: u64,
}

#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// When the poll under way began; `NONE` between polls.
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

/// Stamps the grants of one task.
pub(crate) struct Stamper {
    clock: Arc<Clock>,
    woken: Arc<Woken>,
}

/// Wakes the task, and notes during which poll that was: the start of the last one.
struct Woken {
    clock: Arc<Clock>,
    during: AtomicU64,
    task: Waker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let poll = self.clock.poll.load(Ordering::Relaxed);
        // Outside of a poll it is a timer, which grants nothing.
        if poll != NONE {
            self.during.store(poll, Ordering::Relaxed);
        }
        self.task.wake_by_ref();
    }
}

impl Stamper {
    /// For the task that this is awaited in.
    pub(crate) async fn new(clock: &Arc<Clock>) -> Self {
        let task = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let woken = Woken { clock: Arc::clone(clock), during: AtomicU64::new(NONE), task };
        Self { clock: Arc::clone(clock), woken: Arc::new(woken) }
    }

    /// When this grant happened, and whether it had to be waited for.
    pub(crate) async fn stamp<T, E>(
        &self,
        grant: impl Future<Output = Result<T, E>>,
    ) -> Result<(Stamp, bool), E> {
        let mut grant = pin!(grant);
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut first = None;
        poll_fn(|_| {
            let now = self.clock.now();
            let waited = first.is_some();
            let asked = *first.get_or_insert(now);
            // Who was not woken during a poll has not been granted before this one, its own.
            let woken = self.woken.during.swap(NONE, Ordering::Relaxed);
            let earliest = if woken == NONE { now } else { woken.max(asked) };
            self.clock.poll.store(now, Ordering::Relaxed);
            let polled = grant.as_mut().poll(&mut Context::from_waker(&waker));
            self.clock.poll.store(NONE, Ordering::Relaxed);
            polled.map_ok(|_| (Stamp { asked, earliest, granted: self.clock.now() }, waited))
        })
        .await
    }
}
