//! The queued requests, in FIFO order, with one armed timer and at most two wake-ups for each grant.
//!
//! Only the head has a timer. When the timer fires, the head takes permits for itself and for all waiters behind it
//! whose permits are available. It wakes those waiters, and wakes the new head, which arms the next timer. A future
//! reads its grant from its [`Waiter`]. No task is spawned: the queue runs in the tasks that wait in it.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, task::Waker, time::Duration};

use super::{
    clock::{Clock, nanos},
    fast_path::FastPath,
    sync::Ordering,
    waiter::{Latest, State, Waiter},
};
use crate::{
    error::{Reason, Refusal},
    limit::{
        algorithm::Algorithm,
        permit_request::PermitRequest,
        server::{limits::ServerLimits, unconfirmed::Unconfirmed},
    },
    policy::Quota,
};

/// The longest time that the head sleeps beyond its due time, so that several waiters are served together: four timer
/// ticks, 4 ms in nanoseconds. A tick costs more processor time than a permit.
const GATHER: u64 = 4_000_000;

/// The maximum number of permits that the head collects before it grants them to several waiters. It is limited,
/// because the head checks the bounds of up to as many waiters.
const MAX_GATHERED: u64 = 64;

/// The delay of a late timer: 1 ms in nanoseconds.
const TICK: u64 = 1_000_000;

/// The head's additional sleep is at most the last waiter's wait divided by this number.
const PART: u64 = 16;

#[derive(Debug)]
pub(super) struct WaitList<A> {
    pub(super) algorithm: A,
    pub(super) server: ServerLimits,
    pub(super) unconfirmed: Unconfirmed,
    /// The refusals of waiters that have not been polled since they were refused, by the id of the waiter.
    pub(super) refusals: BTreeMap<u64, Refusal>,
    /// The time of the last grant that woke a waiter.
    pub(super) woken_at: u64,
    /// The flags in the highest bits of the tally. They change only under the lock.
    pub(super) flags: u64,
    /// The waiters in order of arrival. A tree allows removing a waiter from the middle.
    pub(super) entries: BTreeMap<u64, Entry>,
    last_id: u64,
    /// The permits that all waiters need together.
    pub(super) wanted: u64,
    /// The highest cost of any request since the queue was last empty.
    costliest: u32,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) waker: Waker,
    pub(super) waiter: Arc<Waiter>,
}

/// Wakers to wake and to drop after the lock is released, because waking and dropping may run arbitrary code.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    pub(super) wake: Vec<Waker>,
    pub(super) drop: Vec<Waker>,
}

/// Returns how long a granted permit stays valid, in nanoseconds: a quarter of the margin. This limit applies to two
/// delays: from the grant until the waiter's task is polled, and from then until the inner service is ready. The third
/// quarter of the margin covers the network, and the fourth covers late timers.
///
/// Without a margin, a permit stays valid for 1/32 of the window, at most 50 ms. Zero would be too short: a task is
/// always polled a little late, so every permit of a queued request would expire. Without a quota, permits never
/// expire.
pub(super) fn slack(quotas: &[Quota]) -> u64 {
    const LARGEST_WITHOUT_MARGIN: u64 = 100_000_000;
    let slack = |quota: &Quota| match nanos(quota.margin()) {
        0 => LARGEST_WITHOUT_MARGIN.min(nanos(quota.window()) / 16) / 2,
        margin => margin / 4,
    };
    quotas.iter().map(slack).min().unwrap_or(u64::MAX)
}

impl<A: Algorithm> WaitList<A> {
    pub(super) fn new(algorithm: A, quotas: &[Quota]) -> Self {
        Self {
            algorithm,
            server: ServerLimits::new(A::learns() || !quotas.is_empty()),
            unconfirmed: Unconfirmed::default(),
            refusals: BTreeMap::new(),
            woken_at: 0,
            flags: 0,
            entries: BTreeMap::new(),
            last_id: 0,
            wanted: 0,
            costliest: 1,
        }
    }

