//! The fast path: a request that need not wait takes its permits without a lock.

use std::{num::NonZeroU32, sync::Arc};

use super::{
    clock::Clock,
    counts::Counts,
    sync::{AtomicBool, AtomicU64, Ordering},
};
use crate::{
    error::Refusal,
    limit::{algorithm::bucket::Bucket, permit::ResponseInfo, permit_request::PermitRequest},
    policy::adaptive::Progress,
};

/// Flag: a request waits, or a server limit applies.
pub(super) const BUSY: u64 = 1 << 63;
/// Flag: a server limit applies.
pub(super) const LIMITED: u64 = 1 << 62;

#[derive(Debug)]
pub(in crate::limit) struct FastPath {
    pub(super) clock: Clock,
    /// The bucket from which requests take permits without the lock while neither `BUSY` nor `LIMITED` is set.
    pub(super) shared: Option<Arc<Bucket>>,
    /// The counts of a queue without a shared bucket.
    own_counts: Counts,
    /// The number of waiters whose permits are granted and whose tasks are woken, but not polled yet.
    pub(super) woken: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) has_quota: AtomicBool,
    /// Whether the algorithm learns, and so needs `not_accepted`.
    learns: bool,
    /// The number of permits released without an accepted request.
    not_accepted: AtomicU64,
    /// Whether the algorithm learns from rate-limit headers.
    pub(super) reads_headers: AtomicBool,
    /// Whether the learned state changed since it was last reported.
    pub(super) has_news: AtomicBool,
    /// Whether the remaining permits that the server reported limit the grants even if the limiter has a quota.
    pub(super) obeys_remaining: AtomicBool,
    /// How long a granted permit stays valid: see [`slack`](super::wait_list::slack).
    pub(super) slack: AtomicU64,
}

/// The result of an attempt to take permits without the lock.
pub(super) enum FastGrant {
    Granted {
        now: u64,
    },
    /// No request waits, but the permits only become available at `due`.
    NotBefore {
        now: u64,
        due: u64,
    },
    NeedsLock,
}

impl FastPath {
    pub(super) fn new(
        clock: Clock,
        shared: Option<Arc<Bucket>>,
        learns: bool,
        (slack, has_quota): (u64, bool),
    ) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            clock,
            shared,
            own_counts: Counts::default(),
            woken: zero(),
            refused: zero(),
            has_quota: AtomicBool::new(has_quota),
            learns,
            not_accepted: zero(),
            reads_headers: AtomicBool::new(!has_quota),
            has_news: AtomicBool::new(false),
            obeys_remaining: AtomicBool::new(false),
            slack: AtomicU64::new(slack),
        }
    }

    fn counts(&self) -> &Counts {
        self.shared.as_ref().map_or(&self.own_counts, |bucket| &bucket.counts)
    }

    /// Returns the count of granted permits, with the flags in the highest bits.
    pub(super) fn tally(&self) -> &AtomicU64 {
        &self.counts().tally
    }

    /// Counts permits that were granted under the lock.
    pub(super) fn count_locked(&self, permits: u64) {
        match &self.shared {
            Some(bucket) => _ = bucket.counts.tally.fetch_add(permits, Ordering::AcqRel),
            // No other thread changes this tally while the lock is held, so no read-modify-write operation is needed.
            None => {
                let before = self.own_counts.tally.load(Ordering::Relaxed);
                self.own_counts.tally.store(before.wrapping_add(permits), Ordering::Release);
            }
        }
    }

    pub(super) fn is_over(&self, request: &PermitRequest, now: u64) -> bool {
        request.deadline().is_some_and(|deadline| self.clock.at(deadline) < now)
    }

    /// Returns the bucket if `cost` permits may be taken from it without the lock.
    fn open(&self, cost: NonZeroU32) -> Option<&Bucket> {
        let bucket = self.shared.as_deref().filter(|bucket| cost.get() <= bucket.quota.burst())?;
        let open = bucket.counts.tally.load(Ordering::Acquire) & BUSY == 0;
        open.then_some(bucket).filter(|bucket| !bucket.is_closed())
    }

    /// Takes the permits if that needs no lock. Otherwise takes nothing.
    pub(super) fn attempt(&self, request: &PermitRequest) -> FastGrant {
        let cost = request.cost();
        let Some(bucket) = self.open(cost) else { return FastGrant::NeedsLock };
        let now = self.clock.now();
        match bucket.due(now, cost) {
            _ if self.is_over(request, now) => return FastGrant::NeedsLock,
            Some(due) if due <= now => {}
            Some(due) => return FastGrant::NotBefore { now, due },
            None => return FastGrant::NeedsLock,
        }
        let (permits, tally) = (u64::from(cost.get()), &bucket.counts.tally);
        // Counts the permits before taking them. If a server limit arrives concurrently, either its thread counts these
        // permits as in flight, or this thread sees its flag.
        let before = tally.fetch_add(permits, Ordering::AcqRel);
        if before & BUSY == 0 && bucket.take(cost, now) {
            return FastGrant::Granted { now };
        }
        tally.fetch_sub(permits, Ordering::AcqRel);
        FastGrant::NeedsLock
    }

    /// Returns the current time if the lock-free state shows that a permit granted at `at` is still valid.
    pub(super) fn is_valid(&self, at: u64) -> Option<u64> {
        if self.tally().load(Ordering::Acquire) & LIMITED != 0 {
            return None;
        }
        let now = self.clock.now();
        (now.saturating_sub(at) <= self.slack.load(Ordering::Acquire)).then_some(now)
    }

    /// Returns whether the remaining permits of this response apply. If the limiter has a quota, they apply only if the
    /// response is throttled or `obeys_remaining` is set.
    pub(super) fn obeys_remaining(&self, response: &ResponseInfo<'_>) -> bool {
        (response.is_throttled()
            || !self.has_quota.load(Ordering::Acquire)
            || self.obeys_remaining.load(Ordering::Acquire))
            && !response.remaining().is_empty()
    }

    pub(super) fn release(&self, cost: NonZeroU32) {
        self.counts().released.fetch_add(u64::from(cost.get()), Ordering::AcqRel);
    }

    /// Releases permits whose request was not sent, or was not accepted by the server.
    pub(super) fn release_without_acceptance(&self, cost: NonZeroU32) {
        // Counts before the release, so that `progress` never counts these permits as accepted.
        if self.learns {
            self.not_accepted.fetch_add(u64::from(cost.get()), Ordering::AcqRel);
        }
        self.release(cost);
    }

    pub(super) fn refuse(&self, refusal: Refusal) -> Refusal {
        self.refused.fetch_add(1, Ordering::Relaxed);
        refusal
    }

    pub(super) fn progress(&self) -> Progress {
        let released = self.counts().released.load(Ordering::Acquire);
        let accepted = released.saturating_sub(self.not_accepted.load(Ordering::Acquire));
        Progress { accepted, in_flight: self.granted().saturating_sub(released) }
    }

    pub(super) fn granted(&self) -> u64 {
        self.tally().load(Ordering::Acquire) & !(BUSY | LIMITED)
    }

    pub(super) fn in_flight(&self) -> u64 {
        // Reads `released` before the granted permits, because every released permit was granted earlier. Their
        // difference is therefore never too small.
        let released = self.counts().released.load(Ordering::Acquire);
        self.granted().saturating_sub(released)
    }
}
