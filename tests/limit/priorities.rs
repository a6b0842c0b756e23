//! Tests of the order of requests with different priorities.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Request;
use proptest::prelude::*;
use tokio::{task::JoinHandle, time::Instant};
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Quota,
    error::{Reason, Refusal},
    limit::{
        Keyed, Limiter, LocalLimiter, PermitCost, PermitRequest, Priority,
        Priority::{High, Low, Normal},
        RateLimitLayer,
    },
};

use crate::{bucket, costing, millis, ok_service, permits, refilling, support::cases::cases};

/// The priorities in the order of the grants.
type Order = Arc<Mutex<Vec<Priority>>>;

/// Queues a request. Adds its priority to `order`, once per permit, when the permits are granted.
async fn queue(
    limiter: &LocalLimiter,
    request: PermitRequest,
    order: &Order,
) -> JoinHandle<Result<Duration, Refusal>> {
    let (acquire, order, start) = (limiter.acquire_with(&request), Arc::clone(order), Instant::now());
    let task = tokio::spawn(async move {
        let permit = acquire.await?;
        order.lock().unwrap().extend((0..permit.cost().get()).map(|_| request.priority()));
        Ok(start.elapsed())
    });
    tokio::task::yield_now().await;
    task
}

fn of(priority: Priority) -> PermitRequest {
    PermitRequest::new().with_priority(priority)
}

#[tokio::test(start_paused = true)]
async fn higher_priorities_are_served_first_and_each_priority_first_in_first_out() {
    let bucket = refilling(1, 1).with_initial_burst(0);
    let order = Order::default();
    let mut tasks = Vec::new();
    for priority in [Low, Normal, High, Low, Normal, High] {
        tasks.push((priority, queue(&bucket, of(priority), &order).await));
    }
    let mut waits = Vec::new();
    for (priority, task) in tasks {
        waits.push((priority, task.await.unwrap().unwrap().as_secs()));
    }
    assert_eq!(*order.lock().unwrap(), [High, High, Normal, Normal, Low, Low]);
    assert_eq!(waits, [(Low, 5), (Normal, 3), (High, 1), (Low, 6), (Normal, 4), (High, 2)]);
}

