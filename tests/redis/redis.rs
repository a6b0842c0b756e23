//! Shares a limiter between processes over real redis-servers. Runs in real time, because the server's clock decides.
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

use std::{
    future::{Future, poll_fn},
    num::NonZeroU32,
    pin::pin,
    process::Command,
    time::Duration,
};

use redis_server::RedisServer;
use tokio::{task::JoinSet, time::Instant};
use tower_outbound::{
    InvalidConfig, Quota,
    adapter::{RedisLimiter, Store},
    error::{Reason, Refusal},
    limit::{Limiter, PermitRequest},
    test_util::{Arrival, Arrivals},
};

/// For an answer of a store that is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// What takes longer does not come.
const HANGS: Duration = Duration::from_secs(60);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Any server that is not older than a window is taken for one that has just forgotten everything. Those of the tests
/// are that young, so that their windows are short.
fn server() -> RedisServer {
    RedisServer::start(&[]).unwrap()
}

fn quota(limit: u32, window: Duration) -> Quota {
    Quota::new(limit, window).unwrap().without_margin()
}

/// Creates a quota with the default margin, a sixteenth of these windows, so that a late poll moves no permit into
/// another window. A longer margin would hide grants that come too early.
fn with_margin(limit: u32, window: Duration) -> Quota {
    Quota::new(limit, window).unwrap()
}

/// A bucket whose store a crowded machine does not make look lost: its questions may be answered late, and a permit is
/// held for a quarter of the shortest window, by which every window is longer.
fn bucket(
    url: &str,
    name: &str,
    quotas: impl IntoIterator<Item = Quota>,
) -> Result<RedisLimiter, InvalidConfig> {
    let quotas: Vec<_> = quotas.into_iter().collect();
    let hold = quarter(&quotas);
    RedisLimiter::token_bucket(url, name, quotas)?.with_timeout(PATIENCE)?.with_lease(1, hold)
}

/// The same of a window.
fn window(
    url: &str,
    name: &str,
    quotas: impl IntoIterator<Item = Quota>,
) -> Result<RedisLimiter, InvalidConfig> {
    let quotas: Vec<_> = quotas.into_iter().collect();
    let hold = quarter(&quotas);
    RedisLimiter::sliding_window(url, name, quotas)?.with_timeout(PATIENCE)?.with_lease(1, hold)
}

fn quarter(quotas: &[Quota]) -> Duration {
    quotas.iter().map(Quota::window).min().unwrap() / 4
}

fn ask(cost: u32, max_wait: Option<Duration>) -> PermitRequest {
    let ask = PermitRequest::new().with_cost(NonZeroU32::new(cost).unwrap());
    max_wait.map_or(ask, |max_wait| ask.with_max_wait(max_wait))
}

/// Takes a permit and drops it. The time of the grant is known as exactly as this task was polled.
async fn take(limiter: &RedisLimiter, ask: PermitRequest) -> Result<Arrival, Refusal> {
    let mut acquire = pin!(limiter.acquire_with(&ask));
    let mut earliest = Instant::now();
    let acquire = poll_fn(|context| {
        earliest = Instant::now();
        acquire.as_mut().poll(context)
    });
    tokio::time::timeout(HANGS, acquire).await.expect("a limiter that hangs")?;
    Ok(Arrival::between(earliest, Instant::now()).with_permits(ask.cost().get()))
}

/// Until it is so.
async fn until(what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + HANGS;
    while !so() {
        assert!(Instant::now() < end, "not seen within {HANGS:?}: {what}");
        tokio::time::sleep(millis(5)).await;
    }
}

/// Grants to so many tasks of each limiter until the time is over, and how many each limiter gave.
async fn greedy(limiters: &[RedisLimiter], tasks: usize, length: Duration) -> (Arrivals, Vec<usize>) {
    let arrivals = Arrivals::new();
    let shares = greedily(limiters, tasks, length, &arrivals).await;
    (arrivals, shares)
}

/// The same into one record with others.
async fn greedily(
    limiters: &[RedisLimiter],
    tasks: usize,
    length: Duration,
    arrivals: &Arrivals,
) -> Vec<usize> {
    let end = Instant::now() + length;
    let mut all = JoinSet::new();
    for (number, limiter) in limiters.iter().enumerate() {
        for _ in 0..tasks {
            let (limiter, mut arrivals) = (limiter.clone(), arrivals.clone());
            all.spawn(async move {
                let (ask, mut count) = (PermitRequest::new().with_deadline(end), 0);
                while Instant::now() < end {
                    match take(&limiter, ask).await {
                        Ok(arrival) => {
                            arrivals.extend([arrival]);
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
    shares
}

/// A connection of the test's own.
async fn connect(server: &RedisServer) -> redis::aio::MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

fn signal(server: &RedisServer, signal: &str) {
    let status = Command::new("kill").args([signal, &server.pid().to_string()]).status().unwrap();
    assert!(status.success());
}
