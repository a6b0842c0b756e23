//! Divides the permits of a limiter among waiting requests of three priorities.

use std::num::NonZeroU32;

#[cfg(test)]
mod tests;

/// The priority of a request in the queue of a limiter.
///
/// The limiter serves a queued request of a higher priority first. Each lower priority with queued requests still gets
/// a share of the permits, 10 % by default: see
/// [`with_lower_priority_share`](crate::limit::LocalLimiter::with_lower_priority_share). Requests of the same priority
/// are served first in, first out.
///
/// Insert this value into the request's extensions, or use a setter:
///
/// - [`RequestBuilder::priority`](crate::client::RequestBuilder::priority) for one request
/// - [`StackBuilder::with_priority`](crate::stack::StackBuilder::with_priority) for all requests of a client that set
///   none
/// - [`RateLimitLayer::with_priority`](crate::limit::RateLimitLayer::with_priority) for all requests of a layer. Its
///   function replaces the extension
/// - [`PermitRequest::with_priority`](crate::limit::PermitRequest::with_priority) without a layer
///
/// ```
/// use tower_outbound::limit::Priority;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Priority::High);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Priority {
    /// Served before all others. An example is a request for which a user waits.
    High,
    /// The default.
    #[default]
    Normal,
    /// Served last. An example is a request of a nightly job.
    Low,
}

impl Priority {
    /// The number of priorities.
    pub(crate) const COUNT: usize = 3;

    /// Returns the position in the order of service, which is 0 for the highest priority.
    pub(crate) const fn rank(self) -> usize {
        self as usize
    }
}

/// One permit, in the unit of `share` and `credit`.
const PERMIT: u64 = 1_000;

/// The cost of the first waiter of each priority. `None` if no request of the priority waits.
pub(crate) type Heads = [Option<NonZeroU32>; Priority::COUNT];

/// Divides permits by deficit round robin. A lower priority earns credit with every grant while its requests wait. Its
/// first waiter is served before those of higher priorities as soon as the credit covers its cost.
///
/// While the requests of the highest priority arrive one by one, lower priorities take permits for one request between
/// two of them, or several up to the cost of the last one. Lower priorities therefore delay a new request of a higher
/// priority by at most the permits of the costliest request.
#[derive(Debug, Clone)]
pub(crate) struct Shares {
    /// The share of each lower priority, in thousandths of all permits.
    share: u64,
    /// The credit of each priority, in thousandths of a permit.
    credit: [u64; Priority::COUNT],
    /// The rank of the last priority that took permits while it was the highest waiting priority.
    last_top: usize,
    /// The number of permits that lower priorities have taken since `last_top` took permits.
    taken: u64,
    /// The maximum of `taken` after a second or further request. The first request may exceed it.
    allowance: u64,
}

/// Returns the rank of the highest waiting priority.
fn top(heads: &Heads) -> Option<usize> {
    heads.iter().position(Option::is_some)
}

impl Default for Shares {
    fn default() -> Self {
        Self::new()
    }
}

impl Shares {
    /// The largest share of a lower priority, in percent. With it, two lower priorities leave half of the permits.
    pub(crate) const LARGEST: u32 = 25;

    /// Gives each lower priority a tenth of the permits.
    pub(crate) const fn new() -> Self {
        Self { share: PERMIT / 10, credit: [0; Priority::COUNT], last_top: 0, taken: 0, allowance: 0 }
    }

    /// Gives each lower priority this percentage of the permits, at most [`LARGEST`](Self::LARGEST).
    pub(crate) fn set_percent(&mut self, percent: u32) {
        self.share = u64::from(percent.min(Self::LARGEST)) * PERMIT / 100;
    }

    /// Discards all credit, because at most one priority has waiters.
    pub(crate) fn reset(&mut self) {
        self.credit = [0; Priority::COUNT];
    }

    /// Discards the credit of a priority whose last waiter has left without permits.
    pub(crate) fn forget(&mut self, rank: usize) {
        self.credit[rank] = 0;
        if rank == self.last_top {
            self.allowance = 0;
        }
    }

    /// Returns the rank of the priority that is served next: the lowest one whose credit covers the cost of its first
    /// waiter, otherwise the highest.
    pub(crate) fn next(&self, heads: &Heads) -> Option<usize> {
        let top = top(heads)?;
        let is_due = |rank: &usize| {
            let cost = heads[*rank].map_or(u64::MAX, |cost| u64::from(cost.get()));
            let is_within = top == self.last_top && self.taken.saturating_add(cost) <= self.allowance;
            self.credit[*rank] >= cost.saturating_mul(PERMIT) && (self.taken == 0 || is_within)
        };
        (top + 1..Priority::COUNT).rev().find(is_due).or(Some(top))
    }

    /// Returns whether a new request is served before the first waiters, `heads`.
    pub(crate) fn serves_new(&self, mut heads: Heads, rank: usize, cost: NonZeroU32) -> bool {
        heads[rank].replace(cost).is_none() && self.next(&heads) == Some(rank)
    }

    /// Records that a new request was served before the first waiters, `heads`.
    pub(crate) fn grant_new(&mut self, heads: Heads, rank: usize, cost: NonZeroU32) {
        let mut before = heads;
        before[rank] = Some(cost);
        self.grant(rank, cost.get().into(), &before, &heads);
    }

    /// Records that the first waiter of the priority `rank` has taken `cost` permits. `before` contains the heads
    /// before this grant, and `after` contains the heads after it.
    pub(crate) fn grant(&mut self, rank: usize, cost: u64, before: &Heads, after: &Heads) {
        let Some(top) = top(before) else { return };
        for (head, credit) in before.iter().zip(&mut self.credit).skip(top + 1) {
            if head.is_some() {
                *credit = credit.saturating_add(cost.saturating_mul(self.share));
            }
        }
        self.credit[rank] = self.credit[rank].saturating_sub(cost.saturating_mul(PERMIT));
        if rank > top {
            self.taken = self.taken.saturating_add(cost);
        } else {
            // Behind further waiters of the highest priority, the credit alone decides.
            let allowance = if after[rank].is_some() { u64::MAX } else { cost };
            (self.last_top, self.taken, self.allowance) = (rank, 0, allowance);
        }
        for (head, credit) in after.iter().zip(&mut self.credit) {
            if head.is_none() {
                *credit = 0;
            }
        }
    }

    /// Returns the number of permits that are granted until a waiter has its own. The waiter and all earlier waiters of
    /// its priority need `own` permits. All waiters of each priority need `wanted` permits, each of them at most
    /// `costliest`. The result may be too low by the permits of one request for each lower priority.
    pub(crate) fn total(
        &self,
        rank: usize,
        own: u64,
        wanted: &[u64; Priority::COUNT],
        costliest: u64,
    ) -> u64 {
        let higher: u64 = wanted[..rank].iter().sum();
        let lower = wanted[rank + 1..].iter().filter(|wanted| **wanted > 0);
        let rest = PERMIT - self.share * lower.clone().count() as u64;
        let first = own.saturating_add(higher);
        // A lower priority gets its permits only after it has earned the credit for a whole request.
        let shared = (first.saturating_mul(self.share) / rest).saturating_sub(1) / costliest * costliest;
        let all = first.saturating_add(lower.map(|wanted| shared.min(*wanted)).sum());
        match own.saturating_mul(PERMIT).saturating_sub(self.credit[rank]).checked_div(self.share) {
            Some(by_share) if higher > 0 => all.min(by_share),
            _ => all,
        }
    }
}
