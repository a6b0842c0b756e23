use std::{array, iter, sync::Barrier, thread};

use proptest::prelude::*;

use super::*;

#[test]
fn budget_defaults_are_those_of_the_aws_sdks() {
    let budget = Budget::new();
    assert_eq!((budget.left(), budget.capacity()), (500, 500));
    assert_eq!(budget.try_spend(RetryDecision::Transient), Some(14));
    let throttled = budget.try_spend(RetryDecision::Throttled);
    assert_eq!((throttled, budget.left()), (Some(5), 481));
    budget.succeeded(None);
    assert_eq!(budget.left(), 482);
    budget.succeeded(throttled);
    assert_eq!(budget.left(), 487);
    let shown = "Budget { left: 487, capacity: 500 }";
    assert_eq!(format!("{budget:?}"), shown);
}

#[test]
fn budget_spends_nothing_if_the_credit_is_below_the_cost() {
    let budget = Budget::new().with_capacity(18).unwrap();
    assert!(budget.try_spend(RetryDecision::Throttled).is_some());
    assert_eq!((budget.try_spend(RetryDecision::Transient), budget.left()), (None, 13));
    budget.succeeded(None);
    assert!(budget.try_spend(RetryDecision::Transient).is_some());
    assert_eq!((budget.try_spend(RetryDecision::Throttled), budget.left()), (None, 0));
}

#[test]
fn cloned_budgets_share_credit_and_with_capacity_creates_a_full_budget() {
    let budget = Budget::new();
    let clone = budget.clone();
    let _ = clone.try_spend(RetryDecision::Transient);
    assert_eq!(budget.left(), 486);
    let other = budget.clone().with_capacity(100).unwrap();
    assert_eq!((other.left(), budget.left()), (100, 486));
    let _ = other.try_spend(RetryDecision::Transient);
    assert_eq!((other.left(), budget.left()), (86, 486));
}

#[test]
fn budget_error_names_the_field_and_the_valid_values() {
    let error = Budget::new().with_capacity(13).unwrap_err();
    assert_eq!(error.to_string(), "invalid budget capacity `13`: expected at least 14, the cost of a retry");
}

#[derive(Debug, Clone)]
enum Step {
    Spend(bool),
    Succeed,
    /// One of the calls with a pending retry ends. The index selects it, and the flag is `true` if it succeeds.
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
    fn budget_credit_equals_gains_minus_costs_up_to_the_capacity(
        steps in steps(), capacity in prop_oneof![14u32..600, Just(u32::MAX)],
    ) {
        let budget = Budget::new().with_capacity(capacity).unwrap();
        let (mut left, mut pending_costs) = (u64::from(capacity), Vec::new());
        for step in steps {
            let returned = match step {
                Step::Spend(throttle) => {
                    let cost = if throttle { 5_u32 } else { 14 };
                    let spent = budget.try_spend(if throttle { RetryDecision::Throttled } else { RetryDecision::Transient });
                    prop_assert_eq!(spent.is_some(), left >= u64::from(cost));
                    left -= spent.map_or(0, |_| u64::from(cost));
                    pending_costs.extend(spent);
                    0
                }
                Step::Succeed => {
                    budget.succeeded(None);
                    1
                }
                Step::End(_, _) if pending_costs.is_empty() => 0,
                Step::End(which, succeeds) => {
                    let cost = pending_costs.swap_remove(which.index(pending_costs.len()));
                    if succeeds {
                        budget.succeeded(Some(cost));
                    }
                    if succeeds { cost } else { 0 }
                }
            };
            left = (left + u64::from(returned)).min(u64::from(capacity));
            prop_assert_eq!(u64::from(budget.left()), left);
        }
    }
}

#[test]
fn concurrent_retries_never_spend_more_than_the_credit() {
    for _ in 0..10 {
        let budget = Budget::new().with_capacity(14 * 200_000).unwrap();
        let start = Barrier::new(4);
        let spends = || {
            start.wait();
            iter::from_fn(|| budget.try_spend(RetryDecision::Transient)).count()
        };
        let spent: usize = thread::scope(|scope| {
            let threads: [_; 4] = array::from_fn(|_| scope.spawn(spends));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((spent, budget.left()), (200_000, 0));
    }
}

/// Makes 100 calls of up to three attempts each. Returns the total number of attempts.
fn minute(budget: &Budget, mut fails: impl FnMut() -> bool) -> u32 {
    let call = |_| {
        let (mut attempts, mut last) = (1, None);
        while fails() {
            // As in the retry layer, the maximum number of attempts is checked before the budget.
            last = (attempts < 3).then(|| budget.try_spend(RetryDecision::Transient)).flatten();
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
fn outage_spends_the_credit_once_and_recovery_refills_it() {
    let budget = Budget::new();
    assert_eq!(minute(&budget, || true), 135);
    for _ in 1..60 {
        assert_eq!(minute(&budget, || true), 100);
    }
    for recovered in 1..=5 {
        assert_eq!(minute(&budget, || false), 100);
        assert_eq!(budget.left(), (10 + 100 * recovered).min(500));
    }
    assert_eq!(minute(&budget, || true), 135, "the credit is full again");
}