    /// Grants permits to the waiters in order, from the head on, until the permits of a waiter are not available.
    pub(super) fn serve(&mut self, fast: &FastPath, visitor: Option<u64>, wakes: &mut Wakes) {
        let before = self.entries.keys().next().copied();
        if before.is_none() {
            return;
        }
        let now = fast.clock.now();
        while let Some((id, cost)) = self.head() {
            if !self.take(fast, cost, now) {
                // Wakes the new head, because it has no timer yet.
                if Some(id) != before {
                    self.wake_head(wakes);
                }
                return;
            }
            let Some(granted) = self.remove(id) else { return };
            if Some(id) == visitor {
                wakes.drop.push(granted.waker);
            } else {
                fast.woken.fetch_add(1, Ordering::AcqRel);
                self.woken_at = now;
                wakes.wake.push(granted.waker);
            }
            granted.waiter.set(State::Granted(now));
        }
    }

    /// Takes the permits for a new request and returns `None`. If they are not available, returns when they would be
    /// available behind all current waiters.
    pub(super) fn wait(
        &mut self,
        fast: &FastPath,
        cost: NonZeroU32,
        now: u64,
        wakes: &mut Wakes,
    ) -> Result<Option<u64>, Refusal> {
        let largest = self.algorithm.largest();
        if cost.get() > largest {
            return Err(Refusal::new(Reason::TooCostly { largest }, None));
        }
        if let Some(refusal) = self.algorithm.unavailable(cost, now) {
            return Err(refusal);
        }
        self.serve(fast, None, wakes);
        let before = if self.entries.is_empty() { 1 } else { self.costliest };
        self.costliest = before.max(cost.get());
        if self.entries.is_empty() && self.take(fast, cost, now) {
            return Ok(None);
        }
        Ok(Some(self.forecast(now, self.wanted + u64::from(cost.get()))))
    }

    /// Queues a new request whose permits would be available at `due`, or refuses it.
    pub(super) fn admit(
        &mut self,
        request: &PermitRequest,
        due: u64,
        now: u64,
        clock: &Clock,
    ) -> Result<Arc<Waiter>, Refusal> {
        let latest = Latest::of(request, now, clock);
        let reason = if self.entries.len() >= request.max_queue() {
            Some(Reason::QueueFull)
        } else {
            latest.missed_by(due, now, self.algorithm.grace())
        };
        match reason {
            Some(reason) => Err(Refusal::new(reason, Duration::from_nanos(due - now))),
            None => Ok(self.new_waiter(request.cost(), latest)),
        }
    }

    /// Refuses the waiters that a new server limit delays beyond their bounds.
    pub(super) fn apply_server(&mut self, fast: &FastPath, wakes: &mut Wakes) {
        let now = fast.clock.now();
        // The last waiter waits the longest, so a limit that does not delay the last waiter delays no waiter.
        if self.forecast(now, self.wanted) > self.algorithm.forecast(now, self.wanted, self.costliest) {
            self.refuse_late(fast, wakes);
        }
    }

    /// Refuses the waiters whose permits cannot become available in time, or at all.
    pub(super) fn refuse_late(&mut self, fast: &FastPath, wakes: &mut Wakes) {
        let (now, largest, before) = (fast.clock.now(), self.algorithm.largest(), self.head());
        let grace = self.algorithm.grace();
        let (mut lost, mut ahead) = (Vec::new(), 0);
        for (&id, entry) in &self.entries {
            let due = self.forecast(now, ahead + u64::from(entry.waiter.cost.get()));
            let refusal = if entry.waiter.cost.get() > largest {
                Some(Refusal::new(Reason::TooCostly { largest }, None))
            } else {
                let missed = entry.waiter.latest.missed_by(due, now, grace);
                let missed = missed.map(|reason| Refusal::new(reason, Duration::from_nanos(due - now)));
                self.algorithm.unavailable(entry.waiter.cost, now).or(missed)
            };
            match refusal {
                Some(refusal) => lost.push((id, refusal)),
                None => ahead += u64::from(entry.waiter.cost.get()),
            }
        }
        for (id, refusal) in lost {
            self.refusals.insert(id, fast.refuse(refusal));
            if let Some(entry) = self.remove(id) {
                entry.waiter.set(State::Refused);
                wakes.wake.push(entry.waker);
            }
        }
        if self.head() != before {
            self.wake_head(wakes);
        }
    }

