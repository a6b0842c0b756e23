//! What the clones of a limiter share, and what is known between two questions: what to ask next, and what an answer, or
//! none, means for those who wait.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time};

use super::{
    driver::Driver,
    pool::{Bell, Free, Grant, Pool},
    question::{Answer, Ask, Fault, Gate, Known, MOST, Question},
    settings::Plan,
    share::Share,
};
use crate::{
    clock::{self, Instant},
    limit::{Demand, Feedback, Queue, nanos},
    observe::{self, StoreLost},
    policy::Quota,
    random::Random,
};

/// How often those who wait are looked after while a question is under way: what a deadline may be missed by.
const GLANCE: Duration = Duration::from_millis(10);

/// What the timers tick in: 1 ms, in nanoseconds.
const TICK: u64 = 1_000_000;

/// So many answers in turn that came too late to be used are as good as none.
const MOST_LATE: u32 = 3;

/// Quotas of the service that are told of at once.
const MOST_GATES: usize = 8;

/// What the clones of a limiter share.
pub(super) struct Shared {
    pub(super) queue: Arc<Queue<Pool>>,
    pub(super) bell: Arc<Bell>,
    /// Whether there is a task that asks.
    pub(super) running: AtomicBool,
    store: Box<dyn Ask>,
    plan: Plan,
    random: Random,
    desk: Mutex<Desk>,
}

/// What is known between two questions. Moments are in nanoseconds on the queue's clock.
#[derive(Debug, Default)]
struct Desk {
    known: Option<(Known, u64)>,
    /// Not to be asked again before.
    come_at: u64,
    /// For so many together. Fewer may be there before.
    come_unit: u32,
    failures: u32,
    late: u32,
    lost: Option<StoreLost>,
    lease: u32,
    pause_until: u64,
    resume: bool,
    /// By the policy of the service: how many it has left, and until when.
    gates: Vec<(u64, u64, u64)>,
}

