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

/// The priority whose first waiter is served next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) rank: usize,
    /// The number of permits that are set aside for another priority. The waiter must leave them.
    pub(crate) reserve: u64,
}

/// Divides permits by deficit round robin. A lower priority earns credit with every grant while its requests wait. With
/// this credit, the queue sets permits aside for its first waiter, at most one for each permit that the highest waiting
/// priority takes. Lower priorities therefore delay a new request of a higher priority by at most one permit.
#[derive(Debug, Clone)]
pub(crate) struct Shares {
    /// The share of each lower priority, in thousandths of all permits.
    share: u64,
    /// Whether permits are set aside one by one. Otherwise, a request takes its turn as soon as its credit suffices.
    saves: bool,
    /// The credit of each priority, in thousandths of a permit. Negative after a grant for which not all permits were
    /// set aside.
    credit: [i64; Priority::COUNT],
    /// The saved permits. Only one priority saves at a time, because the bucket must be able to hold them.
    saved: Option<Saved>,
    /// The rank of the last priority that took permits while it was the highest waiting priority.
    last_top: usize,
    /// The number of permits that may be set aside until that priority takes permits again.
    allowance: u64,
}

/// The permits that are set aside for the first waiter of a lower priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Saved {
    rank: usize,
    permits: u64,
    /// The number of these permits that were available at the last grant.
    backed: u64,
}

/// Returns the rank of the highest waiting priority.
fn top(heads: &Heads) -> Option<usize> {
    heads.iter().position(Option::is_some)
}

fn cost_of(head: Option<NonZeroU32>) -> u64 {
    head.map_or(0, |cost| u64::from(cost.get()))
}

fn thousandths(permits: u64, share: u64) -> i64 {
    i64::try_from(permits.saturating_mul(share)).unwrap_or(i64::MAX)
}

impl Shares {
    /// The largest share of a lower priority, in percent. With it, two lower priorities leave half of the permits.
    pub(crate) const LARGEST: u32 = 25;

    /// Gives each lower priority a tenth of the permits.
    pub(crate) const fn new() -> Self {
        let share = PERMIT / 10;
        Self { share, saves: true, credit: [0; Priority::COUNT], saved: None, last_top: 0, allowance: 0 }
    }

    /// Gives each lower priority this percentage of the permits, at most [`LARGEST`](Self::LARGEST).
    pub(crate) fn set_percent(&mut self, percent: u32) {
        self.share = u64::from(percent.min(Self::LARGEST)) * PERMIT / 100;
    }

    /// Sets no permits aside for a request that costs several, because permits of an external store expire.
    pub(crate) fn save_none(&mut self) {
        self.saves = false;
    }

    /// Discards all credit and all saved permits, because at most one priority has waiters.
    pub(crate) fn reset(&mut self) {
        (self.credit, self.saved) = ([0; Priority::COUNT], None);
    }

    /// Discards the credit and the saved permits of a priority without waiters.
    pub(crate) fn forget(&mut self, rank: usize) {
        self.credit[rank] = 0;
        self.discard_saved(rank);
    }

    fn discard_saved(&mut self, rank: usize) {
        self.saved = self.saved.filter(|saved| saved.rank != rank);
    }

    /// Returns the priority that is served next. A request can take at most `largest` permits.
    pub(crate) fn next(&self, heads: &Heads, largest: u64) -> Option<Turn> {
        let top = top(heads)?;
        let first = Turn { rank: top, reserve: 0 };
        let saved = self.saved_from(top).filter(|saved| saved.rank > top && heads[saved.rank].is_some());
        let Some(Saved { rank, permits, .. }) = saved else { return Some(first) };
        let is_complete = permits >= cost_of(heads[rank]);
        let has_room = permits.saturating_add(cost_of(heads[top])) <= largest;
        Some(if is_complete || !has_room {
            Turn { rank, reserve: 0 }
        } else if self.saves {
            Turn { reserve: permits, ..first }
        } else {
            first
        })
    }

    /// Returns the number of permits that must remain if a new request is served before the first waiters, `heads`.
    /// Returns `None` if a waiter is served first.
    pub(crate) fn reserve_of_new(
        &self,
        mut heads: Heads,
        rank: usize,
        cost: NonZeroU32,
        largest: u64,
    ) -> Option<u64> {
        if heads[rank].is_some() {
            return None;
        }
        heads[rank] = Some(cost);
        let turn = self.next(&heads, largest)?;
        (turn.rank == rank).then_some(turn.reserve)
    }

