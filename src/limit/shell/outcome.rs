//! Receives the ends of requests. An ordinary response needs no lock.

use std::{num::NonZeroU32, time::Duration};

use super::{Shared, flags, sync::Ordering};
use crate::{
    clock::Instant,
    limit::{
        core::{End, Feedback, Grant},
        feedback::ResponseInfo,
        snapshot::Effect,
    },
    policy::{Amounts, Taken, adaptive::Acceptance},
};

impl Shared {
    /// Returns whether permits that were granted at `at` have expired.
    pub(crate) fn is_expired(&self, at: u64) -> bool {
        self.locked(|core, now| core.is_expired(at, now))
    }

    /// Ends a request that received a response. Returns what the response changed.
    #[inline]
    pub(crate) fn completed(
        &self,
        (cost, at): (NonZeroU32, u64),
        sent_at: Option<Instant>,
        response: &ResponseInfo<'_>,
        taken: Option<Taken>,
    ) -> Effect {
        if response.reading.is_permanent() {
            self.dropped((cost, at), true, taken);
            return Effect::default();
        }
        if self.is_ordinary(response, taken.is_some()) {
            self.release(cost);
            return Effect::default();
        }
        let sent_at = sent_at.map_or(at, |sent_at| self.setup.clock.since_origin(sent_at));
        let feedback = Feedback::from(response);
        let end = End::Response(&feedback, sent_at);
        let (learned, begun) = self.locked(|core, now| {
            let learned = core.finished(Grant::new(at, cost), end, &taken.unwrap_or_default(), now);
            (learned, core.take_begun_pause())
        });
        Effect {
            learned: learned.map(|learned| learned.with_times(|at| self.setup.clock.timer(at))),
            pause: begun.map(|begun| Duration::from_nanos(begun.length)),
            probe_after: begun.and_then(|begun| begun.probe_after).map(Duration::from_nanos),
        }
    }

    /// Returns whether a response only releases its permits. A limiter that learns counts the amounts of each request.
    #[inline]
    fn is_ordinary(&self, response: &ResponseInfo<'_>, has_amounts: bool) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        let learns = flags & flags::LEARNS != 0;
        if flags & flags::READS_ALL != 0 || learns && has_amounts {
            return false;
        }
        match response.reading.acceptance() {
            Acceptance::Accepted => flags & flags::READS_REMAINING == 0 || response.quotas().next().is_none(),
            Acceptance::Throttled => false,
            Acceptance::Unavailable => {
                !learns && response.requested_pause().is_none() && response.quotas().next().is_none()
            }
        }
    }

    /// Returns whether the limiter limits the number of requests in flight.
    #[inline]
    pub(crate) fn limits_in_flight(&self) -> bool {
        self.setup.counts()
    }

    /// Counts a request that is already in flight, even beyond the limit.
    pub(crate) fn enter_flight(&self) {
        self.locked(|core, _| core.enter_flight());
    }

    /// Ends a request in flight, if their number is limited. The server may still process a cancelled one.
    #[inline]
    pub(crate) fn end_in_flight(&self, is_cancelled: bool) {
        if self.limits_in_flight() {
            self.locked(|core, now| core.end_in_flight(is_cancelled, now));
        }
    }

    /// Replaces the amounts that a request took at `taken_at`.
    pub(crate) fn settle(&self, taken_at: u64, taken: &Taken, actual: &Amounts) {
        self.locked(|core, now| core.settle(taken_at, taken, actual, now));
    }

    /// Releases the permits of a request without a response.
    #[inline]
    pub(crate) fn dropped(&self, (cost, at): (NonZeroU32, u64), was_sent: bool, taken: Option<Taken>) {
        if was_sent || !self.release_ordinary(cost) {
            let (grant, taken) = (Grant::new(at, cost), taken.unwrap_or_default());
            self.locked(|core, now| core.finished(grant, unreported(was_sent), &taken, now));
        }
    }

    /// Ends a request whose response concerns only other limiters.
    pub(crate) fn ended_elsewhere(&self, (cost, at): (NonZeroU32, u64), taken: Option<Taken>) {
        if !self.release_ordinary(cost) {
            let (grant, taken) = (Grant::new(at, cost), taken.unwrap_or_default());
            self.locked(|core, now| core.finished(grant, End::Elsewhere, &taken, now));
        }
    }

    /// Releases the permits of a request without a response, which is no longer in flight.
    #[inline]
    pub(crate) fn ended(&self, (cost, at): (NonZeroU32, u64), was_sent: bool, taken: Option<Taken>) {
        if was_sent || !self.release_ordinary(cost) {
            let (grant, taken) = (Grant::new(at, cost), taken.unwrap_or_default());
            self.locked(|core, now| {
                core.finished(grant, unreported(was_sent), &taken, now);
                core.end_in_flight(was_sent, now);
            });
        }
    }

    /// Ends a request whose end does not change the limiter. Returns `false` if the limiter learns from each end, waits
    /// for an accepted response, or counts the requests in flight.
    #[inline]
    pub(crate) fn release_ordinary(&self, cost: NonZeroU32) -> bool {
        const SPECIAL: u8 = flags::LEARNS | flags::READS_ALL | flags::COUNTS;
        let is_ordinary = self.flags.load(Ordering::Relaxed) & SPECIAL == 0;
        if is_ordinary {
            self.release(cost);
        }
        is_ordinary
    }

    #[inline]
    fn release(&self, cost: NonZeroU32) {
        self.released.fetch_add(cost.get().into(), Ordering::AcqRel);
    }
}

/// Returns the end of a request without a response.
fn unreported(was_sent: bool) -> End<'static> {
    if was_sent { End::Unconfirmed } else { End::Unsent }
}
