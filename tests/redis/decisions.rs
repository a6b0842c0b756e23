use tokio::{task::JoinSet, time::Instant};
use tower_outbound::test_util::Arrivals;

use super::*;

/// Grants to so many tasks of each limiter until the time is over.
async fn greedy(limiters: &[RedisLimiter], tasks: usize, length: Duration) -> (Arrivals, Vec<usize>) {
    let arrivals = Arrivals::new();
    let end = Instant::now() + length;
    let mut all = JoinSet::new();
    for (number, limiter) in limiters.iter().enumerate() {
        for _ in 0..tasks {
            let (limiter, arrivals) = (limiter.clone(), arrivals.clone());
            all.spawn(async move {
                let mut count = 0;
                let mut ask = Ask::default();
                ask.deadline = Some(end);
                while limiter.acquire(ask).await.is_ok() {
                    arrivals.note();
                    limiter.release(ask.cost);
                    count += 1;
                }
                (number, count)
            });
        }
    }
    let mut shares = vec![0; limiters.len()];
    while let Some(ended) = all.join_next().await {
        let (number, count) = ended.unwrap();
        shares[number] += count;
    }
    (arrivals, shares)
}

#[tokio::test]
async fn two_processes_share_one_quota() {
    let server = server();
    let quota = Quota::per_second(200).unwrap().with_guard(millis(20)).unwrap();
    for window in [false, true] {
        let make = || {
            let make = if window { RedisLimiter::sliding_window } else { RedisLimiter::token_bucket };
            make(&server.url(), "key", [quota]).unwrap()
        };
        let limiters = [make(), make()];
        let (arrivals, shares) = greedy(&limiters, 16, millis(4_000)).await;
        println!("{window} {shares:?} {} {:?}", arrivals.most_in(millis(1_000)), limiters[0].snapshot());
        arrivals.assert_within(Quota::per_second(200).unwrap());
    }
}
