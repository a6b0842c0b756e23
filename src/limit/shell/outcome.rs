//! Receives the ends of requests, and counts the refusals. An ordinary response needs no lock.

use std::{
    num::NonZeroU32,
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{Shared, flags};
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
            self.ended_elsewhere((cost, at), taken);
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

    /// Ends a request whose response concerns only other limiters, or no rate at all.
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
}

/// Returns the end of a request without a response.
fn unreported(was_sent: bool) -> End<'static> {
    if was_sent { End::Unconfirmed } else { End::Unsent }
}

const LINES: usize = 8;

/// A counter in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// The number of requests that were refused without the lock.
///
/// Each thread counts in one of a few cache lines. With one counter for all threads, a refusal by two threads takes 1.7
/// times as long as a check of governor, and 1.1 times with these (bench `limiter`, section `refusal`).
///
/// The lines are allocated with the first refusal, because most keys of a `Keyed` never refuse a request.
#[derive(Debug, Default)]
pub(super) struct Refusals(OnceLock<Box<[Line; LINES]>>);

static THREADS: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    static LINE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % LINES;
}

impl Refusals {
    pub(super) fn add(&self) {
        // Without thread locals, such as at the end of a thread, the first line counts.
        let line = LINE.try_with(|line| *line).unwrap_or(0);
        if let Some(Line(count)) = self.0.get_or_init(Box::default).get(line) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn sum(&self) -> u64 {
        let lines = self.0.get().into_iter().flat_map(|lines| lines.iter());
        lines.map(|Line(count)| count.load(Ordering::Relaxed)).sum()
    }
}
