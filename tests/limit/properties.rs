//! The guarantees of limiters, for any quotas, pauses and callers.

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
    limit::{PermitRequest, SlidingWindow, TokenBucket},
    test_util::{Arrival, Arrivals},
};

use crate::{Pause, costing, permits, support::cases::cases};

/// A caller: when it arrives, what it costs and how long it waits.
#[derive(Debug, Clone)]
struct Caller {
    gap: Duration,
    cost: u32,
    patience: Option<Duration>,
}

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let caller = (0..400_u64, 1..4_u32, prop::option::weighted(0.3, 0..3_000_u64));
    let caller = caller.prop_map(|(gap, cost, patience)| Caller {
        // AfterFirstFrame of them arrive together.
        gap: Duration::from_millis(gap.saturating_sub(200)),
        cost,
        patience: patience.map(Duration::from_millis),
    });
    prop::collection::vec(caller, 1..60)
}

fn quota() -> impl Strategy<Value = Quota> {
    let burst = (2..30_u32).prop_flat_map(|limit| (Just(limit), 1..limit));
    (burst, 1..8_000_u64).prop_map(|((limit, burst), window)| {
        Quota::new(limit, Duration::from_millis(window)).unwrap().with_burst(burst).unwrap().without_margin()
    })
}

/// Runs the callers on paused time and checks the guarantees of every limiter: at most the quota in any window, both ends
/// included, FIFO order, and a grant for each waiter that is not dropped.
fn holds<L>(
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
                // A day without a patience: a waiter that is never granted fails the assertion below.
                let patience = caller.patience.unwrap_or(Duration::from_secs(86_400));
                match tokio::time::timeout(patience, wait).await {
                    Ok(Ok(_)) => grants.lock().unwrap().push((number, Instant::now(), caller.cost)),
                    Ok(Err(refusal)) => assert!(matches!(refusal.reason(), Reason::TooCostly { .. })),
                    Err(_) => assert!(caller.patience.is_some(), "never granted"),
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
        prop_assert!(most <= u64::from(quota.limit()), "{} under {}", most, quota);
    }
    // Ignores callers with a patience: one that ends at the time of the grant may poll its future before its turn.
    let patient = grants.iter().filter(|(number, _, _)| callers[*number].patience.is_none());
    prop_assert!(patient.is_sorted_by_key(|(number, _, _)| *number), "{:?}", grants);
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn the_window_holds_for_a_token_bucket(
        quota in quota(),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        holds(|| TokenBucket::new(quota), &[quota], pause, &callers)?;
    }

    #[test]
    fn the_window_holds_for_a_sliding_window(
        quota in quota(),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        holds(|| SlidingWindow::new(quota), &[quota], pause, &callers)?;
    }

    #[test]
    fn the_window_holds_for_several_quotas_of_buckets(
        quotas in prop::collection::vec(quota(), 1..4),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        holds(|| TokenBucket::all_of(quotas.clone()), &quotas, pause, &callers)?;
    }

    #[test]
    fn the_window_holds_for_several_quotas_of_windows(
        quotas in prop::collection::vec(quota(), 1..4),
        pause in prop::option::of((0..5_000_u64, 0..5_000_u64)),
        callers in callers(),
    ) {
        holds(|| SlidingWindow::all_of(quotas.clone()), &quotas, pause, &callers)?;
    }

    /// A new request is granted at the forecast time, if no waiter before it is dropped.
    #[test]
    fn requests_are_granted_at_the_forecast_time(
        quota in quota(),
        sliding in any::<bool>(),
        costs in prop::collection::vec(1..4_u32, 1..40),
    ) {
        // A sliding window leaves a gap before a cost that does not fit. The forecast does not include it.
        let costs = if sliding { vec![1; costs.len()] } else { costs };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            if sliding {
                foretold(SlidingWindow::new(quota), |limiter, cost| limiter.try_acquire_many(cost).err(), &costs).await
            } else {
                foretold(TokenBucket::new(quota), |limiter, cost| limiter.try_acquire_many(cost).err(), &costs).await
            }
        })?;
    }
}

async fn foretold<L>(
    limiter: L,
    ask: impl Fn(&L, NonZeroU32) -> Option<tower_outbound::error::Refusal>,
    costs: &[u32],
) -> Result<(), TestCaseError>
where
    L: Pause + Send + 'static,
{
    let (start, mut before) = (Instant::now(), 0);
    let mut waiting = Vec::new();
    for cost in costs.iter().map(|cost| permits(*cost)) {
        // Without a refusal, the request took its permits at once.
        let Some(refusal) = ask(&limiter, cost) else { continue };
        let Some(wait) = refusal.wait() else { continue };
        let mut acquire = task::spawn(limiter.acquire_with(&PermitRequest::new().with_cost(cost)));
        prop_assert!(acquire.poll().is_pending());
        before += u128::from(cost.get());
        waiting.push((start + wait, before, acquire));
    }
    for (foretold, before, acquire) in waiting {
        acquire.await.unwrap();
        let late = Instant::now().saturating_duration_since(foretold);
        // A timer may fire a millisecond late, which may delay all later permits, too. The head sleeps up to 4 ms longer, so
        // that it is served together with others.
        prop_assert!(Instant::now() >= foretold && late.as_millis() <= before + 4, "{:?}", late);
    }
    Ok(())
}
