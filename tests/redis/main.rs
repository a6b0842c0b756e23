//! The limiter that processes share, over real redis-servers. In real time: the decisions are made on the server's clock.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod decisions;
mod faults;
mod fleet;
mod kept;
mod places;
#[path = "../../examples/support/redis_server.rs"]
mod redis_server;
mod script;
mod shares;
mod words;

use std::{num::NonZeroU32, process::Command, time::Duration};

use redis_server::RedisServer;
use tokio::{task::JoinSet, time::Instant};
use tower_outbound::{
    InvalidConfig, Quota,
    adapter::{Fallback, RedisLimiter},
    limit::{Ask, Limiter, Reason, Refusal, Store},
    test_util::Arrivals,
};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Any server that is not older than a window is taken for one that has just forgotten everything. Those of the tests
/// are that young, so that their windows are short.
fn server() -> RedisServer {
    RedisServer::start(&[]).unwrap()
}

fn quota(limit: u32, window: Duration) -> Quota {
    Quota::new(limit, window).unwrap()
}

/// A bucket whose questions a crowded machine may answer late.
fn bucket(
    url: &str,
    name: &str,
    quotas: impl IntoIterator<Item = Quota>,
) -> Result<RedisLimiter, InvalidConfig> {
    RedisLimiter::token_bucket(url, name, quotas)?.with_timeout(Duration::from_secs(5))
}

/// The same of a window.
fn window(
    url: &str,
    name: &str,
    quotas: impl IntoIterator<Item = Quota>,
) -> Result<RedisLimiter, InvalidConfig> {
    RedisLimiter::sliding_window(url, name, quotas)?.with_timeout(Duration::from_secs(5))
}

fn ask(cost: u32, max_wait: Option<Duration>) -> Ask {
    let mut ask = Ask::default();
    ask.cost = NonZeroU32::new(cost).unwrap();
    ask.max_wait = max_wait;
    ask
}

/// Takes a permit and gives it back.
async fn take(limiter: &RedisLimiter, ask: Ask) -> Result<(), Refusal> {
    tokio::time::timeout(Duration::from_secs(10), limiter.acquire(ask))
        .await
        .expect("a limiter that hangs")?;
    limiter.release(ask.cost);
    Ok(())
}

/// Grants to so many tasks of each limiter until the time is over, and how many each limiter gave.
async fn greedy(limiters: &[RedisLimiter], tasks: usize, length: Duration) -> (Arrivals, Vec<usize>) {
    let (arrivals, end) = (Arrivals::new(), Instant::now() + length);
    let mut all = JoinSet::new();
    for (number, limiter) in limiters.iter().enumerate() {
        for _ in 0..tasks {
            let (limiter, arrivals) = (limiter.clone(), arrivals.clone());
            all.spawn(async move {
                let (mut ask, mut count) = (Ask::default(), 0);
                ask.deadline = Some(end);
                while Instant::now() < end {
                    match take(&limiter, ask).await {
                        Ok(()) => {
                            arrivals.note();
                            count += 1;
                        }
                        Err(refusal) if refusal.reason() == Reason::Deadline => break,
                        Err(_) => tokio::time::sleep(millis(5)).await,
                    }
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

/// A connection of the test's own.
async fn connect(server: &RedisServer) -> redis::aio::MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

fn signal(server: &RedisServer, signal: &str) {
    let status = Command::new("kill").args([signal, &server.pid().to_string()]).status().unwrap();
    assert!(status.success());
}
