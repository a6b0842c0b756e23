//! The task that queries the store. A limiter has at most one, with one query at a time, and only while a request waits or
//! there is something to report.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, time};

use super::{
    fallback::Share,
    inner::Inner,
    permits::{Free, Grant, Permits},
    protocol::{MOST, Query, Reply},
    settings::{LONGEST_RETRY, SHORTEST_RETRY},
    telemetry::{self, StoreLost},
};
use crate::{
    clock::{self, Instant},
    limit::queue::external::{Demand, nanos},
    policy::backoff::scatter,
};

/// How often waiters are checked during an exchange. A refusal may be late by as much.
const CHECK: Duration = Duration::from_millis(10);

/// The resolution of timers: 1 ms in nanoseconds.
const TICK: u64 = 1_000_000;

/// The number of consecutive late replies that count as a failure.
const MOST_LATE: u32 = 3;

enum Next {
    Query(Query),
    Wait(Instant),
    Over,
}

impl Inner {
    /// Starts the task if the bell has rung. Without a runtime the next request starts it.
    pub(super) fn start(&self) {
        if !self.bell.rung.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(runtime), Some(inner)) = (Handle::try_current(), self.this.upgrade()) else { return };
        if !self.running.swap(true, Ordering::SeqCst) {
            runtime.spawn(Task { inner, over: false }.run());
        }
    }

    fn next(&self) -> Next {
        self.queue.inspect(|permits, demand, now| {
            let news = permits.session.has_news(now);
            // The moment of the next query is for so many permits together. Fewer may be available earlier.
            let unit = permits.free.map_or(0, |free| free.unit);
            let smaller = demand.head.is_some_and(|head| head.get() < unit);
            let at = if !permits.is_lost() && (news || smaller) { 0 } else { permits.query_at };
            let short = demand.head.is_some_and(|head| {
                permits.is_lost() || !permits.will_serve(head, now) || demand.permits > permits.in_hand(now)
            });
            // A share usually grants without a wait. A request that takes from it rings when the store is due for a query.
            let probe = permits.is_lost() && now >= at;
            // A store that does not reply gets the news when a request waits for it.
            let idle = permits.is_lost() && demand.head.is_none() && now < at;
            if idle || !short && !news && !probe {
                return Next::Over;
            }
            if now < at {
                permits.listening = unit;
                let until = demand.last.map_or(at, |last| at.min(last));
                return Next::Wait(self.queue.timer(until.max(now + TICK)));
            }
            let (want, unit) = want(permits, demand, now, self.settings.lease);
            let back = permits.share.as_ref().map(|share| share.used(now, nanos(self.settings.longest())));
            Next::Query(permits.session.query(want, unit, back, now))
        })
    }

    /// Sends the query, and applies its reply or failure.
    async fn exchange(&self, query: Query) {
        let (outcome, fault) = match self.reply(query.clone()).await {
            Ok(reply) => self.apply(&query, &reply),
            Err(fault) => ("failed", Some(fault)),
        };
        let took = Duration::from_nanos(self.queue.now().saturating_sub(query.now));
        telemetry::exchanged(outcome, took);
        match fault {
            Some(fault) => self.lose(&fault),
            None => {
                if let Some(lost) = self.queue.inspect(|permits, _, _| permits.session.lost.take()) {
                    lost.back();
                }
            }
        }
    }

    /// Waits for the reply until the timeout. Refuses waiters that become late meanwhile.
    async fn reply(&self, query: Query) -> Result<Reply, String> {
        let timeout = self.settings.timeout;
        let end = clock::after(clock::now(), timeout);
        let mut reply = self.store.decide(query);
        loop {
            let until = clock::after(clock::now(), CHECK).min(end);
            match time::timeout_at(until, &mut reply).await {
                Ok(outcome) => return outcome,
                Err(_) if until == end => return Err(format!("no reply within {timeout:?}")),
                Err(_) => self.update(|_, _| ()),
            }
        }
    }

    /// Returns the outcome as the metrics show it, and a fault if the replies are always late.
    fn apply(&self, query: &Query, reply: &Reply) -> (&'static str, Option<String>) {
        let given: u64 = reply.grants.iter().map(|(_, permits)| u64::from(*permits)).sum();
        let content = given == u64::from(query.want) * u64::from(query.unit);
        let held = self.settings.hold;
        let (late, lost, now) = self.update(|permits, now| {
            if let (Some(share), Some(used)) = (&mut permits.share, query.back) {
                share.reported(used);
            }
            // The store decided between the query and now. No permit is used early, nor after it stopped counting. A reply
            // that took as long as permits are held brings none, and the share applies until a reply is in time.
            let until = query.now.saturating_add(nanos(held));
            let late = query.want > 0 && now >= until;
            if !late || permits.share.is_none() {
                let grants = reply.grants.iter().filter(|_| !late).map(|(due, permits)| Grant {
                    due: now.saturating_add(nanos(*due)),
                    until: until.saturating_add(nanos(*due)),
                    permits: *permits,
                });
                permits.fill(grants, self.free(query, reply, content, now));
                // Jitter keeps processes from querying at the same time.
                let spread = self.settings.horizon() / 8;
                let query_in = reply.query_in + spread + scatter(spread, self.random.next());
                permits.query_at = if content { 0 } else { now.saturating_add(nanos(query_in)) };
            }
            let session = &mut permits.session;
            session.known = Some((reply.known, now));
            session.reported(&query.news);
            session.late = if late { session.late + 1 } else { 0 };
            (late, session.late >= MOST_LATE || late && session.lost.is_some(), now)
        });
        if !reply.paused.is_zero() {
            self.queue.pause_until(self.queue.timer(now.saturating_add(nanos(reply.paused))));
        }
        let fault = || format!("its replies take longer than the {held:?} for which permits are held");
        (if late { "late" } else { "answered" }, lost.then(fault))
    }

    /// When the permits that were not granted become available, and how many together: those that have refilled by then.
    /// A reply that granted everything does not show how many more are available.
    fn free(&self, query: &Query, reply: &Reply, content: bool, now: u64) -> Free {
        let refilled = nanos(reply.free).checked_div(self.settings.interval());
        let refilled = refilled.and_then(|refilled| u32::try_from(refilled).ok()).filter(|_| !content);
        let together = refilled.map_or(u32::MAX, |refilled| refilled.saturating_add(query.unit));
        let at = now.saturating_add(nanos(reply.free));
        Free { at, unit: query.unit, together: together.min(self.settings.largest()) }
    }

    /// Handles a query without a reply.
    fn lose(&self, fault: &str) {
        let settings = &self.settings;
        let wait = SHORTEST_RETRY + scatter(LONGEST_RETRY - SHORTEST_RETRY, self.random.next());
        let (state, known) = self.update(|permits, now| {
            let after = |time: Duration| now.saturating_add(nanos(time));
            // The other processes may hold permits of the store for as long.
            let spent = after(settings.horizon() + settings.hold);
            let share = || settings.share.as_ref().map(|quotas| Share::begin(settings.kind, quotas, spent));
            permits.lose(share, after(wait), after(settings.holdoff()));
            permits.session.late = 0;
            let state = if permits.share.is_some() { "fallback" } else { "refusing" };
            (state, permits.session.lost.is_some())
        });
        // Logs without the lock. No other task changes the state.
        if !known {
            let lost = StoreLost::begin(fault, state, wait);
            self.queue.inspect(|permits, _, _| permits.session.lost = Some(lost));
        }
    }
}

