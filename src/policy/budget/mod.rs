use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::retry::RetryDecision;
use crate::config::InvalidConfig;

#[cfg(test)]
mod tests;

/// Limits the retries of all calls together, so that an outage does not multiply the load on the server.
///
/// ```
/// use tower_outbound::retry::{Budget, RetryLayer};
///
/// // Two services of one server share a budget of 10 retries.
/// let budget = Budget::new().with_capacity(140)?;
/// let (reads, writes) =
///     (RetryLayer::new().with_budget(budget.clone()), RetryLayer::new().with_budget(budget.clone()));
/// assert_eq!(budget.left(), 140);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// Each retry spends credit. A call that succeeds at its first attempt returns a little credit, and a call that
/// succeeds after a retry returns the cost of that retry. If too little credit is left, a failed call is not retried.
/// First attempts are never delayed.
///
/// | calls | credit | attempts per call in the long run |
/// |---|---|---|
/// | all fail | pays for 35 retries, or 100 after throttled responses, then for none | 1 |
/// | half of the attempts fail | spent within about 100 calls | 1.07 |
/// | one in five or fewer fails | nearly full | as without a budget |
///
/// # Costs
///
/// The numbers are those of the AWS SDKs' standard mode 2.1
/// (<https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html>):
///
/// - The default capacity is 500, and the budget starts full.
/// - A retry costs 14, or 5 after a throttled response.
/// - A success at the first attempt returns 1. After an outage, 14 such successes pay for one retry, and 500 refill the
///   budget.
///
/// # Clone
///
/// All clones of a budget share its credit. [`with_capacity`](Self::with_capacity) returns a budget with its own, full
/// credit.
#[derive(Debug, Clone)]
pub struct Budget {
    left: Arc<AtomicU32>,
    capacity: u32,
}

const RETRY_COST: u32 = 14;
const THROTTLED_COST: u32 = 5;
const SUCCESS_GAIN: u32 = 1;

impl Budget {
    /// Returns a full budget with the numbers of the AWS SDKs.
    pub fn new() -> Self {
        Self::full(500)
    }

    /// Sets the capacity, which is the credit for retries at the start of an outage.
    ///
    /// # Errors
    ///
    /// Returns an error if the capacity is below 14, the cost of a retry.
    pub fn with_capacity(self, capacity: u32) -> Result<Self, InvalidConfig> {
        if capacity < RETRY_COST {
            let expected = format!("at least {RETRY_COST}, the cost of a retry");
            let error = InvalidConfig::new("budget capacity", capacity.to_string(), expected);
            return Err(error.at("capacity"));
        }
        Ok(Self::full(capacity))
    }

    fn full(capacity: u32) -> Self {
        Self { left: Arc::new(AtomicU32::new(capacity)), capacity }
    }

    /// Returns the cost of a retry.
    pub(crate) fn cost_of(&self, decision: RetryDecision) -> u32 {
        match decision {
            RetryDecision::Throttled => THROTTLED_COST,
            _ => RETRY_COST,
        }
    }

    /// Spends the cost of a retry and returns that cost. Returns `None`, and spends nothing, if too little credit is
    /// left.
    pub(crate) fn try_spend(&self, decision: RetryDecision) -> Option<u32> {
        let cost = self.cost_of(decision);
        // `Relaxed` suffices, because no other memory access depends on the credit.
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(cost)).ok()?;
        Some(cost)
    }

    /// Adds credit after a successful call: the cost of its last retry, or the gain if it had no retry. The credit
    /// never exceeds the capacity.
    pub(crate) fn succeeded(&self, last_cost: Option<u32>) {
        let gain = last_cost.unwrap_or(SUCCESS_GAIN);
        // If the budget is full, its credit is read but not written, so that calls on several cores share the cache
        // line.
        let give = |left: u32| (left < self.capacity).then(|| left.saturating_add(gain).min(self.capacity));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }

    /// Spends the cost of a retry again, because the body of its response broke after
    /// [`succeeded`](Self::succeeded) had returned the cost.
    pub(crate) fn take_back(&self) {
        let take = |left: u32| Some(left.saturating_sub(RETRY_COST));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    }

    /// Returns the remaining credit, from 0 to the [`capacity`](Self::capacity).
    pub fn left(&self) -> u32 {
        self.left.load(Ordering::Relaxed)
    }

    /// Returns the capacity.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}
