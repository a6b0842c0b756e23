//! The task that queries the store. A limiter has at most one such task, which sends one query at a time. The task runs
//! only while a request waits or there are updates to report.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, task::yield_now, time};

use super::{
    inner::{Inner, Next},
    permits::{Free, Lease, REQUESTED, RUNNING, TaskSignal},
    protocol::{Query, Reply},
    session::{StoreLost, exchanged},
    settings::{LONGEST_RETRY, SHORTEST_RETRY},
};
use crate::{
    clock,
    policy::{Amounts, backoff::scatter, nanos},
};

/// The interval at which the deadlines of waiters are checked while a query runs. A waiter may be refused up to this
/// long after its deadline.
const CHECK: Duration = Duration::from_millis(10);

/// The longest time between two queries while a unit other than requests delays a waiter, because another process may
/// return amounts.
const LONGEST_POLL: Duration = Duration::from_millis(250);

/// The number of consecutive late replies after which the store is treated as failed.
const MAX_LATE: u32 = 3;

impl Inner {
    /// Starts the task that queries the store, if a query was requested. Outside a tokio runtime, this function does
    /// nothing. The next request inside a runtime then starts the task.
    pub(super) fn start(&self) {
        let state = &self.signal.state;
        if state.load(Ordering::SeqCst) != REQUESTED {
            return;
        }
        let (Ok(runtime), Some(inner)) = (Handle::try_current(), self.this.upgrade()) else { return };
        if state.fetch_or(RUNNING, Ordering::SeqCst) & RUNNING == 0 {
            runtime.spawn(Task { inner, finished: false }.run());
        }
    }

    /// Sends the query, and handles its reply or failure.
    async fn exchange(&self, query: Query) {
        let (outcome, fault) = match self.reply(query.clone()).await {
            Ok(reply) => self.apply(&query, &reply),
            Err(fault) => ("failed", Some(fault)),
        };
        let took = Duration::from_nanos(self.limiter.now().saturating_sub(query.now));
        exchanged(outcome, took);
        if let Some(fault) = fault {
            self.handle_failure(&fault);
        }
    }

    /// Waits for the reply until the timeout. Meanwhile refuses waiters that can no longer be served in time.
    async fn reply(&self, query: Query) -> Result<Reply, String> {
        let timeout = self.settings.timeout;
        let end = clock::after(clock::now(), timeout);
        let mut reply = self.store.decide(query);
        loop {
            let until = clock::after(clock::now(), CHECK).min(end);
            match time::timeout_at(until, &mut reply).await {
                Ok(outcome) => return outcome,
                Err(_) if until == end => return Err(format!("the store sent no reply within {timeout:?}")),
                Err(_) => self.limiter.source_changed(),
            }
        }
    }

    /// Applies the store's reply. Returns the outcome for the metrics. Also returns an error message if the reply is
    /// late and the store is therefore treated as failed.
    fn apply(&self, query: &Query, reply: &Reply) -> (&'static str, Option<String>) {
        let given: u64 = reply.grants.iter().map(|(_, permits)| u64::from(*permits)).sum();
        let all_granted = given == u64::from(query.want) * u64::from(query.unit);
        let held = self.settings.hold;
        let expiry = self.settings.in_flight_expiry;
        let (late, failed, recovered, now) = self.inspect(|permits, now| {
            if let (Some(share), Some(used)) = (permits.share_mut(), query.share_used) {
                share.used = share.used.saturating_sub(used);
            }
            // The store decided at some time between the query and now. `due` counts from now, and `until` from the
            // start of the query, so no permit is used too early or after its expiry. A reply that took `hold` or
            // longer grants nothing.
            let until = query.now.saturating_add(nanos(held));
            // Without a waiter, a reply shows nothing about permits, unless the store is lost.
            let counts = query.want > 0 || permits.is_lost();
            let is_late = now >= until;
            let late = counts && is_late;
            let session = &mut permits.session;
            let poll_at = session.counted.replied(query, reply, expiry, now);
            session.known = Some((reply.known, now));
            session.offset = reply.at.saturating_sub(i64::try_from(now / 1_000).unwrap_or(i64::MAX));
            for (due, _) in reply.grants.iter().filter(|_| late) {
                let counted_at = reply.at.saturating_add(i64::try_from(due.as_micros()).unwrap_or(0));
                session.give_back_since(counted_at, query.amounts);
            }
            session.reported(query);
            if counts || !is_late {
                session.late = if late { session.late + 1 } else { 0 };
            }
            // A lost store stays lost until a reply arrives in time.
            let failed = session.late >= MAX_LATE || late && permits.lost.is_some();
            let mut recovered = None;
            if !failed {
                let grants = reply.grants.iter().filter(|_| !late).map(|(due, permits)| Lease {
                    due: now.saturating_add(nanos(*due)),
                    until: until.saturating_add(nanos(*due)),
                    permits: *permits,
                    amounts: query.amounts,
                });
                recovered = permits.fill(grants, self.free(query, reply, now), now);
                let is_delayed = reply.units.iter().any(|(_, wait)| !wait.is_zero());
                let longest = if is_delayed { LONGEST_POLL } else { Duration::MAX };
                let query_in = reply.query_in.min(longest);
                // Jitter prevents processes from querying at the same time.
                let spread = (self.settings.horizon() / 8).min(longest / 20);
                let query_in = query_in + spread + scatter(spread, self.random.next());
                permits.query_at =
                    if all_granted { 0 } else { now.saturating_add(nanos(query_in)).max(poll_at) };
            }
            (late, failed, recovered, now)
        });
        if !failed {
            self.admit(Some(reply.admitted));
            let units = reply.units.iter().map(|(left, wait)| (*left, now.saturating_add(nanos(*wait))));
            self.set_units(units, &query.amounts);
            self.limiter.source_changed();
        }
        if !reply.paused.is_zero() {
            let until = now.saturating_add(nanos(reply.paused));
            self.limiter.locked(|core, now| {
                // The store learns with the next query that this process has lifted the pause.
                if !self.inspect(|permits, _| permits.session.updates.resumed_at.is_some()) {
                    core.pause(until, now);
                }
            });
        }
        let fault =
            || format!("permits expire before they arrive, because each reply takes longer than {held:?}");
        recovered.into_iter().for_each(StoreLost::recovered);
        (if late { "late" } else { "replied" }, failed.then(fault))
    }