    /// Records that a new request was served before the first waiters, `heads`.
    pub(crate) fn grant_new(&mut self, heads: Heads, rank: usize, cost: NonZeroU32) {
        let mut before = heads;
        before[rank] = Some(cost);
        self.grant(rank, cost.get().into(), &before, &heads);
    }

    /// Returns the permits that the priority `top` must leave. A priority that has just become the highest leaves the
    /// permits that were available at the last grant, and at most one more.
    fn saved_from(&self, top: usize) -> Option<Saved> {
        self.saved.map(|saved| match top == self.last_top {
            true => saved,
            false => Saved { permits: saved.permits.min(saved.backed + 1), ..saved },
        })
    }

    /// Records that the first waiter of the priority `rank` has taken `cost` permits. `before` contains the heads
    /// before this grant, and `after` contains the heads after it.
    pub(crate) fn grant(&mut self, rank: usize, cost: u64, before: &Heads, after: &Heads) {
        let Some(top_before) = top(before) else { return };
        for (head, credit) in before.iter().zip(&mut self.credit).skip(top_before + 1) {
            if head.is_some() {
                *credit = credit.saturating_add(thousandths(cost, self.share));
            }
        }
        let rest = self.credit[rank].saturating_sub(thousandths(cost, PERMIT));
        if rank > top_before {
            self.credit[rank] = rest;
            self.saved = None;
        } else {
            // A priority keeps its credit while it is the highest, because a request of a higher priority may arrive
            // before each of its grants.
            self.credit[rank] = rest.max(0).min(self.credit[rank]);
            let saved = self.saved_from(rank);
            self.saved = saved.map(|saved| Saved { backed: saved.permits, ..saved });
            self.discard_saved(rank);
            (self.last_top, self.allowance) = (rank, cost);
        }
        for (rank, _) in after.iter().enumerate().filter(|(_, head)| head.is_none()) {
            self.forget(rank);
        }
        // A request that has just arrived waits for no permits but those that were already being saved.
        if rank == top_before || top(after) == Some(self.last_top) {
            self.save(after);
        }
    }

    /// Sets more permits aside for the priority that is already saving. Otherwise starts with the priority that has the
    /// most credit.
    fn save(&mut self, heads: &Heads) {
        let richest = (0..Priority::COUNT).rev().max_by_key(|rank| self.credit[*rank]);
        let new = richest.map(|rank| Saved { rank, permits: 0, backed: 0 });
        let Some(saved) = self.saved.or(new) else { return };
        let credit = u64::try_from(self.credit[saved.rank]).unwrap_or(0) / PERMIT;
        if !self.saves {
            let permits = cost_of(heads[saved.rank]);
            let is_enough = permits > 0 && credit >= permits;
            self.saved = is_enough.then_some(Saved { rank: saved.rank, permits, backed: permits });
            return;
        }
        let most = cost_of(heads[saved.rank]).min(credit);
        let more = most.saturating_sub(saved.permits).min(self.allowance);
        self.allowance -= more;
        let permits = saved.permits + more;
        self.saved = (permits > 0).then_some(Saved { permits, ..saved });
    }

    /// Returns the number of permits that are granted until a waiter has its own. The waiter and all earlier waiters of
    /// its priority need `own` permits. All waiters of each priority need `wanted` permits, and requests that overtake
    /// this waiter take `more`. The result may be a few permits too low.
    pub(crate) fn total(&self, rank: usize, own: u64, wanted: &[u64; Priority::COUNT], more: u64) -> u64 {
        let higher: u64 = wanted[..rank].iter().sum();
        let lower = wanted[rank + 1..].iter().filter(|wanted| **wanted > 0);
        let rest = PERMIT - self.share * lower.clone().count() as u64;
        let first = own.saturating_add(higher).saturating_add(more);
        // A lower priority gets its first permit only after it has earned the credit.
        let shared = (first.saturating_mul(self.share) / rest).saturating_sub(1);
        let all = first.saturating_add(lower.map(|wanted| shared.min(*wanted)).sum());
        let credit = u64::try_from(self.credit[rank]).unwrap_or(0);
        match own.saturating_mul(PERMIT).saturating_sub(credit).checked_div(self.share) {
            Some(by_share) if higher > 0 => all.min(by_share),
            _ => all,
        }
    }
}
