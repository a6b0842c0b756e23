//! What the clones of a limiter share, and what they hear that all processes are to know.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::runtime::Handle;

use super::{
    desk::Desk,
    driver::Driver,
    pool::{Bell, Pool},
    question::Decide,
    settings::Plan,
};
use crate::{
    clock::{self, Instant},
    limit::{Feedback, Queue, nanos},
    policy::Quota,
    random::Random,
};

pub(super) struct Shared {
    pub(super) queue: Arc<Queue<Pool>>,
    pub(super) bell: Arc<Bell>,
    /// Whether there is a task that asks.
    pub(super) running: AtomicBool,
    pub(super) store: Box<dyn Decide>,
    pub(super) plan: Plan,
    pub(super) random: Random,
    desk: Mutex<Desk>,
}

impl Shared {
    pub(super) fn new(store: Box<dyn Decide>, quotas: &[Quota], plan: Plan) -> Self {
        let bell = Arc::new(Bell::default());
        let pool = Pool::new(plan.largest, plan.interval, plan.timeout, Arc::clone(&bell));
        Self {
            queue: Arc::new(Queue::of(pool, quotas)),
            bell,
            running: AtomicBool::new(false),
            store,
            plan,
            random: Random::from_entropy(),
            desk: Mutex::new(Desk::new()),
        }
    }

    /// Sees to it that the store is asked where somebody rang for it. Without a runtime the next to come does.
    pub(super) fn call(self: &Arc<Self>) {
        if !self.bell.rung.load(Ordering::SeqCst) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.running.swap(true, Ordering::SeqCst) {
            runtime.spawn(Driver::new(Arc::clone(self)).run());
        }
    }

    /// Tells the others what the service has said: a pause at once, the rest with the next question.
    pub(super) fn observe(self: &Arc<Self>, feedback: &Feedback) {
        self.queue.observe(feedback);
        let (uncounted, now) = (self.queue.uncounted(), self.now());
        let mut desk = self.desk();
        for remaining in feedback.remaining() {
            desk.hear(remaining, uncounted, now);
        }
        if let Some(pause) = feedback.asked_pause() {
            desk.pause(now.saturating_add(nanos(pause)));
            drop(desk);
            self.tell();
        }
    }

    pub(super) fn pause_until(self: &Arc<Self>, until: Instant) {
        self.queue.pause_until(until);
        let wait = until.saturating_duration_since(clock::now());
        let until = self.now().saturating_add(nanos(wait));
        self.desk().pause(until);
        self.tell();
    }

    pub(super) fn resume(self: &Arc<Self>) {
        self.queue.resume();
        self.desk().resume();
        self.tell();
    }

    /// What is said at once, and not with the next question.
    fn tell(self: &Arc<Self>) {
        self.bell.ring(NonZeroU32::MAX);
        self.bell.news.notify_one();
        self.call();
    }

    pub(super) fn now(&self) -> u64 {
        self.queue.now()
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("plan", &self.plan).finish_non_exhaustive()
    }
}
