//! Grants permits to waiters, and spends the permits that they do not collect.

use std::{num::NonZeroU32, sync::Arc};

use super::{
    fast_path::FastPath,
    sync::Ordering,
    wait_list::WaitList,
    waiter::{State, Waiter},
    waiters::Wakes,
};
use crate::{
    limit::{algorithm::Algorithm, core::lateness::LONGEST_UNCOLLECTED},
    policy::adaptive::Progress,
};

impl<A: Algorithm> WaitList<A> {
    /// Grants permits to the waiters in order until a waiter's permits are unavailable. Returns the time of the grant if
    /// `visitor`, the waiter whose task is being polled, got permits.
    pub(super) fn serve(&mut self, fast: &FastPath, visitor: Option<u64>, wakes: &mut Wakes) -> Option<u64> {
        let before = self.head()?;
        let now = fast.clock().now();
        let mut granted_at = None;
        self.expire_uncollected(fast, now, wakes);
        // Grants after a late timer are backdated.
        let from = now.saturating_sub(self.catch_up).max(self.presence.expected_at.min(now));
        while let Some(head) = self.head() {
            // Grants nothing to a head that may be absent.
            let is_absent =
                self.presence.is_suspicious(now) && Some(head.id) != visitor && self.waiters.is_woken(&head);
            if is_absent || !self.take(fast, (head.cost, head.reserve), from, now) {
                // Wakes the new head, because it has no timer yet.
                if head.id != before.id {
                    self.wake_head(now, wakes);
                }
                break;
            }
            let granted = self.waiters.grant(&head)?;
            if Some(head.id) == visitor {
                granted_at = Some(now);
                granted.waiter.set(State::Collected);
                wakes.drop.push(granted.waker);
            } else {
                granted.waiter.set(State::Granted(now));
                wakes.wake.push(granted.waker);
                self.await_collection(fast, granted.waiter, now);
            }
        }
        granted_at
    }

    /// Remembers a waiter that was granted permits and woken, until it collects the permits.
    pub(super) fn await_collection(&mut self, fast: &FastPath, waiter: Arc<Waiter>, now: u64) {
        fast.woken.fetch_add(1, Ordering::AcqRel);
        self.woken_at = now;
        self.uncollected.push_back((now, waiter));
    }

    /// Spends the permits of waiters that were not polled in time after their grants.
    #[inline]
    pub(super) fn expire_uncollected(&mut self, fast: &FastPath, now: u64, wakes: &mut Wakes) {
        if !self.uncollected.is_empty() {
            self.expire_late(fast, now, wakes);
        }
    }

    fn expire_late(&mut self, fast: &FastPath, now: u64, wakes: &mut Wakes) {
        let slack = fast.slack.load(Ordering::Acquire).min(LONGEST_UNCOLLECTED);
        let mut was_probe = false;
        while let Some((granted_at, waiter)) = self.uncollected.front() {
            if let State::Granted(at) = waiter.state() {
                // The waiter may have returned to the queue and have been granted other permits.
                let is_same = at == State::time(*granted_at);
                if is_same && now.saturating_sub(*granted_at) <= slack {
                    break;
                }
                if is_same && waiter.expire(at) {
                    let (at, cost) = (*granted_at, waiter.cost);
                    fast.woken.fetch_sub(1, Ordering::AcqRel);
                    was_probe |= self.lose(at, false, now);
                    self.release_without_acceptance(fast, cost);
                }
            }
            self.uncollected.pop_front();
        }
        // The head's timer ignores that the probe has ended.
        if was_probe {
            self.wake_head(now, wakes);
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

    /// Releases permits whose request was not sent, or was not accepted by the server.
    pub(super) fn release_without_acceptance(&mut self, fast: &FastPath, cost: NonZeroU32) {
        self.not_accepted = self.not_accepted.wrapping_add(cost.get().into());
        fast.release(cost);
    }

    /// Returns the progress of all requests, for an algorithm that learns.
    pub(super) fn progress(&self, fast: &FastPath) -> Progress {
        let released = fast.released();
        Progress {
            accepted: released.saturating_sub(self.not_accepted),
            in_flight: fast.granted().saturating_sub(released),
        }
    }

    /// Takes permits if they and at least `reserve` others are available. Backdates the grant to the time at which the
    /// permits became available, but not before `from`. Returns whether it took them.
    #[inline]
    pub(super) fn take(
        &mut self,
        fast: &FastPath,
        (cost, reserve): (NonZeroU32, u64),
        from: u64,
        now: u64,
    ) -> bool {
        let permits = u64::from(cost.get());
        let progress = A::learns().then(|| self.progress(fast));
        if let (Some(progress), Some(learner)) = (progress, self.algorithm.learner_mut()) {
            learner.advance(progress, now);
        }
        let limited = self.server.any() && self.server.tidy(now);
        let allowed = !limited || self.server.earliest(now, permits) <= now;
        let taken = allowed && self.take_since(cost, reserve, from, now);
        if taken {
            if let (Some(progress), Some(learner)) = (progress, self.algorithm.learner_mut()) {
                learner.grant(cost.get(), progress, now);
            }
            self.server.spend(permits);
            fast.count_granted(cost);
        }
        taken
    }

    fn take_since(&mut self, cost: NonZeroU32, reserve: u64, from: u64, now: u64) -> bool {
        if reserve > 0 || from.max(self.taken_at) < now {
            if let Some(is_taken) = self.take_earlier(cost, reserve, from, now) {
                return is_taken;
            }
        }
        let is_taken = self.algorithm.take(cost, now);
        if is_taken {
            self.taken_at = now;
        }
        is_taken
    }

    /// Takes permits that became available between `from` and `now`, at that time. Returns `None` if they only become
    /// available now or later, except if `reserve` permits must remain.
    fn take_earlier(&mut self, cost: NonZeroU32, reserve: u64, from: u64, now: u64) -> Option<bool> {
        let from = from.max(self.taken_at).min(now);
        let total = u64::from(cost.get()).saturating_add(reserve);
        let costliest = u32::try_from(total).unwrap_or(u32::MAX);
        let available_at = self.algorithm.forecast(from, total, costliest);
        if available_at < now && self.algorithm.take(cost, available_at) {
            self.taken_at = available_at;
            return Some(true);
        }
        (available_at > now && reserve > 0).then_some(false)
    }
}
