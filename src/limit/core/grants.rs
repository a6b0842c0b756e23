//! Grants permits to the waiters, in order.

use std::num::NonZeroU32;

use super::{
    Core,
    queue::Head,
    slots::{Stage, Waiter},
};
use crate::policy::{Amounts, Totals};

impl Core {
    /// Grants the permits that have become available to the waiters in order. Refuses the first waiters whose permits
    /// cannot become available in time, and expires permits that were not collected.
    pub fn advance(&mut self, now: u64) {
        self.end_held(now);
        self.expire_uncollected(now);
        self.serve(now, None);
        if self.queue.recheck_at.is_some_and(|at| at <= now) {
            self.refuse_late(now);
            self.serve(now, None);
        }
    }

    /// Serves the waiters in order. `polled` is the waiter that is being polled.
    pub(super) fn serve(&mut self, now: u64, polled: Option<u32>) {
        while let Some(head) = self.head() {
            if head.waiter.is_late && polled != Some(head.slot) {
                match self.queue.offered_at(&head) {
                    Some(at) if now.saturating_sub(at) > head.waiter.patience.into() => {
                        self.queue.skip(head.slot);
                        continue;
                    }
                    None if self.has_permits(&head, now) => self.queue.settle(head.slot, Stage::Offered(now)),
                    _ => {}
                }
                if self.queue.offered_at(&head).is_some() {
                    break;
                }
            }
            let Waiter { cost, is_in_flight, amounts, .. } = head.waiter;
            if self.take((cost, is_in_flight), &amounts, head.reserve, self.lateness.start(now), now) {
                self.queue.grant(&head, now);
            } else if let Some(refusal) = self.missed(&head, now) {
                self.refuse(head.slot, refusal, now);
            } else {
                self.hold_head(now);
                break;
            }
        }
    }

    /// Records until when the server's limits hold up the first waiter, so that its grant is not backdated further.
    pub(super) fn hold_head(&mut self, now: u64) {
        if let Some(head) = self.head() {
            self.lateness.hold(self.server.earliest(now, head.waiter.cost.get().into()));
        }
    }

    /// Returns whether the permits of the head are available.
    pub(super) fn has_permits(&mut self, head: &Head, now: u64) -> bool {
        let (cost, progress) = (head.waiter.cost, self.progress());
        if self.is_limited_by_server(cost.get().into(), now) || self.is_full_for(head.waiter.is_in_flight) {
            return false;
        }
        if self.is_stored() {
            return self.supply.has_stored(cost, now);
        }
        self.supply.progress(progress, cost.get(), now);
        self.advance_units(&head.waiter.amounts, now);
        self.due(head, now) <= now && self.is_open(cost, &head.waiter.amounts, now)
    }

    /// Returns when [`advance`](Self::advance) must be called next. Returns `None` if no request is
    /// queued.
    pub fn next_wake(&self, now: u64) -> Option<u64> {
        let expiry = self
            .queue
            .uncollected()
            .map(|(_, _, at)| at.saturating_add(self.longest_uncollected()).saturating_add(1));
        let head = self.head().map(|head| {
            if let Some(at) = self.queue.offered_at(&head) {
                return at.saturating_add(u64::from(head.waiter.patience) + 1);
            }
            let due = self.due(&head, now);
            let probe_ends = self.probe_ends(&head.waiter.amounts);
            let wake = match probe_ends.filter(|_| due <= now) {
                _ if due <= now && self.is_full_for(head.waiter.is_in_flight) => u64::MAX,
                Some(ends) => ends,
                // The store has no forecast. It reports its next permits.
                None if due <= now && self.is_stored() => self.supply.retry_at(now).unwrap_or(u64::MAX),
                None => self.gather(&head, due, now),
            };
            wake.min(head.waiter.latest.last(self.grace()))
        });
        let recheck = self.queue.recheck_at.filter(|_| self.queue.bounded > 0);
        let held =
            self.in_flight.as_ref().and_then(|in_flight| in_flight.next_held()).filter(|_| head.is_some());
        [expiry, head, recheck, held].into_iter().flatten().min()
    }

    /// Returns whether a limit of the server delays these permits. A limit that has ended begins a slow start.
    #[inline]
    fn is_limited_by_server(&mut self, permits: u64, now: u64) -> bool {
        self.server.any() && self.server.tidy(now) && self.server.earliest(now, permits) > now
    }

    /// Takes permits if they and `reserve` others are available since `from` or later. Returns whether it took them. The
    /// request may already be in flight.
    #[inline]
    pub(super) fn take(
        &mut self,
        (cost, is_in_flight): (NonZeroU32, bool),
        amounts: &Amounts,
        reserve: u64,
        from: u64,
        now: u64,
    ) -> bool {
        let (permits, progress) = (u64::from(cost.get()), self.progress());
        self.supply.progress(progress, cost.get(), now);
        self.advance_units(amounts, now);
        // The server's limits come first, so that no slow start begins while they hold up the grants.
        if self.is_limited_by_server(permits, now) {
            return false;
        }
        if self.is_full_for(is_in_flight) || !self.is_open(cost, amounts, now) {
            return false;
        }
        // Permits behind a probe become available at its end.
        let probe_ends = self.probe_ends(amounts);
        let from = probe_ends.map_or(from, |ends| from.max(ends.min(now)));
        let from = self.units.as_ref().map_or(from, |units| units.due(from, &Totals::NONE, amounts));
        if from > now {
            return false;
        }
        let taken = match self.supply.source() {
            Some(_) => self.take_from_source(cost, amounts, now),
            None => self.supply.take(cost, (reserve, from), progress, now),
        };
        let Some(at) = taken else { return false };
        if self.supply.learner().is_some() && !amounts.is_empty() {
            self.learn_units(amounts);
        }
        self.units.iter_mut().for_each(|units| units.take(at, amounts, now));
        self.lateness.taken_at = at;
        if self.server.any() {
            self.server.spend(permits, now);
        }
        if !is_in_flight {
            self.enter_flight();
        }
        self.granted = self.granted.wrapping_add(permits);
        true
    }
}
