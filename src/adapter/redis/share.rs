//! What one process keeps to while the store does not answer: its part of every quota.

use std::num::NonZeroU32;

use super::kind::Kind;
use crate::{
    error::InvalidConfig,
    limit::{Gcra, Meter, Rings},
    policy::Quota,
};

/// The limiter of the share, and what went through it.
#[derive(Debug)]
pub(super) struct Share {
    meter: Either,
    /// Permits that the store has to be told of, the limit of the share at the most.
    used: u64,
    used_at: u64,
    limit: u64,
}

#[derive(Debug)]
enum Either {
    Bucket(Gcra),
    Window(Rings),
}

impl Share {
    /// Begins with everything spent at that moment: what the others did last is not known here.
    pub(super) fn begin(kind: Kind, quotas: &[Quota], at: u64) -> Self {
        let mut meter = match kind {
            Kind::TokenBucket => Either::Bucket(Gcra::new(quotas, None)),
            Kind::SlidingWindow => Either::Window(Rings::new(quotas, None)),
        };
        match &mut meter {
            Either::Bucket(bucket) => bucket.empty(at),
            Either::Window(window) => window.empty(at),
        }
        let limit = quotas.iter().map(|quota| u64::from(quota.limit())).max().unwrap_or(0);
        Self { meter, used: 0, used_at: 0, limit }
    }

    pub(super) fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        let taken = match &mut self.meter {
            Either::Bucket(bucket) => bucket.take(cost, now),
            Either::Window(window) => window.take(cost, now),
        };
        if taken {
            (self.used, self.used_at) = ((self.used + u64::from(cost.get())).min(self.limit), now);
        }
        taken
    }

    /// What was used and still counts, in a window of that length.
    pub(super) fn used(&self, now: u64, longest: u64) -> u64 {
        if now.saturating_sub(self.used_at) > longest { 0 } else { self.used }
    }

    /// The store knows of so many.
    pub(super) fn told(&mut self, permits: u64) {
        self.used = self.used.saturating_sub(permits);
    }

    pub(super) fn forecast(&self, start: u64, total: u64) -> u64 {
        match &self.meter {
            Either::Bucket(bucket) => bucket.forecast(start, total),
            Either::Window(window) => window.forecast(start, total),
        }
    }

    pub(super) fn largest(&self) -> u32 {
        match &self.meter {
            Either::Bucket(bucket) => bucket.largest(),
            Either::Window(window) => window.largest(),
        }
    }

    pub(super) fn available(&self, now: u64) -> u32 {
        match &self.meter {
            Either::Bucket(bucket) => bucket.available(now),
            Either::Window(window) => window.available(now),
        }
    }
}

/// Each quota's part for one of so many processes.
pub(super) fn parts(
    kind: Kind,
    quotas: &[Quota],
    processes: NonZeroU32,
) -> Result<Vec<Quota>, InvalidConfig> {
    let part = |quota: &Quota| {
        let limit = quota.limit() / processes;
        // A bucket has one at least, and all of them together no more than the whole one.
        let (most, what) = kind.most(quota);
        if processes.get() > most {
            let expected = format!("at most {most}, the {what} of the smallest quota");
            return Err(InvalidConfig::new("processes", processes.to_string(), expected));
        }
        let burst = (quota.burst() / processes).clamp(1, (limit - 1).max(1));
        Quota::new(limit, quota.window())?.with_margin(quota.margin())?.with_burst(burst)
    };
    quotas.iter().map(part).collect()
}