pub(super) enum Next {
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
        let wait = until.saturating_duration_since(clock::now());
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
        self.bell.ring(NonZeroU32::MAX);
        self.bell.news.notify_one();
        self.call();
    }

    pub(super) fn now(&self) -> u64 {
        self.queue.now()
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next(&self) -> Next {
        let mut desk = self.desk();
        let next = self.queue.look(|pool, demand, now| {
            let told = desk.resume || desk.pause_until > now;
            let smaller = demand.head.is_some_and(|head| head.get() < desk.come_unit);
            let at = if pool.is_lost() {
                pool.ask_at
            } else if told || smaller {
                0
            } else {
                desk.come_at
            };
            let short = demand.head.is_some_and(|head| {
                pool.is_lost() || !pool.will_serve(head, now) || demand.permits > pool.in_hand(now)
            });
            // A share is served without a wait, mostly: whoever takes of it rings when the store is to be asked again.
            let probe = pool.is_lost() && now >= at;
            // What is to be told to a store that does not answer is told when somebody waits for it.
            let idle = pool.is_lost() && demand.head.is_none() && now < at;
            if idle || !short && !told && !probe {
                return Err(None);
            }
            if now < at {
                self.bell.listening.store(desk.come_unit, Ordering::SeqCst);
                let until = demand.last.map_or(at, |last| at.min(last));
                return Err(Some(until.max(now + TICK)));
            }
            let (want, unit) = want(&mut desk, pool, demand, now, self.plan.lease);
            let back = pool.share.as_ref().map(|share| share.used(now, nanos(self.plan.longest)));
            let known = desk.known.map(|(known, at)| (known, Duration::from_nanos(now.saturating_sub(at))));
            let pause = Duration::from_nanos(desk.pause_until.saturating_sub(now));
            desk.gates.retain(|(_, _, until)| now < *until);
            let gate = |&(policy, left, until): &(u64, u64, u64)| Gate {
                policy,
                left,
                lasts: Duration::from_nanos(until - now),
            };
            let gates = desk.gates.iter().map(gate);
            Ok(Question { want, unit, known, back, pause, resume: desk.resume, gates: gates.collect() })
        });
        match next {
            Ok(question) => Next::Ask(question),
            Err(Some(until)) => Next::Wait(self.queue.instant(until)),
            Err(None) => Next::Over,
        }
    }

    /// Within its time. Whoever can't wait any longer meanwhile is told so.
    pub(super) async fn ask(&self, question: Question) -> Result<Answer, Fault> {
        let timeout = self.plan.timeout;
        let end = clock::after(clock::now(), timeout);
        let mut answer = self.store.ask(question);
        loop {
            let until = clock::after(clock::now(), GLANCE).min(end);
            match time::timeout_at(until, &mut answer).await {
                Ok(outcome) => return outcome,
                Err(_) if until == end => return Err(Fault(format!("no answer within {timeout:?}"))),
                Err(_) => self.queue.tend(|_, _| ()),
            }
        }
    }

    pub(super) fn learn(&self, question: &Question, sent: u64, answer: &Answer) {
        let given: u64 = answer.grants.iter().map(|(_, permits)| u64::from(*permits)).sum();
        let content = given == u64::from(question.want) * u64::from(question.unit);
        let (late, now) = self.queue.tend(|pool, now| {
            if let (Some(share), Some(told)) = (&mut pool.share, question.back) {
                share.told(told);
            }
            // The store has decided between `sent` and now: no permit is used before its time, nor later than it
            // counts. An answer that took as long as permits are held brings none: a share is kept to until one is in
            // time.
            let until = sent.saturating_add(nanos(self.plan.hold));
            let late = question.want > 0 && now >= until;
            if late && pool.share.is_some() {
                return (late, now);
            }
            let grants = answer.grants.iter().filter(|_| !late).map(|(due, permits)| Grant {
                due: now.saturating_add(nanos(*due)),
                until: until.saturating_add(nanos(*due)),
                permits: *permits,
            });
            pool.fill(grants, self.free(question, answer, content, now));
            (late, now)
        });
        if !answer.paused.is_zero() {
            self.queue.pause_until(self.queue.instant(now.saturating_add(nanos(answer.paused))));
        }
        let too_late = {
            let mut desk = self.desk();
            desk.known = Some((answer.known, now));
            (desk.come_at, desk.come_unit) =
                if content { (0, 0) } else { (self.come_back(now, answer.come), question.unit) };
            // What was heard while the question was under way is still to be told.
            if desk.pause_until <= sent.saturating_add(nanos(question.pause)) {
                desk.pause_until = 0;
            }
            desk.resume &= !question.resume;
            desk.gates.retain(|(policy, left, _)| {
                !question.gates.iter().any(|told| told.policy == *policy && told.left == *left)
            });
            desk.late = if late { desk.late + 1 } else { 0 };
            desk.late >= MOST_LATE || late && desk.lost.is_some()
        };
        let took = Duration::from_nanos(now.saturating_sub(sent));
        observe::store_asked(if late { "late" } else { "answered" }, took);
        if too_late {
            let held = self.plan.hold;
            self.lose(&Fault(format!(
                "its answers take longer than the {held:?} for which permits are held"
            )));
            return;
        }
        let lost = {
            let mut desk = self.desk();
            desk.failures = 0;
            desk.lost.take()
        };
        if let Some(lost) = lost {
            lost.back();
        }
    }

    /// What is known of the permits that were not given, of which as many may be free together as have refilled by then;
    /// and whoever got all that it asked for has not seen how many more there are.
    fn free(&self, question: &Question, answer: &Answer, content: bool, now: u64) -> Free {
        let refilled = nanos(answer.free).checked_div(nanos(self.plan.interval));
        let refilled = refilled.and_then(|refilled| u32::try_from(refilled).ok()).filter(|_| !content);
        let together = refilled.map_or(u32::MAX, |refilled| refilled.saturating_add(question.unit));
        let at = now.saturating_add(nanos(answer.free));
        Free { at, unit: question.unit, together: together.min(self.plan.largest) }
    }

    /// When whoever did not get all that it wants comes back: when there is more, and not in step with the others.
    fn come_back(&self, now: u64, come: Duration) -> u64 {
        let breath = nanos(self.plan.horizon) / 8;
        let jitter = (u128::from(breath) * u128::from(self.random.next())) >> 64;
        now.saturating_add(nanos(come)).saturating_add(breath).saturating_add(jitter as u64)
    }

    /// The store has not answered.
    pub(super) fn lose(&self, fault: &Fault) {
        let wait = {
            let mut desk = self.desk();
            let wait = self.plan.backoff.delay(desk.failures, self.random.next());
            desk.failures = desk.failures.saturating_add(1);
            (desk.late, desk.come_at) = (0, 0);
            wait
        };
        let state = self.queue.tend(|pool, now| {
            // The others may hold permits of the store's for as long.
            let spent = now.saturating_add(nanos(self.plan.horizon)).saturating_add(nanos(self.plan.hold));
            let share = || self.plan.parts.as_ref().map(|parts| Share::begin(self.plan.kind, parts, spent));
            let share_until = now.saturating_add(nanos(self.plan.holdoff));
            pool.lose(share, now.saturating_add(nanos(wait)), share_until);
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
    // Whether it answers, and in time, is seen by one as well.
    if pool.is_lost() {
        return (1, head.get());
    }
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
    (missing.clamp(1, MOST.into()) as u32, 1)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("plan", &self.plan).finish_non_exhaustive()
    }
}
