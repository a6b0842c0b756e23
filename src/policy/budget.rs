//! How many retries all calls together may make.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::Cause;
use crate::error::InvalidConfig;

/// Lets a failed request be sent again while enough of the others succeed; without it every call of an outage is
/// sent several times, and the server is hit hardest when it can bear least.
///
/// A retry spends its cost. Success at the first try gives a little back, success after a retry gives back what
/// that retry had spent. When too little is left, a call ends with the failure that it has; calls themselves are
/// never held up.
///
/// | of each call of a server | what is left | attempts for a call, in the long run |
/// |---|---|---|
/// | all fail | 35 retries, then no more (after a throttle, 100) | 1 |
/// | half fail, each attempt by chance | falls to nothing within some 100 calls | 1.07 |
/// | one in five or fewer fail | stays full, or nearly | as without a budget |
///
/// In between it binds at the rate at which successes give back. With a part `p` of attempts failing, calls that
/// succeed at once give back `1 - p` each and a retry that fails costs 14, so there are `(1 - p) / 14` failed
/// retries for a call and `(1 - p) / 14p` retries in all. A server that recovers pays for one retry with every 14
/// calls that succeed at once, and for all 35 after 500.
///
/// # Default
///
/// The numbers of the AWS SDKs' standard mode, version 2.1
/// (<https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html>): a capacity of 500; a retry
/// costs 14, after a throttle 5; success at the first try gives 1 back. It starts full.
///
/// # Clone
///
/// Clones share what is left. A setter begins a new budget, full and shared with none.
///
/// ```
/// use tower_outbound::policy::{Budget, Cause};
///
/// let budget = Budget::new();
/// let spent = budget.try_spend(Cause::Transient).expect("it starts full");
/// assert_eq!(budget.left(), 486);
///
/// // The retry helped.
/// budget.succeeded(Some(spent));
/// assert_eq!(budget.left(), 500);
///
/// // The server is down: 35 retries for all calls together, then only first attempts.
/// let retries = (0..1_000).filter(|_| budget.try_spend(Cause::Transient).is_some()).count();
/// assert_eq!((retries, budget.left()), (35, 10));
///
/// // Back again: four calls succeed at once and pay for a retry.
/// (0..4).for_each(|_| budget.succeeded(None));
/// assert!(budget.try_spend(Cause::Transient).is_some());
/// ```
#[derive(Clone)]
pub struct Budget {
    left: Arc<AtomicU32>,
    capacity: u32,
    retry_cost: u32,
    throttled_cost: u32,
    success_gain: u32,
}

/// What a retry has spent of its [`Budget`]; given to [`Budget::succeeded`] when the call then succeeds, and dropped
/// when it doesn't.
///
/// It can't be cloned, so nothing is given back twice.
///
/// ```
/// use tower_outbound::policy::{Budget, Cause};
///
/// let spent = Budget::new().try_spend(Cause::Throttled).expect("it starts full");
/// assert_eq!(spent.cost(), 5);
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "kept until the call ends, for `Budget::succeeded`"]
pub struct Spent {
    cost: u32,
}

impl Spent {
    /// What the retry cost.
    pub const fn cost(&self) -> u32 {
        self.cost
    }
}

impl Budget {
    /// A full budget with the AWS SDKs' numbers.
    pub fn new() -> Self {
        let (capacity, retry_cost, throttled_cost, success_gain) = (500, 14, 5, 1);
        Self { left: full(capacity), capacity, retry_cost, throttled_cost, success_gain }
    }

