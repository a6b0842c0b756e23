//! Property tests of the limiters' guarantees, with arbitrary quotas, pauses and callers.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use proptest::prelude::*;
use tokio::time::Instant;
use tokio_test::task;
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Limiter, LocalLimiter, PermitRequest},
    test_util::{Arrival, Arrivals},
};

use crate::{Pause, costing, permits, support::cases::cases};

/// A caller of `acquire_with`. `gap` is the time since the previous caller arrived.
#[derive(Debug, Clone)]
struct Caller {
    gap: Duration,
    cost: u32,
    gives_up_after: Option<Duration>,
}

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let caller = (0..400_u64, 1..4_u32, prop::option::weighted(0.3, 0..3_000_u64));
    let caller = caller.prop_map(|(gap, cost, gives_up_after)| Caller {
        // Half of the gaps are zero, so half of the callers arrive together with the previous caller.
        gap: Duration::from_millis(gap.saturating_sub(200)),
        cost,
        gives_up_after: gives_up_after.map(Duration::from_millis),
    });
    prop::collection::vec(caller, 1..60)
}

fn quota() -> impl Strategy<Value = Quota> {
    let burst = (2..30_u32).prop_flat_map(|limit| (Just(limit), 1..limit));
    (burst, 1..8_000_u64).prop_map(|((limit, burst), window)| {
        Quota::new(limit, Duration::from_millis(window)).unwrap().with_burst(burst).unwrap().without_margin()
    })
}

/// Runs the callers on paused time and checks the guarantees of every limiter:
/// - No window, including both of its ends, contains more grants than the quota allows.
/// - Waiters are granted in FIFO order.
/// - Every waiter that is not dropped is granted.
fn assert_guarantees<L>(
    make: impl FnOnce() -> L,
    quotas: &[Quota],
    pause: Option<(u64, u64)>,
    callers: &[Caller],
) -> Result<(), TestCaseError>
where
    L: Pause + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let (grants, finished) = runtime.unwrap().block_on(async {
        let limiter = make();
        if let Some((at, length)) = pause {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(at)).await;
                limiter.pause(Duration::from_millis(length));
            });
        }
        let grants = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (number, caller) in callers.iter().cloned().enumerate() {
            tokio::time::sleep(caller.gap).await;
            let (limiter, grants) = (limiter.clone(), Arc::clone(&grants));
            tasks.push(tokio::spawn(async move {
                let wait = limiter.acquire_with(&costing(caller.cost));
                // The test fails if a caller that never gives up is not granted within one day.
                let limit = caller.gives_up_after.unwrap_or(Duration::from_secs(86_400));
                match tokio::time::timeout(limit, wait).await {
                    Ok(Ok(_)) => grants.lock().unwrap().push((number, Instant::now(), caller.cost)),
                    Ok(Err(refusal)) => assert!(matches!(refusal.reason(), Reason::TooCostly { .. })),
                    Err(_) => assert!(
                        caller.gives_up_after.is_some(),
                        "a caller that never gives up was not granted"
                    ),
                }
            }));
        }
        let mut finished = 0;
        for task in tasks {
            finished += usize::from(task.await.is_ok());
        }
        let grants = grants.lock().unwrap().clone();
        (grants, finished)
    });
    prop_assert_eq!(finished, callers.len());
    let arrivals = grants.iter().map(|(_, at, cost)| Arrival::from(*at).with_permits(*cost));
    let arrivals: Arrivals = arrivals.collect();
    for quota in quotas {
        let most = arrivals.most_in(quota.window());
        prop_assert!(
            most <= u64::from(quota.limit()),
            "{} permits granted in one window of the quota {}",
            most,
            quota
        );
    }
    // The FIFO check ignores callers that may give up. If the timeout of such a caller elapses at the time of its
    // grant, the caller may be polled before earlier callers. The check compares times, because callers that are
    // granted permits at the same time may be polled in any order.
    let mut never_give_up: Vec<_> =
        grants.iter().filter(|(number, _, _)| callers[*number].gives_up_after.is_none()).collect();
    never_give_up.sort_by_key(|(number, _, _)| *number);
    prop_assert!(never_give_up.is_sorted_by_key(|(_, at, _)| *at), "{:?}", grants);
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn token_bucket_never_exceeds_its_quota_in_any_window(
        quota in quota(),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        assert_guarantees(|| LocalLimiter::token_bucket(quota), &[quota], pause, &callers)?;
    }

    #[test]
    fn sliding_window_never_exceeds_its_quota_in_any_window(
        quota in quota(),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        assert_guarantees(|| LocalLimiter::sliding_window(quota), &[quota], pause, &callers)?;
    }

    #[test]
    fn token_bucket_with_several_quotas_never_exceeds_any_quota(
        quotas in prop::collection::vec(quota(), 1..4),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        assert_guarantees(|| LocalLimiter::token_bucket(quotas.clone()), &quotas, pause, &callers)?;
    }

    #[test]
    fn sliding_window_with_several_quotas_never_exceeds_any_quota(
        quotas in prop::collection::vec(quota(), 1..4),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        assert_guarantees(|| LocalLimiter::sliding_window(quotas.clone()), &quotas, pause, &callers)?;
    }

    /// The wait that a refusal carries is exact if no earlier waiter is dropped.
    #[test]
    fn requests_are_granted_after_the_wait_that_a_refusal_forecasts(
        quota in quota(),
        sliding in any::<bool>(),
        costs in prop::collection::vec(1..4_u32, 1..40),
    ) {
        // A sliding window leaves permits unused if the next cost does not fit. The forecast ignores these unused
        // permits, so every cost in this test is one permit.
        let costs = if sliding { vec![1; costs.len()] } else { costs };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            if sliding {
                assert_forecasts(LocalLimiter::sliding_window(quota), |limiter, cost| limiter.try_acquire_many(cost).err(), &costs).await
            } else {
                assert_forecasts(LocalLimiter::token_bucket(quota), |limiter, cost| limiter.try_acquire_many(cost).err(), &costs).await
            }
        })?;
    }
}

/// Compares the wait in each refusal with the actual time until the grant.
async fn assert_forecasts(
    limiter: LocalLimiter,
    try_acquire: impl Fn(&LocalLimiter, NonZeroU32) -> Option<tower_outbound::error::Refusal>,
    costs: &[u32],
) -> Result<(), TestCaseError> {
    let (start, mut before) = (Instant::now(), 0);
    let mut waiting = Vec::new();
    for cost in costs.iter().map(|cost| permits(*cost)) {
        // A request that is granted immediately has no refusal, and therefore no wait to compare.
        let Some(refusal) = try_acquire(&limiter, cost) else { continue };
        let Some(wait) = refusal.wait() else { continue };
        let mut acquire = task::spawn(limiter.acquire_with(&PermitRequest::new().with_cost(cost)));
        prop_assert!(acquire.poll().is_pending());
        before += u128::from(cost.get());
        waiting.push((start + wait, before, acquire));
    }
    for (forecast, before, acquire) in waiting {
        acquire.await.unwrap();
        let late = Instant::now().saturating_duration_since(forecast);
        // Each timer may fire 1 ms late, which delays all later grants. The first waiter takes permits for a batch of
        // waiters, so it sleeps up to 4 ms longer.
        prop_assert!(Instant::now() >= forecast && late.as_millis() <= before + 4, "{:?}", late);
    }
    Ok(())
}
