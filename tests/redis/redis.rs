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

/// The longest time for a reply of a running store.
const PATIENCE: Duration = Duration::from_secs(10);

/// Anything that takes longer counts as hanging.
const HANGS: Duration = Duration::from_secs(60);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Starts a server. A server that has been up for less than a window counts as one that lost its memory, so the tests use
/// short windows.
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

/// A bucket that tolerates the late replies of a busy machine. It holds a permit for a quarter of the shortest window, so
/// every window is longer by that time.
fn bucket(
    url: &str,
    name: &str,
    quotas: impl IntoIterator<Item = Quota>,
) -> Result<RedisLimiter, InvalidConfig> {
    let quotas: Vec<_> = quotas.into_iter().collect();
    let hold = quarter(&quotas);
    RedisLimiter::token_bucket(url, name, quotas)?.with_timeout(PATIENCE)?.with_lease(1, hold)
}

/// A sliding window with the same settings.
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

/// Takes a permit and drops it. The grant happened between the last two polls of this task.
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

/// Waits until the condition is true.
async fn until(what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + HANGS;
    while !so() {
        assert!(Instant::now() < end, "not seen within {HANGS:?}: {what}");
        tokio::time::sleep(millis(5)).await;
    }
}

/// Runs this many tasks for each limiter, which take permits until the time is over. Returns the grants, and their number
/// for each limiter.
async fn greedy(limiters: &[RedisLimiter], tasks: usize, length: Duration) -> (Arrivals, Vec<usize>) {
    let arrivals = Arrivals::new();
    let shares = greedily(limiters, tasks, length, &arrivals).await;
    (arrivals, shares)
}

/// Like [`greedy`], but adds to an existing record.
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

/// Opens a connection for the test itself.
async fn connect(server: &RedisServer) -> redis::aio::MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

fn signal(server: &RedisServer, signal: &str) {
    let status = Command::new("kill").args([signal, &server.pid().to_string()]).status().unwrap();
    assert!(status.success());
}
