//! A question to the store: when it is asked, what for, and what an answer, or none, means for those who wait.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time;

use super::{
    desk::Desk,
    pool::{Free, Grant, Pool},
    question::{Answer, Fault, MOST, Question},
    share::Share,
    shared::Shared,
};
use crate::{
    clock::{self, Instant},
    limit::{Demand, nanos},
    telemetry::{self, StoreLost},
};

/// How often those who wait are looked after while a question is under way: what a deadline may be missed by.
const GLANCE: Duration = Duration::from_millis(10);

/// What the timers tick in: 1 ms, in nanoseconds.
const TICK: u64 = 1_000_000;

/// So many answers in turn that came too late to be used are as good as none.
const MOST_LATE: u32 = 3;

pub(super) enum Next {
    PermitRequest(Question),
    Wait(Instant),
    Over,
}

impl Shared {
    pub(super) fn next(&self) -> Next {
        let mut desk = self.desk();
        self.queue.look(|pool, demand, now| {
            let news = desk.has_news(now);
            let smaller = demand.head.is_some_and(|head| head.get() < desk.come_unit);
            let at = if pool.is_lost() {
                pool.ask_at
            } else if news || smaller {
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
            if idle || !short && !news && !probe {
                return Next::Over;
            }
            if now < at {
                self.bell.listening.store(desk.come_unit, Ordering::SeqCst);
                let until = demand.last.map_or(at, |last| at.min(last));
                return Next::Wait(self.queue.instant(until.max(now + TICK)));
            }
            let (want, unit) = want(&mut desk, pool, demand, now, self.plan.lease);
            let back = pool.share.as_ref().map(|share| share.used(now, nanos(self.plan.longest)));
            Next::PermitRequest(desk.question(want, unit, back, now))
        })
    }

    /// Asks the store, and goes by what it says, or by its silence.
    pub(super) async fn ask(&self, question: Question) {
        let sent = self.now();
        let (outcome, fault) = match self.answer(question.clone()).await {
            Ok(answer) => self.learn(&question, sent, &answer),
            Err(fault) => ("failed", Some(fault)),
        };
        telemetry::store_asked(outcome, Duration::from_nanos(self.now().saturating_sub(sent)));
        match fault {
            Some(fault) => self.lose(&fault),
            None => self.regain(),
        }
    }

    /// Within its time. Whoever can't wait any longer meanwhile is told so.
    async fn answer(&self, question: Question) -> Result<Answer, Fault> {
        let timeout = self.plan.timeout;
        let end = clock::after(clock::now(), timeout);
        let mut answer = self.store.decide(question);
        loop {
            let until = clock::after(clock::now(), GLANCE).min(end);
            match time::timeout_at(until, &mut answer).await {
                Ok(outcome) => return outcome,
                Err(_) if until == end => return Err(Fault(format!("no answer within {timeout:?}"))),
                Err(_) => self.queue.tend(|_, _| ()),
            }
        }
    }

    /// Whether the answer was in time, in the word of the metrics, and what makes it as good as none.
    fn learn(&self, question: &Question, sent: u64, answer: &Answer) -> (&'static str, Option<Fault>) {
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
        let mut desk = self.desk();
        desk.known = Some((answer.known, now));
        (desk.come_at, desk.come_unit) =
            if content { (0, 0) } else { (self.come_back(now, answer.come), question.unit) };
        desk.told(question, sent);
        if !late {
            desk.late = 0;
            return ("answered", None);
        }
        desk.late += 1;
        let lost = desk.late >= MOST_LATE || desk.lost.is_some();
        let held = self.plan.hold;
        let fault = || Fault(format!("its answers take longer than the {held:?} for which permits are held"));
        ("late", lost.then(fault))
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

    /// The store has answered.
    fn regain(&self) {
        let lost = {
            let mut desk = self.desk();
            desk.failures = 0;
            desk.lost.take()
        };
        if let Some(lost) = lost {
            lost.back();
        }
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