    /// Holds at most `capacity`: what retries may spend in an outage.
    ///
    /// # Errors
    ///
    /// When no retry could ever be paid for: it is less than one of the costs. A capacity below 14 wants the
    /// costs set first.
    ///
    /// ```
    /// # use tower_outbound::policy::Budget;
    /// assert_eq!(Budget::new().with_capacity(140)?.left(), 140);
    /// assert!(Budget::new().with_capacity(13).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_capacity(mut self, capacity: u32) -> Result<Self, InvalidConfig> {
        let least = self.retry_cost.max(self.throttled_cost).max(self.success_gain);
        if capacity < least {
            let expected = format!("at least {least}, its largest cost or gain");
            return Err(InvalidConfig::new("budget capacity", capacity.to_string(), expected));
        }
        self.capacity = capacity;
        Ok(self.begun_anew())
    }

    /// What a retry costs after a failure that passes by itself.
    ///
    /// # Errors
    ///
    /// When it is 0, which would bound nothing, or over the capacity.
    pub fn with_retry_cost(mut self, cost: u32) -> Result<Self, InvalidConfig> {
        self.retry_cost = self.within("budget retry cost", cost)?;
        Ok(self.begun_anew())
    }

    /// What a retry costs after a throttle, where the server has said how fast it may go on: less.
    ///
    /// # Errors
    ///
    /// When it is 0, which would bound nothing, or over the capacity.
    pub fn with_throttled_cost(mut self, cost: u32) -> Result<Self, InvalidConfig> {
        self.throttled_cost = self.within("budget throttled cost", cost)?;
        Ok(self.begun_anew())
    }

    /// What success at the first try gives back: divided by the cost of a retry, the retries that each such call
    /// pays for in the long run.
    ///
    /// # Errors
    ///
    /// When it is 0, for then a spent budget would never recover, or over the capacity.
    pub fn with_success_gain(mut self, gain: u32) -> Result<Self, InvalidConfig> {
        self.success_gain = self.within("budget success gain", gain)?;
        Ok(self.begun_anew())
    }

    fn within(&self, field: &'static str, value: u32) -> Result<u32, InvalidConfig> {
        if value == 0 || value > self.capacity {
            let expected = format!("1 to the capacity, {}", self.capacity);
            return Err(InvalidConfig::new(field, value.to_string(), expected));
        }
        Ok(value)
    }

    /// Its clones keep theirs: an amount means nothing under other costs.
    fn begun_anew(mut self) -> Self {
        self.left = full(self.capacity);
        self
    }

    /// Spends the cost of a retry; `None`, and nothing spent, when less than that is left.
    pub fn try_spend(&self, cause: Cause) -> Option<Spent> {
        let cost = match cause {
            Cause::Transient => self.retry_cost,
            Cause::Throttled => self.throttled_cost,
        };
        let spend = |left: u32| left.checked_sub(cost);
        // Relaxed: the number stands for itself, nothing else is published with it.
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).ok()?;
        Some(Spent { cost })
    }

    /// Gives back for a call that succeeded: what its `last` retry had spent, or without one the gain of a success
    /// at the first try. What is over the capacity is lost.
    pub fn succeeded(&self, last: Option<Spent>) {
        self.gain(last.map_or(self.success_gain, |spent| spent.cost));
    }

    /// Gives back what was spent on a retry that was not sent after all.
    pub fn give_back(&self, spent: Spent) {
        self.gain(spent.cost);
    }

    fn gain(&self, gain: u32) {
        // A full budget is only read: while all goes well, calls on several cores share its cache line.
        let give = |left: u32| (left < self.capacity).then(|| left.saturating_add(gain).min(self.capacity));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }

    /// What is left, from 0 to the [`capacity`](Self::capacity).
    pub fn left(&self) -> u32 {
        self.left.load(Ordering::Relaxed)
    }

    /// The most that it holds, and what it starts with.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the cost of a retry, its cost after a throttle, and the gain of a success.
    #[cfg(feature = "serde")]
    pub(crate) const fn costs(&self) -> [u32; 3] {
        [self.retry_cost, self.throttled_cost, self.success_gain]
    }
}