    /// Forecasts when the next permits become available, and the largest number that may then be available together. If
    /// the quotas have further permits, this number is the maximum of a single request.
    fn free(&self, query: &Query, reply: &Reply, now: u64) -> Free {
        let refilled = nanos(reply.free).checked_div(self.settings.interval());
        let refilled = refilled.and_then(|refilled| u32::try_from(refilled).ok()).filter(|_| reply.is_spent);
        let together = refilled.map_or(u32::MAX, |refilled| refilled.saturating_add(query.unit));
        let at = now.saturating_add(nanos(reply.free));
        let (unit, amounts) = (query.unit, query.amounts);
        Free { at, unit, amounts, together: together.min(self.settings.largest()) }
    }

    /// Handles a failed query: lets requests use the share or, without a share, refuses them.
    fn handle_failure(&self, fault: &str) {
        let settings = &self.settings;
        let wait = SHORTEST_RETRY + scatter(LONGEST_RETRY - SHORTEST_RETRY, self.random.next());
        let is_known = self.inspect(|permits, now| permits.fail(fault, settings, wait, now));
        self.admit(settings.share.is_none().then_some(0));
        self.set_units([], &Amounts::NONE);
        self.limiter.source_changed();
        // The lock is not held while the failure is logged. This is safe, because only this task marks the store as
        // lost or recovered.
        if !is_known {
            let state = if settings.share.is_some() { "fallback" } else { "refusing" };
            let logged = StoreLost::begin(fault, state, wait);
            self.inspect(|permits, _| permits.session.logged = Some(logged));
        }
    }
}

struct Task {
    inner: Arc<Inner>,
    finished: bool,
}

impl Task {
    async fn run(mut self) {
        let TaskSignal { state, notify } = &*Arc::clone(&self.inner.signal);
        while !self.finished {
            state.store(RUNNING, Ordering::SeqCst);
            match self.inner.next() {
                Next::Query(query) => self.inner.exchange(query).await,
                // A request has arrived since its demand was read.
                Next::Wait(_) if state.load(Ordering::SeqCst) != RUNNING => yield_now().await,
                Next::Wait(until) => {
                    // A request that arrives during this wait is served by the next query. An update ends the wait.
                    let _ = time::timeout_at(until, notify.notified()).await;
                    // The next query is planned below, so the waiters that still lack permits must not wake this task.
                    self.inner.inspect(|permits, _| permits.listening = 0);
                    self.inner.limiter.source_changed();
                }
                Next::Stop => {
                    // Keeps the state if a query was requested meanwhile. The task then continues.
                    let stopped = state.compare_exchange(RUNNING, 0, Ordering::SeqCst, Ordering::SeqCst);
                    self.finished = stopped.is_ok();
                }
            }
        }
    }
}

impl Drop for Task {
    /// When a runtime shuts down, it drops this task. Within a second, a waiter on another runtime starts a new task.
    fn drop(&mut self) {
        if !self.finished {
            if std::thread::panicking() {
                self.inner.handle_failure("the task that queries the store has panicked");
            }
            self.inner.signal.state.store(REQUESTED, Ordering::SeqCst);
            self.inner.limiter.source_changed();
        }
    }
}
