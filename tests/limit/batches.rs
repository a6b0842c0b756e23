//! Tests of batching: in a long queue, the first waiter sleeps longer and takes permits for several waiters at once.

use std::time::Duration;

use tokio::time::Instant;
use tower_outbound::{
    Quota,
    limit::{Limiter, LocalLimiter, PermitRequest},
    test_util::Arrivals,
};

use crate::{costing, millis, refilling};

/// Queues as many requests as a limiter grants in about one second. The requests are queued `phase` microseconds after
/// a tick of tokio's timer. Returns the measured throughput divided by `rate`.
async fn throughput(rate: u32, burst: u32, cost: u32, phase: u64) -> f64 {
    tokio::time::sleep(millis(3)).await;
    tokio::time::advance(Duration::from_micros(phase)).await;
    let bucket = refilling(rate, burst).with_initial_burst(0);
    let (start, calls) = (Instant::now(), rate.clamp(300, 3_000) / cost);
    let waiting: Vec<_> = (0..calls)
        .map(|_| {
            let acquire = bucket.acquire_with(&costing(cost));
            tokio::spawn(async move {
                acquire.await.unwrap();
                Instant::now()
            })
        })
        .collect();
    let mut last = start;
    for waiter in waiting {
        last = last.max(waiter.await.unwrap());
    }
    f64::from(calls * cost) / f64::from(rate) / (last - start).as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn token_bucket_sustains_any_rate_if_burst_is_cost_plus_2_ms_of_refill() {
    for rate in [100_u32, 300, 450, 700, 900, 1_300, 2_700, 7_000, 10_000, 13_000] {
        for cost in [1, 2, 5] {
            let burst = (rate * 2).div_ceil(1_000) + cost;
            for burst in [burst, burst * 2, burst * 5] {
                for phase in [0, 370, 610, 930] {
                    let throughput = throughput(rate, burst, cost, phase).await;
                    assert!(
                        throughput > 0.99,
                        "{throughput} of the rate of {rate} permits/s, with burst {burst}, cost {cost}, {phase} us after a tick"
                    );
                }
            }
        }
    }
}

/// Queues as many requests as a limiter grants in two seconds. Returns the throughput divided by `rate`, and the most
/// requests in one window of a second.
async fn two_seconds(limiter: LocalLimiter, rate: f64) -> (f64, u64) {
    let arrivals = Arrivals::new();
    let count = (2.0 * rate) as usize;
    let start = Instant::now();
    let waiting: Vec<_> = (0..count)
        .map(|_| {
            let request = PermitRequest::new().with_max_queue(usize::MAX);
            let (acquire, mut arrivals) = (limiter.acquire_with(&request), arrivals.clone());
            tokio::spawn(async move {
                acquire.await.unwrap();
                arrivals.extend([Instant::now()]);
            })
        })
        .collect();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    (count as f64 / rate / start.elapsed().as_secs_f64(), arrivals.most_in(Duration::from_secs(1)))
}

/// Grants are backdated within a quarter of the margin, so the burst may be smaller than the refill of a timer tick.
#[tokio::test(start_paused = true)]
async fn limiter_with_a_margin_sustains_a_rate_above_the_resolution_of_timers() {
    for limit in [300, 1_000, 3_000, 10_000] {
        for margin in [8, 62] {
            for phase in [0, 370] {
                tokio::time::advance(Duration::from_micros(phase)).await;
                let quota = Quota::per_second(limit).unwrap().with_burst(1).unwrap();
                let quota = quota.with_margin(millis(margin)).unwrap();
                let bucket_rate = f64::from(limit - 1) / (1.0 + margin as f64 / 1_000.0);
                let bucket = two_seconds(LocalLimiter::token_bucket(quota), bucket_rate).await;
                let window = two_seconds(LocalLimiter::paced_window(quota), quota.sustained()).await;
                for (name, (throughput, most)) in [("bucket", bucket), ("window", window)] {
                    let case =
                        format!("{name}, {limit} per second, margin {margin} ms, {phase} us after a tick");
                    assert!(throughput > 0.99, "{case}: {throughput} of the rate");
                    assert!(most <= u64::from(limit), "{case}: {most} in a second");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn batching_delays_no_waiter_beyond_its_max_wait() {
    for (phase, tolerance) in [(0, 1_000), (370, 1_000), (370, 2_000), (777, 1_000)] {
        tokio::time::advance(Duration::from_micros(phase)).await;
        let bucket = refilling(1_000, 10).with_initial_burst(0);
        let mut waiting = Vec::new();
        for number in 0..300 {
            let forecast = bucket.try_acquire().unwrap_err().wait().unwrap();
            let bound = (number % 5 == 4).then(|| forecast + Duration::from_micros(tolerance));
            let acquire = bucket.acquire_with(
                &bound.map_or(PermitRequest::new(), |bound| PermitRequest::new().with_max_wait(bound)),
            );
            let start = Instant::now();
            waiting.push(tokio::spawn(async move {
                acquire.await.unwrap();
                assert!(
                    bound.is_none_or(|bound| start.elapsed() <= bound),
                    "waited {:?}, maximum wait: {bound:?}",
                    start.elapsed()
                );
            }));
            tokio::task::yield_now().await;
        }
        for waiter in waiting {
            waiter.await.unwrap();
        }
    }
}

/// Queues `calls` waiters at once on a bucket that refills one permit per millisecond. Returns the time from each
/// permit's refill to its grant.
async fn lateness(calls: u64) -> Vec<Duration> {
    // The measurement starts at a tick of tokio's timer.
    tokio::time::advance(millis(10_000)).await;
    let (bucket, start) = (refilling(1_000, 100).with_initial_burst(0), Instant::now());
    let waiting: Vec<_> = (0..calls)
        .map(|_| {
            let acquire = bucket.acquire_with(&PermitRequest::new());
            tokio::spawn(async move { acquire.await.map(|_| Instant::now()) })
        })
        .collect();
    let mut late = Vec::new();
    for (waiter, due) in waiting.into_iter().zip(1..) {
        late.push(waiter.await.unwrap().unwrap() - start - millis(due));
    }
    late
}

#[tokio::test(start_paused = true)]
async fn batching_delays_a_grant_by_at_most_5_ms() {
    let late = lateness(1_000).await;
    let batches = late.windows(2).filter(|pair| pair[0] <= pair[1]).count();
    assert!(
        (190..=350).contains(&batches),
        "{batches} batches, expected one batch every 4 ms while the queue is long"
    );
    assert!(late.iter().all(|late| *late <= millis(5)), "{late:?}");
    // A queue of 16 waiters is empty after about 16 ms, so the batches of that queue are small.
    let late = lateness(16).await;
    assert!(late.iter().all(|late| *late <= millis(2)), "{late:?}");
    // Batching does not delay a waiter that is alone in the queue, whatever the waiter's cost.
    let bucket = refilling(1_000, 100).with_initial_burst(0);
    let start = Instant::now();
    bucket.acquire_with(&costing(50)).await.unwrap();
    assert!(start.elapsed() <= millis(51), "{:?}", start.elapsed());
}