/// How many blocks of how many permits to query.
fn want(permits: &mut Permits, demand: Demand, now: u64, lease: u32) -> (u32, u32) {
    let Some(head) = demand.head else { return (0, 1) };
    // A single request shows whether the store replies in time. The permits of one request become available together.
    if permits.is_lost() || head.get() > 1 && !permits.will_serve(head, now) {
        return (1, head.get());
    }
    // A lease grows while it is used up, and shrinks to what was used of it.
    let (unused, last) = (permits.take_unused(), permits.session.lease.max(1));
    permits.session.lease =
        if unused > 0 { last.saturating_sub(unused).max(1) } else { last.saturating_mul(2).min(lease) };
    let missing = demand.permits.max(u64::from(permits.session.lease)).saturating_sub(permits.in_hand(now));
    (missing.clamp(1, MOST.into()) as u32, 1)
}

struct Task {
    inner: Arc<Inner>,
    over: bool,
}

impl Task {
    async fn run(mut self) {
        loop {
            self.inner.bell.rung.store(false, Ordering::SeqCst);
            match self.inner.next() {
                Next::Query(query) => self.inner.exchange(query).await,
                Next::Wait(until) => {
                    // The next query serves requests that arrive meanwhile. News is not delayed.
                    let _ = time::timeout_at(until, self.inner.bell.news.notified()).await;
                    self.inner.update(|_, _| ());
                }
                Next::Over => {
                    // In this order, a later ring either finds no task running or is noticed here.
                    self.inner.running.store(false, Ordering::SeqCst);
                    let again = self.inner.bell.rung.load(Ordering::SeqCst);
                    if !again || self.inner.running.swap(true, Ordering::SeqCst) {
                        self.over = true;
                        return;
                    }
                }
            }
        }
    }
}

impl Drop for Task {
    /// A runtime that ends drops the task. A waiter on another runtime starts a new one.
    fn drop(&mut self) {
        if !self.over {
            if std::thread::panicking() {
                self.inner.lose("the task that queries the store has panicked");
            }
            self.inner.running.store(false, Ordering::SeqCst);
            self.inner.bell.rung.store(true, Ordering::SeqCst);
            self.inner.update(|_, _| ());
        }
    }
}
