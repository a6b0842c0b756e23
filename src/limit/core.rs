//! What is known without the lock: the path of a request that need not wait, and what is counted on it.

use std::{num::NonZeroU32, sync::Arc};

use super::{
    PermitRequest, Refusal,
    gcra::Bucket,
    sync::{AtomicU64, Ordering},
    ticker::Ticker,
};

/// Someone waits, or the server has said something that holds.
pub(super) const BUSY: u64 = 1 << 63;
/// The server has said something that holds.
pub(super) const HEARD: u64 = 1 << 62;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) ticker: Ticker,
    /// What may be taken from without the lock, while nobody waits and the server has said nothing.
    pub(super) shared: Option<Arc<Bucket>>,
    /// Where nothing is shared.
    own_tally: AtomicU64,
    /// Granted and woken, but not polled yet.
    pub(super) called: AtomicU64,
    refused: AtomicU64,
    released: AtomicU64,
    /// How long permits may be held; see [`slack`](super::line::slack).
    pub(super) slack: AtomicU64,
}

/// What came of asking without the lock.
pub(super) enum AtOnce {
    Granted,
    /// Nobody waits, and the permits come free at this moment.
    NotBefore {
        now: u64,
        due: u64,
    },
    AskTheLine,
    /// The deadline is over.
    TooLate,
}

impl Core {
    pub(super) fn new(ticker: Ticker, shared: Option<Arc<Bucket>>, slack: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let slack = AtomicU64::new(slack);
        Self { ticker, shared, own_tally: zero(), called: zero(), refused: zero(), released: zero(), slack }
    }

    /// The permits granted, and in the highest bits whether a newcomer has to ask under the lock. One number, so
    /// that who counts itself learns in the same step whether it may go on.
    pub(super) fn tally(&self) -> &AtomicU64 {
        self.shared.as_ref().map_or(&self.own_tally, |bucket| &bucket.tally)
    }

    fn is_over(&self, ask: &PermitRequest, now: u64) -> bool {
        ask.deadline.is_some_and(|deadline| self.ticker.at(deadline) < now)
    }

    /// The bucket that may be asked for so many permits without the lock.
    fn way(&self, cost: NonZeroU32) -> Option<&Bucket> {
        let bucket = self.shared.as_deref().filter(|bucket| cost.get() <= bucket.burst())?;
        let open = bucket.tally.load(Ordering::Acquire) & BUSY == 0;
        open.then_some(bucket).filter(|bucket| !bucket.is_closed())
    }

    /// The path of a request that need not wait: counted first, so that whoever hears the server meanwhile
    /// either is seen here or sees this one.
    pub(super) fn take_at_once(&self, ask: &PermitRequest) -> AtOnce {
        let now = self.ticker.now();
        if self.is_over(ask, now) {
            return AtOnce::TooLate;
        }
        match self.way(ask.cost) {
            Some(bucket) => Self::take_of(bucket, ask.cost, now),
            None => AtOnce::AskTheLine,
        }
    }

    /// Only this way, and only where it is open: whoever has to ask the line reads the clock there.
    pub(super) fn takes_without_the_line(&self, ask: &PermitRequest) -> bool {
        self.way(ask.cost).is_some_and(|bucket| {
            let now = self.ticker.now();
            !self.is_over(ask, now) && matches!(Self::take_of(bucket, ask.cost, now), AtOnce::Granted)
        })
    }

    fn take_of(bucket: &Bucket, cost: NonZeroU32, now: u64) -> AtOnce {
        let (permits, tally) = (u64::from(cost.get()), &bucket.tally);
        match bucket.due(now, cost) {
            Some(due) if due <= now => {}
            Some(due) => return AtOnce::NotBefore { now, due },
            None => return AtOnce::AskTheLine,
        }
        let before = tally.fetch_add(permits, Ordering::AcqRel);
        if before & BUSY == 0 && bucket.take(cost, now) {
            return AtOnce::Granted;
        }
        tally.fetch_sub(permits, Ordering::AcqRel);
        AtOnce::AskTheLine
    }

    /// Whether a request that was granted then may leave now, without a look at the line.
    pub(super) fn may_go(&self, at: u64) -> bool {
        self.tally().load(Ordering::Acquire) & HEARD == 0
            && self.ticker.now().saturating_sub(at) <= self.slack.load(Ordering::Acquire)
    }

    pub(super) fn release(&self, cost: NonZeroU32) {
        self.released.fetch_add(u64::from(cost.get()), Ordering::AcqRel);
    }

    pub(super) fn refuse(&self, refusal: Refusal) -> Refusal {
        self.refused.fetch_add(1, Ordering::Relaxed);
        refusal
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn granted(&self) -> u64 {
        self.tally().load(Ordering::Acquire) & !(BUSY | HEARD)
    }

    pub(super) fn in_flight(&self) -> u64 {
        // What is released was granted before: read in this order the difference is never too small.
        let released = self.released.load(Ordering::Acquire);
        self.granted().saturating_sub(released)
    }
}
