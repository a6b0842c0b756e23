//! The task that asks the store: one for a limiter, one question at a time, only while somebody waits or there is
//! something to tell.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time};

use super::{
    pool::{Bell, Grant, Pool},
    question::{Answer, Ask, Fault, Gate, Known, Question},
    share::{Kind, Share},
};
use crate::{
    clock::Instant,
    limit::{Demand, Feedback, Queue, nanos},
    observe::{self, StoreLost},
    policy::{Quota, backoff::ExponentialBackoff},
    random::Random,
};

/// The most permits of one question: how long the script runs grows with them.
const MOST: u64 = 1_000;

/// So many answers in turn that came too late to be used are as good as none.
const MOST_LATE: u32 = 3;

/// Quotas of the service that are told of at once.
const MOST_GATES: usize = 8;

/// What the clones of a limiter share.
pub(super) struct Shared {
    pub(super) queue: Arc<Queue<Pool>>,
    bell: Arc<Bell>,
    running: AtomicBool,
    store: Box<dyn Ask>,
    plan: Plan,
    random: Random,
    desk: Mutex<Desk>,
}

/// What was settled when the limiter was made.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// The most permits taken ahead of who asks for them.
    pub(super) lease: u32,
    pub(super) hold: Duration,
    pub(super) horizon: Duration,
    pub(super) timeout: Duration,
    /// For how long a grant counts.
    pub(super) longest: Duration,
    pub(super) interval: Duration,
    pub(super) largest: u32,
    /// Kept to while the store does not answer; none refuses.
    pub(super) parts: Option<Vec<Quota>>,
    pub(super) backoff: ExponentialBackoff,
}

/// What is known between two questions. Moments are in nanoseconds on the queue's clock.
#[derive(Debug, Default)]
struct Desk {
    known: Option<(Known, u64)>,
    /// Not to be asked again before.
    come_at: u64,
    failures: u32,
    late: u32,
    lost: Option<StoreLost>,
    lease: u32,
    pause_until: u64,
    resume: bool,
    /// By the policy of the service: how many it has left, and until when.
    gates: Vec<(u64, u64, u64)>,
}

enum Next {
    Ask(Question),
    Wait(Instant),
    Over,
}

impl Shared {
    pub(super) fn new(store: Box<dyn Ask>, quotas: &[Quota], plan: Plan) -> Self {
        let bell = Arc::new(Bell::default());
        let pool = Pool::new(plan.largest, plan.interval, plan.timeout, Arc::clone(&bell));
        Self {
            queue: Arc::new(Queue::of(pool, quotas)),
            bell,
            running: AtomicBool::new(false),
            store,
            plan,
            random: Random::from_entropy(),
            desk: Mutex::new(Desk { lease: 1, ..Desk::default() }),
        }
    }

    /// Sees to it that the store is asked where somebody rang for it. Without a runtime the next to come does.
    pub(super) fn call(self: &Arc<Self>) {
        if !self.bell.rung.load(Ordering::Acquire) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.running.swap(true, Ordering::AcqRel) {
            let driver = Driver { shared: Arc::clone(self), over: false };
            runtime.spawn(driver.run());
        }
    }

    /// Tells the others what the service has said: a pause at once, the rest with the next question.
    pub(super) fn observe(self: &Arc<Self>, feedback: &Feedback) {
        self.queue.observe(feedback);
        let (uncounted, now) = (self.queue.uncounted(), self.now());
        let mut desk = self.desk();
        for remaining in feedback.remaining() {
            desk.gates.retain(|(policy, ..)| *policy != remaining.policy());
            if desk.gates.len() < MOST_GATES {
                let left = remaining.left().saturating_sub(uncounted);
                desk.gates.push((remaining.policy(), left, now.saturating_add(nanos(remaining.more_in()))));
            }
        }
        if let Some(pause) = feedback.asked_pause() {
            desk.pause_until = desk.pause_until.max(now.saturating_add(nanos(pause)));
            drop(desk);
            self.tell();
        }
    }

