//! Tests of batching: in a long queue, one wake-up grants permits to several waiters.

use super::*;

/// Queues `calls` requests at once. Returns how long each of them waited.
async fn waits(limiter: &LocalLimiter, calls: u32, cost: u32) -> Vec<Duration> {
    let (start, request) = (Instant::now(), costing(cost).with_max_queue(usize::MAX));
    let waiting: Vec<_> = (0..calls)
        .map(|_| {
            let acquire = limiter.acquire_with(&request);
            tokio::spawn(async move { acquire.await.map(|_| start.elapsed()) })
        })
        .collect();
    let mut waits = Vec::new();
    for waiter in waiting {
        waits.push(waiter.await.unwrap().unwrap());
    }
    waits
}

/// Returns the throughput divided by `rate`.
fn throughput(waits: &[Duration], cost: u32, rate: f64) -> f64 {
    (waits.len() as u32 * cost) as f64 / rate / waits.iter().max().unwrap().as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn token_bucket_sustains_any_rate_if_burst_is_cost_plus_2_ms_of_refill() {
    for rate in [100_u32, 300, 450, 700, 900, 1_300, 2_700, 7_000, 10_000, 13_000] {
        for (cost, factor) in [1, 2, 5].into_iter().flat_map(|cost| [1, 2, 5].map(|factor| (cost, factor))) {
            let burst = ((rate * 2).div_ceil(1_000) + cost) * factor;
            for phase in [0, 370, 610, 930] {
                sleep(millis(3)).await;
                advance(Duration::from_micros(phase)).await;
                let bucket = refilling(rate, burst).with_initial_burst(0);
                let waits = waits(&bucket, rate.clamp(300, 3_000) / cost, cost).await;
                let part = throughput(&waits, cost, rate.into());
                assert!(
                    part > 0.99,
                    "{part} of {rate} per second, burst {burst}, cost {cost}, {phase} us after a tick"
                );
            }
        }
    }
}

/// Grants are backdated within a quarter of the margin, so the burst may be smaller than the refill of a timer tick.
#[tokio::test(start_paused = true)]
async fn limiter_with_a_margin_sustains_a_rate_above_the_resolution_of_timers() {
    for limit in [300, 1_000, 3_000, 10_000] {
        for (margin, phase) in [(8, 0), (8, 370), (62, 0), (62, 370)] {
            advance(Duration::from_micros(phase)).await;
            let quota = Quota::per_second(limit).unwrap().with_burst(1).unwrap();
            let quota = quota.with_margin(millis(margin)).unwrap();
            let bucket_rate = f64::from(limit - 1) / (1.0 + margin as f64 / 1_000.0);
            for (name, limiter, rate) in [
                ("bucket", LocalLimiter::token_bucket(quota), bucket_rate),
                ("window", LocalLimiter::paced_window(quota), quota.sustained()),
            ] {
                let start = Instant::now();
                let waits = waits(&limiter, (2.0 * rate) as u32, 1).await;
                let part = throughput(&waits, 1, rate);
                let case = format!("{name}, {limit} per second, margin {margin} ms, {phase} us after a tick");
                assert!(part > 0.99, "{case}: {part} of the rate");
                waits.iter().map(|wait| start + *wait).collect::<Arrivals>().assert_within(quota);
            }
        }
    }
}