#[tokio::test(start_paused = true)]
async fn each_lower_priority_with_queued_requests_gets_its_share_of_the_permits() {
    for (share, expected) in [(None, [80, 10, 10]), (Some(25), [50, 25, 25]), (Some(0), [100, 0, 0])] {
        let bucket = refilling(10, 5).with_initial_burst(0);
        let bucket =
            share.map_or(Ok(bucket.clone()), |share| bucket.with_lower_priority_share(share)).unwrap();
        let order = Order::default();
        for _ in 0..1_000 {
            for priority in [Low, Normal, High] {
                queue(&bucket, of(priority), &order).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(95)).await;
        let order = order.lock().unwrap();
        let taken =
            [High, Normal, Low].map(|one| order[..900].iter().filter(|other| **other == one).count() / 9);
        let is_close =
            taken.iter().zip(expected).all(|(taken, expected): (_, usize)| taken.abs_diff(expected) <= 1);
        assert!(is_close, "share {share:?}: {taken:?} percent");
    }
}

#[test]
fn share_of_a_lower_priority_is_at_most_25_percent() {
    let error = refilling(1, 1).with_lower_priority_share(26).unwrap_err();
    assert_eq!(error.to_string(), "invalid lower priority share `26`: expected at most 25");
}

#[tokio::test(start_paused = true)]
async fn single_high_request_waits_for_at_most_two_refills_behind_costly_requests() {
    let bucket = refilling(10, 10).with_initial_burst(0);
    let order = Order::default();
    for _ in 0..100 {
        queue(&bucket, of(Normal).with_cost(permits(7)), &order).await;
        queue(&bucket, of(Low).with_cost(permits(10)), &order).await;
    }
    for pause in (0..60).map(|number| 300 + 37 * number) {
        tokio::time::sleep(millis(pause)).await;
        let wait = queue(&bucket, of(High), &order).await.await.unwrap().unwrap();
        assert!(wait <= millis(202), "{wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn high_request_takes_available_permits_that_are_too_few_for_a_costly_normal_request() {
    let bucket = bucket(20, 10, 10);
    bucket.acquire_with(&costing(10)).await.unwrap();
    let order = Order::default();
    queue(&bucket, costing(10), &order).await;
    tokio::time::advance(Duration::from_secs(3)).await;
    let wait = queue(&bucket, of(High).with_max_wait(Duration::ZERO), &order).await.await.unwrap();
    assert!(wait.unwrap().is_zero());
}

#[tokio::test(start_paused = true)]
async fn low_request_fails_within_10_ms_if_a_new_high_request_delays_it_beyond_its_deadline() {
    let bucket = refilling(1, 1).with_initial_burst(0).with_lower_priority_share(0).unwrap();
    assert_bounds_hold(&bucket).await;
    let window = LocalLimiter::sliding_window(Quota::per_second(1).unwrap().without_margin());
    let window = window.with_initial_burst(0).with_lower_priority_share(0).unwrap();
    assert_bounds_hold(&window).await;
}

/// Queues three requests at a limiter of one permit per second, and then requests of a higher priority.
async fn assert_bounds_hold(limiter: &impl Limiter) {
    let start = Instant::now();
    let mut low: Vec<_> = [3_500, 5_500, 60_000]
        .map(|millis| of(Low).with_deadline(start + Duration::from_millis(millis)))
        .map(|request| task::spawn(limiter.acquire_with(&request)))
        .into();
    for waiter in &mut low {
        assert_pending!(waiter.poll());
    }
    let mut high = Vec::new();
    let mut refused_behind = [None; 3];
    for number in 1..=5 {
        let mut waiter = task::spawn(limiter.acquire_with(&of(High)));
        assert_pending!(waiter.poll());
        high.push(waiter);
        tokio::time::sleep(millis(12)).await;
        for (low, behind) in low.iter_mut().zip(&mut refused_behind) {
            if behind.is_none() && low.is_woken() {
                if let std::task::Poll::Ready(outcome) = low.poll() {
                    assert_eq!(outcome.unwrap_err().reason(), Reason::Deadline);
                    *behind = Some(number);
                }
            }
        }
    }
    // Behind 3 high requests, the first would get its permit at 4 s. Behind 5, the second would get its own at 6 s.
    assert_eq!(refused_behind, [Some(3), Some(5), None]);
}

#[tokio::test(start_paused = true)]
async fn low_request_fails_within_10_ms_if_high_requests_take_the_permits_that_it_waits_for() {
    let bucket = refilling(1, 10).with_initial_burst(0).with_lower_priority_share(0).unwrap();
    let request = of(Low).with_cost(permits(10)).with_max_wait(Duration::from_secs(10));
    let mut low = task::spawn(bucket.acquire_with(&request));
    assert_pending!(low.poll());
    tokio::time::advance(Duration::from_secs(1)).await;
    tokio_test::assert_ready_ok!(task::spawn(bucket.acquire_with(&of(High))).poll());
    tokio::time::sleep(millis(12)).await;
    assert!(low.is_woken());
    assert_eq!(tokio_test::assert_ready_err!(low.poll()).reason(), Reason::MaxWait);
}

#[tokio::test(start_paused = true)]
async fn credit_of_a_low_request_counts_in_its_forecast() {
    let bucket = refilling(1, 1).with_initial_burst(0);
    let order = Order::default();
    for _ in 0..100 {
        queue(&bucket, of(High), &order).await;
    }
    let low = queue(&bucket, of(Low).with_max_wait(Duration::from_secs(12)), &order).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        queue(&bucket, of(High), &order).await;
    }
    let wait = low.await.unwrap().unwrap();
    assert!(wait <= Duration::from_secs(12), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn request_is_admitted_if_only_lower_priorities_fill_the_queue() {
    let bucket = refilling(1, 1).with_initial_burst(0);
    let order = Order::default();
    let short = |priority| of(priority).with_max_queue(1);
    queue(&bucket, short(Low), &order).await;
    let refused = queue(&bucket, short(Low), &order).await.await.unwrap().unwrap_err();
    assert_eq!(refused.reason(), Reason::QueueFull);
    queue(&bucket, short(High), &order).await.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn layer_takes_the_priority_from_the_extensions_or_a_function() {
    for by_function in [false, true] {
        let bucket = refilling(1, 1).with_initial_burst(0);
        let mut layer = RateLimitLayer::new(bucket);
        if by_function {
            layer = layer.with_priority(|head| if head.uri.path() == "/first" { High } else { Normal });
        }
        let service = layer.layer(ok_service());
        let call = |path: &str, priority: Priority| {
            let mut request = Request::get(path).body(()).unwrap();
            request.extensions_mut().insert(PermitCost(permits(1)));
            if !by_function {
                request.extensions_mut().insert(priority);
            }
            let (service, start) = (service.clone(), Instant::now());
            tokio::spawn(async move { service.oneshot(request).await.map(|_| start.elapsed().as_secs()) })
        };
        let (last, first) = (call("/last", Normal), call("/first", High));
        assert_eq!((first.await.unwrap().unwrap(), last.await.unwrap().unwrap()), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_order() {
    let quota = Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(1).unwrap().without_margin();
    let keyed =
        Keyed::new(|head| head.uri.path().to_owned(), move |_: &String| LocalLimiter::paced_window(quota));
    let limiter = |key: &str| keyed.limiter(&key.to_owned()).unwrap();
    let order = Order::default();
    for key in ["a", "b"] {
        limiter(key).acquire().await.unwrap();
        queue(&limiter(key), of(Low), &order).await;
    }
    queue(&limiter("b"), of(High), &order).await;
    tokio::time::sleep(millis(950)).await;
    assert_eq!(*order.lock().unwrap(), [Low, High]);
}

#[derive(Debug, Clone, Copy)]
struct Caller {
    gap: u64,
    cost: u32,
    rank: usize,
    /// Whether the caller polls its future only once.
    is_absent: bool,
}

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let caller = (0..400_u64, 1..4_u32, 0..3_usize, prop::bool::weighted(0.1));
    let caller = caller.prop_map(|(gap, cost, rank, is_absent)| {
        let gap = gap.saturating_sub(200);
        Caller { gap, cost, rank, is_absent }
    });
    prop::collection::vec(caller, 1..60)
}

/// Checks that every caller that is not absent gets its permits, and that each priority is served in FIFO order. Also
/// checks that no window exceeds the quota.
async fn assert_order(limiter: LocalLimiter, quota: Quota, callers: &[Caller]) -> Result<(), TestCaseError> {
    let grants = Arc::new(Mutex::new(Vec::new()));
    let (mut tasks, mut absent) = (Vec::new(), Vec::new());
    for (number, caller) in callers.iter().copied().enumerate() {
        tokio::time::sleep(millis(caller.gap)).await;
        let request = of([High, Normal, Low][caller.rank]).with_cost(permits(caller.cost));
        let (acquire, grants) = (limiter.acquire_with(&request), Arc::clone(&grants));
        let call = async move {
            acquire.await.unwrap();
            grants.lock().unwrap().push((number, Instant::now(), caller));
        };
        if caller.is_absent {
            let mut call = task::spawn(call);
            if call.poll().is_pending() {
                absent.push(call);
            }
        } else {
            tasks.push(tokio::spawn(call));
        }
    }
    for task in tasks {
        prop_assert!(task.await.is_ok());
    }
    let mut grants = grants.lock().unwrap().clone();
    let arrivals: tower_outbound::test_util::Arrivals = grants
        .iter()
        .map(|(_, at, caller)| tower_outbound::test_util::Arrival::from(*at).with_permits(caller.cost))
        .collect();
    prop_assert!(arrivals.most_in(quota.window()) <= u64::from(quota.limit()));
    grants.sort_by_key(|(number, _, _)| *number);
    for rank in 0..3 {
        let of_rank = grants.iter().filter(|(_, _, caller)| caller.rank == rank && !caller.is_absent);
        prop_assert!(of_rank.is_sorted_by_key(|(_, at, _)| *at), "rank {}: {:?}", rank, grants);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn each_priority_is_first_in_first_out_and_no_window_exceeds_the_quota(
        (limit, burst) in (4..30_u32).prop_flat_map(|limit| (Just(limit), 3..limit)),
        window in 100..8_000_u64,
        margin in prop_oneof![Just(0), 1..100_u64],
        algorithm in 0..5,
        callers in callers(),
    ) {
        let quota = Quota::new(limit, millis(window)).unwrap().with_burst(burst).unwrap();
        let quota = quota.with_margin(millis(margin)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            match algorithm {
                0 => assert_order(LocalLimiter::token_bucket(quota), quota, &callers).await,
                1 => assert_order(LocalLimiter::paced_window(quota), quota, &callers).await,
                2 => assert_order(LocalLimiter::adaptive(quota), quota, &callers).await,
                3 => {
                    let longer = Quota::new(limit * 2, millis(window * 3)).unwrap().with_burst(burst).unwrap();
                    let longer = longer.with_margin(millis(margin)).unwrap();
                    assert_order(LocalLimiter::token_bucket([quota, longer]), quota, &callers).await
                }
                _ => assert_order(LocalLimiter::sliding_window(quota), quota, &callers).await,
            }
        })?;
    }
}