    pub(super) fn pause_until(self: &Arc<Self>, until: Instant) {
        self.queue.pause_until(until);
        let wait = until.saturating_duration_since(crate::clock::now());
        let until = self.now().saturating_add(nanos(wait));
        let mut desk = self.desk();
        desk.pause_until = desk.pause_until.max(until);
        drop(desk);
        self.tell();
    }

    pub(super) fn resume(self: &Arc<Self>) {
        self.queue.resume();
        let mut desk = self.desk();
        (desk.pause_until, desk.resume) = (0, true);
        desk.gates.clear();
        drop(desk);
        self.tell();
    }

    /// What is said at once, and not with the next question.
    fn tell(self: &Arc<Self>) {
        self.bell.ring();
        self.bell.news.notify_one();
        self.call();
    }

    fn now(&self) -> u64 {
        self.queue.look(|_, _, now| now)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Next {
        let mut desk = self.desk();
        let next = self.queue.look(|pool, demand, now| {
            let told = desk.resume || desk.pause_until > now;
            let at = if pool.is_lost() {
                pool.ask_at
            } else if told {
                0
            } else {
                desk.come_at
            };
            let short = demand.head.is_some_and(|head| {
                pool.is_lost() || !pool.will_serve(head, now) || demand.permits > pool.in_hand(now)
            });
            // A share is served without a wait, mostly: whoever takes of it rings when the store is to be asked again.
            let probe = pool.is_lost() && now >= at;
            if !short && !told && !probe {
                return Err(None);
            }
            if now < at {
                let until = demand.last.map_or(at, |last| at.min(last));
                return Err(Some(until.max(now + 1_000_000)));
            }
            let (want, unit) = want(&mut desk, pool, demand, now, self.plan.lease);
            let back = pool.share.as_ref().map(|share| share.used(now, nanos(self.plan.longest)));
            let known = desk.known.map(|(known, at)| (known, Duration::from_nanos(now.saturating_sub(at))));
            let pause = Duration::from_nanos(desk.pause_until.saturating_sub(now));
            let gates = std::mem::take(&mut desk.gates).into_iter().filter(|(_, _, until)| now < *until);
            let gates = gates.map(|(policy, left, until)| Gate {
                policy,
                left,
                lasts: Duration::from_nanos(until - now),
            });
            Ok(Question { want, unit, known, back, pause, resume: desk.resume, gates: gates.collect() })
        });
        match next {
            Ok(question) => Next::Ask(question),
            Err(Some(until)) => Next::Wait(self.queue.instant(until)),
            Err(None) => Next::Over,
        }
    }

    fn learn(&self, question: &Question, sent: u64, answer: &Answer) {
        let (late, now) = self.queue.tend(|pool, now| {
            // The store has decided between `sent` and now: no permit is used before its time, nor later than it
            // counts.
            let hold = sent.saturating_add(nanos(self.plan.hold));
            let grants = answer.grants.iter().map(|(due, permits)| Grant {
                due: now.saturating_add(nanos(*due)),
                until: hold.saturating_add(nanos(*due)),
                permits: *permits,
            });
            (pool.fill(grants, now.saturating_add(nanos(answer.free))), now)
        });
        if !answer.paused.is_zero() {
            self.queue.pause_until(self.queue.instant(now.saturating_add(nanos(answer.paused))));
        }
        let given: u64 = answer.grants.iter().map(|(_, permits)| u64::from(*permits)).sum();
        let lost = {
            let mut desk = self.desk();
            desk.known = Some((answer.known, now));
            let content = given == u64::from(question.want) * u64::from(question.unit);
            desk.come_at = if content { 0 } else { self.come_back(now, answer.come) };
            // What was heard while the question was under way is still to be told.
            if desk.pause_until <= sent.saturating_add(nanos(question.pause)) {
                desk.pause_until = 0;
            }
            desk.resume &= !question.resume;
            desk.late = if late > 0 && late == given { desk.late + 1 } else { 0 };
            desk.failures = 0;
            if desk.late >= MOST_LATE { None } else { desk.lost.take() }
        };
        let took = Duration::from_nanos(now.saturating_sub(sent));
        observe::store_asked(if late > 0 { "late" } else { "answered" }, took);
        if let Some(lost) = lost {
            lost.back();
        }
        if self.desk().late >= MOST_LATE {
            let held = self.plan.hold;
            self.lose(&Fault(format!(
                "its answers take longer than the {held:?} for which permits are held"
            )));
        }
    }

    /// When whoever did not get all that it wants comes back: when there is more, and not in step with the others.
    fn come_back(&self, now: u64, come: Duration) -> u64 {
        let breath = nanos(self.plan.horizon) / 8;
        let jitter = (u128::from(breath) * u128::from(self.random.next())) >> 64;
        now.saturating_add(nanos(come)).saturating_add(breath).saturating_add(jitter as u64)
    }

    /// The store has not answered.
    fn lose(&self, fault: &Fault) {
        let wait = {
            let mut desk = self.desk();
            let wait = self.plan.backoff.delay(desk.failures, self.random.next());
            desk.failures = desk.failures.saturating_add(1);
            (desk.late, desk.come_at) = (0, 0);
            wait
        };
        let state = self.queue.tend(|pool, now| {
            let begin = || self.plan.parts.as_ref().map(|parts| Share::begin(self.plan.kind, parts, now));
            let share = if pool.is_lost() { None } else { begin() };
            pool.lose(share, now.saturating_add(nanos(wait)));
            pool.state()
        });
        // Only the task gets here: nobody comes between.
        let known = self.desk().lost.is_some();
        if !known {
            let lost = StoreLost::begin(fault, state.as_str(), wait);
            self.desk().lost = Some(lost);
        }
    }
}

/// How many blocks of how many permits are asked for.
fn want(desk: &mut Desk, pool: &mut Pool, demand: Demand, now: u64, lease: u32) -> (u32, u32) {
    let Some(head) = demand.head else { return (0, 1) };
    // All the permits of one request come free together.
    if head.get() > 1 && !pool.will_serve(head, now) {
        return (1, head.get());
    }
    // A lease grows while it is used up and shrinks to what was used of it.
    let unused = pool.take_unused();
    desk.lease = if unused > 0 {
        u32::try_from(u64::from(desk.lease).saturating_sub(unused)).unwrap_or(u32::MAX).max(1)
    } else {
        desk.lease.saturating_mul(2).min(lease)
    };
    let missing = demand.permits.max(u64::from(desk.lease)).saturating_sub(pool.in_hand(now));
    (missing.clamp(1, MOST) as u32, 1)
}

/// Whoever runs it is the only one.
struct Driver {
    shared: Arc<Shared>,
    over: bool,
}

impl Driver {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            shared.bell.rung.store(false, Ordering::Release);
            match shared.next() {
                Next::Ask(question) => {
                    let sent = shared.now();
                    let timeout = shared.plan.timeout;
                    match time::timeout(timeout, shared.store.ask(question.clone())).await {
                        Ok(Ok(answer)) => shared.learn(&question, sent, &answer),
                        Ok(Err(fault)) => {
                            observe::store_asked(
                                "failed",
                                Duration::from_nanos(shared.now().saturating_sub(sent)),
                            );
                            shared.lose(&fault);
                        }
                        Err(_) => {
                            observe::store_asked("failed", timeout);
                            shared.lose(&Fault(format!("no answer within {timeout:?}")));
                        }
                    }
                }
                Next::Wait(until) => {
                    // Whoever joins meanwhile is served with the next question; only news does not wait for it.
                    let _ = time::timeout_at(until, shared.bell.news.notified()).await;
                    shared.queue.tend(|_, _| ());
                }
                Next::Over => {
                    shared.running.store(false, Ordering::Release);
                    let again = shared.bell.rung.load(Ordering::Acquire);
                    if !again || shared.running.swap(true, Ordering::AcqRel) {
                        self.over = true;
                        return;
                    }
                }
            }
        }
    }
}

impl Drop for Driver {
    /// A runtime that ends in the middle takes the task along: whoever waits elsewhere begins another.
    fn drop(&mut self) {
        if !self.over {
            self.shared.running.store(false, Ordering::Release);
            self.shared.bell.ring();
            self.shared.queue.tend(|_, _| ());
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("plan", &self.plan).finish_non_exhaustive()
    }
}