fn full(capacity: u32) -> Arc<AtomicU32> {
    Arc::new(AtomicU32::new(capacity))
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("left", &self.left())
            .field("capacity", &self.capacity)
            .field("retry_cost", &self.retry_cost)
            .field("throttled_cost", &self.throttled_cost)
            .field("success_gain", &self.success_gain)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{array, iter, sync::Barrier, thread};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_aws() {
        let budget = Budget::new();
        assert_eq!((budget.left(), budget.capacity()), (500, 500));
        assert_eq!(budget.try_spend(Cause::Transient), Some(Spent { cost: 14 }));
        let throttled = budget.try_spend(Cause::Throttled);
        assert_eq!((throttled.as_ref().map(Spent::cost), budget.left()), (Some(5), 481));
        budget.succeeded(None);
        assert_eq!(budget.left(), 482);
        budget.succeeded(throttled);
        assert_eq!(budget.left(), 487);
        let shown = "Budget { left: 487, capacity: 500, retry_cost: 14, throttled_cost: 5, success_gain: 1 }";
        assert_eq!(format!("{budget:?}"), shown);
    }

    #[test]
    fn what_is_too_little_is_not_spent_and_what_is_enough_is_spent_to_the_end() {
        let budget = Budget::new().with_capacity(18).unwrap();
        assert!(budget.try_spend(Cause::Throttled).is_some());
        assert_eq!((budget.try_spend(Cause::Transient), budget.left()), (None, 13));
        budget.succeeded(None);
        assert!(budget.try_spend(Cause::Transient).is_some());
        assert_eq!((budget.try_spend(Cause::Throttled), budget.left()), (None, 0));
    }

    #[test]
    fn clones_share_and_a_setter_begins_anew() {
        let budget = Budget::new();
        let clone = budget.clone();
        let _ = clone.try_spend(Cause::Transient);
        assert_eq!(budget.left(), 486);
        let other = budget.clone().with_capacity(100).unwrap().with_retry_cost(50).unwrap();
        let other = other.with_throttled_cost(20).unwrap().with_success_gain(10).unwrap();
        assert_eq!((other.left(), budget.left()), (100, 486));
        let (retry, throttled) = (other.try_spend(Cause::Transient), other.try_spend(Cause::Throttled));
        assert_eq!(
            (retry, throttled, other.left()),
            (Some(Spent { cost: 50 }), Some(Spent { cost: 20 }), 30)
        );
        other.succeeded(None);
        assert_eq!((other.left(), budget.left()), (40, 486));
    }

    #[test]
    fn refusals_name_the_field_and_what_would_be_right() {
        let small = || Budget::new().with_capacity(14).unwrap();
        let cases = [
            (small().with_capacity(13), "budget capacity", "13", "at least 14"),
            (small().with_retry_cost(0), "budget retry cost", "0", "1 to the capacity, 14"),
            (small().with_retry_cost(15), "budget retry cost", "15", "1 to the capacity, 14"),
            (small().with_throttled_cost(0), "budget throttled cost", "0", "1 to"),
            (small().with_throttled_cost(15), "budget throttled cost", "15", "1 to"),
            (small().with_success_gain(0), "budget success gain", "0", "1 to"),
            (small().with_success_gain(u32::MAX), "budget success gain", "4294967295", "1 to"),
        ];
        for (refused, field, value, expected) in cases {
            let error = refused.unwrap_err();
            assert_eq!((error.field(), error.value()), (field, value));
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Spend(bool),
        Succeed,
        /// The call of one of the retries that are under way ends: which one, and if it succeeds.
        End(prop::sample::Index, bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let end = (any::<prop::sample::Index>(), any::<bool>());
        let step = prop_oneof![
            3 => any::<bool>().prop_map(Step::Spend),
            2 => Just(Step::Succeed),
            2 => end.prop_map(|(which, succeeds)| Step::End(which, succeeds)),
        ];
        prop::collection::vec(step, 0..400)
    }

    proptest! {
        #[test]
        fn it_stays_within_its_bounds_and_nothing_is_lost_or_made(
            steps in steps(), numbers: [u32; 3], capacity in prop_oneof![14u32..600, Just(u32::MAX)],
        ) {
            let [retry, throttled, gain] = numbers.map(|number| 1 + number % capacity.min(60));
            let budget = Budget::new().with_capacity(capacity).unwrap();
            let budget = budget.with_retry_cost(retry).unwrap().with_throttled_cost(throttled).unwrap();
            let budget = budget.with_success_gain(gain).unwrap();
            let (mut left, mut under_way) = (u64::from(capacity), Vec::new());
            for step in steps {
                let back = match step {
                    Step::Spend(throttle) => {
                        let cost = if throttle { throttled } else { retry };
                        let spent = budget.try_spend(if throttle { Cause::Throttled } else { Cause::Transient });
                        prop_assert_eq!(spent.is_some(), left >= u64::from(cost));
                        left -= spent.as_ref().map_or(0, |_| u64::from(cost));
                        under_way.extend(spent);
                        0
                    }
                    Step::Succeed => {
                        budget.succeeded(None);
                        gain
                    }
                    Step::End(_, _) if under_way.is_empty() => 0,
                    Step::End(which, succeeds) => {
                        let spent = under_way.swap_remove(which.index(under_way.len()));
                        let cost = spent.cost();
                        if succeeds {
                            budget.succeeded(Some(spent));
                        }
                        if succeeds { cost } else { 0 }
                    }
                };
                left = (left + u64::from(back)).min(u64::from(capacity));
                prop_assert_eq!(u64::from(budget.left()), left);
            }
        }
    }

    #[test]
    fn threads_together_spend_no_more_than_there_is() {
        for _ in 0..10 {
            let budget = Budget::new().with_capacity(14 * 200_000).unwrap();
            let start = Barrier::new(4);
            let spends = || {
                start.wait();
                iter::from_fn(|| budget.try_spend(Cause::Transient)).count()
            };
            let spent: usize = thread::scope(|scope| {
                let threads: [_; 4] = array::from_fn(|_| scope.spawn(spends));
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!((spent, budget.left()), (200_000, 0));
        }
    }

    #[test]
    fn what_threads_give_back_at_once_is_neither_lost_nor_more_than_the_capacity() {
        let budget = Budget::new();
        let calls = || {
            for call in 0..50_000 {
                let cause = if call % 3 == 0 { Cause::Throttled } else { Cause::Transient };
                if let Some(spent) = budget.try_spend(cause) {
                    budget.succeeded(Some(spent));
                }
                assert!(budget.left() <= 500);
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(calls))));
        assert_eq!(budget.left(), 500, "all that was spent came back");

        while budget.try_spend(Cause::Throttled).is_some() {}
        let successes = || (0..100).for_each(|_| budget.succeeded(None));
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(successes))));
        assert_eq!(budget.left(), 400);
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(successes))));
        assert_eq!(budget.left(), 500);
    }

    /// A minute's 100 calls of up to three attempts each; how many attempts that makes.
    fn minute(budget: &Budget, mut fails: impl FnMut() -> bool) -> u32 {
        let call = |_| {
            let (mut attempts, mut last) = (1, None);
            while fails() {
                // What the number of attempts forbids is not spent.
                last = (attempts < 3).then(|| budget.try_spend(Cause::Transient)).flatten();
                if last.is_none() {
                    return attempts;
                }
                attempts += 1;
            }
            budget.succeeded(last);
            attempts
        };
        (0..100).map(call).sum()
    }

    #[test]
    fn an_outage_at_a_hundred_calls_a_minute_is_not_made_worse_and_ends_by_itself() {
        let budget = Budget::new();
        assert_eq!(minute(&budget, || true), 135);
        for _ in 1..60 {
            assert_eq!(minute(&budget, || true), 100);
        }
        for recovered in 1..=5 {
            assert_eq!(minute(&budget, || false), 100);
            assert_eq!(budget.left(), (10 + 100 * recovered).min(500));
        }
        assert_eq!(minute(&budget, || true), 135, "as before");
    }

    #[test]
    fn half_of_the_attempts_failing_makes_one_attempt_more_for_fourteen_calls() {
        let mut random = 7_u64;
        let mut fails = |percent: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 32) * 100 < percent << 32
        };
        let budget = Budget::new();
        for _ in 0..5 {
            minute(&budget, || fails(50));
        }
        let attempts: u32 = (0..1_000).map(|_| minute(&budget, || fails(50))).sum();
        assert!((106_500..=107_500).contains(&attempts), "{attempts}");

        let budget = Budget::new();
        let attempts: u32 = (0..1_000).map(|_| minute(&budget, || fails(20))).sum();
        assert!((123_000..=125_000).contains(&attempts), "{attempts}, of 1 + 0.2 + 0.04 for a call");
    }
}