    /// Ends a probe that was granted at `granted_at` and will get no response. Returns whether there was one.
    pub(super) fn lose(&mut self, granted_at: u64, was_sent: bool, now: u64) -> bool {
        let lost = self.algorithm.learner_mut().and_then(|learner| learner.lose(granted_at, was_sent));
        if let Some(until) = lost {
            self.server.pause(until, now);
        }
        lost.is_some()
    }

    /// Removes a waiter. Wakes the next head, which arms its timer.
    pub(super) fn leave(&mut self, id: u64, wakes: &mut Wakes) {
        let before = self.head();
        self.refusals.remove(&id);
        wakes.drop.extend(self.remove(id).map(|entry| entry.waker));
        if self.head() != before {
            self.wake_head(wakes);
        }
    }

    pub(super) fn insert(&mut self, waiter: &Arc<Waiter>, waker: Waker) {
        self.wanted += u64::from(waiter.cost.get());
        self.entries.insert(waiter.id, Entry { waker, waiter: Arc::clone(waiter) });
    }

    pub(super) fn new_waiter(&mut self, cost: NonZeroU32, latest: Latest) -> Arc<Waiter> {
        self.last_id += 1;
        Arc::new(Waiter::new(self.last_id, cost, latest))
    }

    pub(super) fn keep_waker(&mut self, id: u64, waker: &Waker, wakes: &mut Wakes) {
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.waker.will_wake(waker)) {
            wakes.drop.push(std::mem::replace(&mut entry.waker, waker.clone()));
        }
    }

    /// Returns when the last of `total` permits can be granted.
    pub(super) fn forecast(&self, now: u64, total: u64) -> u64 {
        let algorithm = |start, total| self.algorithm.forecast(start, total, self.costliest);
        self.server.forecast(algorithm, now, total)
    }

    /// Returns when the head must be polled again. The head's permits are available at `due`. In a long queue, the head
    /// is polled a little later than `due`, so that one wake-up serves several waiters. It is never polled so late that
    /// one of these waiters misses its bounds.
    pub(super) fn gather(&self, now: u64, due: u64) -> u64 {
        let Some((_, cost)) = self.head() else { return due };
        let cost = u64::from(cost.get());
        if self.wanted <= cost || self.server.any() {
            return due;
        }
        let (next, last) = (self.forecast(now, cost + 1), self.forecast(now, self.wanted));
        let until = due.saturating_add(GATHER.min((last - now) / PART));
        let gather_end = due.saturating_add(next.saturating_sub(due).saturating_mul(MAX_GATHERED));
        let bounds =
            self.entries.values().take(MAX_GATHERED as usize).map(|entry| entry.waiter.latest.last(0));
        let until = bounds.map(|latest| latest.saturating_sub(TICK)).fold(until.min(gather_end), u64::min);
        self.algorithm.gather(cost, due, next, until.max(due))
    }

    pub(super) fn is_head(&self, id: u64) -> bool {
        self.entries.keys().next() == Some(&id)
    }

    pub(super) fn wake_head(&self, wakes: &mut Wakes) {
        wakes.wake.extend(self.entries.first_key_value().map(|(_, head)| head.waker.clone()));
    }

    pub(super) fn head(&self) -> Option<(u64, NonZeroU32)> {
        self.entries.first_key_value().map(|(&id, entry)| (id, entry.waiter.cost))
    }

    fn take(&mut self, fast: &FastPath, cost: NonZeroU32, now: u64) -> bool {
        let permits = u64::from(cost.get());
        let progress = A::learns().then(|| fast.progress());
        if let (Some(progress), Some(learner)) = (progress, self.algorithm.learner_mut()) {
            learner.advance(progress, now);
        }
        let limited = self.server.any() && self.server.tidy(now);
        let allowed = !limited || self.server.earliest(now, permits) <= now;
        let taken = allowed && self.algorithm.take(cost, now);
        if taken {
            if let (Some(progress), Some(learner)) = (progress, self.algorithm.learner_mut()) {
                learner.grant(cost.get(), progress, now);
            }
            self.server.spend(permits);
            fast.tally().fetch_add(permits, Ordering::AcqRel);
        }
        taken
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.wanted -= u64::from(entry.waiter.cost.get());
        Some(entry)
    }
}
