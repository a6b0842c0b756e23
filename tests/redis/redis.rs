//! Tests the limiter that processes share through real redis-servers. The tests run in real time, because the limiter
//! uses the server's clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod decisions;
mod failover;
mod fallback_share;
mod faults;
mod fleet;
mod flight_script;
mod in_flight;
#[path = "../../examples/support/redis_server.rs"]
mod redis_server;
mod script;
mod settings;
mod shared_state;
mod tls_and_cluster;
mod unit_script;
mod units;

use std::{
    future::{Future, poll_fn},
    num::NonZeroU32,
    pin::pin,
    process::{Child, Command, Stdio},
    sync::LazyLock,
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

/// The timeout of the limiters. Even on a busy machine, a running store replies within this time.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// A test fails if one of its steps takes longer than this, because the step is assumed to hang.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits until the task is woken.
async fn until_woken<F>(task: &tokio_test::task::Spawn<F>) {
    let woken = async {
        while !task.is_woken() {
            tokio::time::sleep(millis(1)).await;
        }
    };
    tokio::time::timeout(HANG_TIMEOUT, woken).await.unwrap();
}

/// Starts a server. A server that has just started grants no permits for one window, because it may have lost its data
/// in a restart. The tests therefore use short windows.
fn server() -> RedisServer {
    RedisServer::start(&[]).unwrap()
}

/// Returns a server that runs until this process ends. Only the first tests wait for the window after its start. The
/// limiters of each test have a name of their own.
fn shared_server() -> &'static RedisServer {
    static SERVER: LazyLock<(RedisServer, Child)> = LazyLock::new(|| {
        let server = server();
        // The end of this process closes the pipe to the shell.
        let end = format!("read _; kill {}; rm -r '{}'", server.pid(), server.directory().display());
        let shell = Command::new("sh").args(["-c", &end]).stdin(Stdio::piped()).spawn().unwrap();
        (server, shell)
    });
    &SERVER.0
}

/// Creates a limiter with a server's URL, a name and quotas.
type Make = fn(&str, &str, Vec<Quota>) -> Result<RedisLimiter, InvalidConfig>;

fn quota(limit: u32, window: Duration) -> Quota {
    Quota::new(limit, window).unwrap().without_margin()
}

/// Creates a quota with the default margin, a sixteenth of the window. The margin prevents a late poll from moving a
/// permit into another window. A longer margin would hide grants that are too early.
fn with_margin(limit: u32, window: Duration) -> Quota {
    Quota::new(limit, window).unwrap()
}

/// Creates a bucket that tolerates late replies on a busy machine. The bucket holds a permit for a quarter of the
/// shortest window, so every window is longer by that quarter.
fn bucket(
    url: &str,
    name: &str,
    quotas: impl IntoIterator<Item = Quota>,
) -> Result<RedisLimiter, InvalidConfig> {
    let quotas: Vec<_> = quotas.into_iter().collect();
    let hold = quarter_of_window(&quotas);
    RedisLimiter::token_bucket(url, name, quotas)?.with_timeout(STORE_TIMEOUT)?.with_lease(1, hold)
}

/// Creates a sliding window with the same settings as [`bucket`].
fn window(
    url: &str,
    name: &str,
    quotas: impl IntoIterator<Item = Quota>,
) -> Result<RedisLimiter, InvalidConfig> {
    let quotas: Vec<_> = quotas.into_iter().collect();
    let hold = quarter_of_window(&quotas);
    RedisLimiter::sliding_window(url, name, quotas)?.with_timeout(STORE_TIMEOUT)?.with_lease(1, hold)
}

fn quarter_of_window(quotas: &[Quota]) -> Duration {
    quotas.iter().map(Quota::window).min().unwrap() / 4
}

fn request(cost: u32, max_wait: Option<Duration>) -> PermitRequest {
    let request = PermitRequest::new().with_cost(NonZeroU32::new(cost).unwrap());
    max_wait.map_or(request, |max_wait| request.with_max_wait(max_wait))
}

/// Takes a permit and drops it. Returns the times before and after the poll that returned the permit.
async fn take(limiter: &RedisLimiter, request: PermitRequest) -> Result<Arrival, Refusal> {
    let mut acquire = pin!(limiter.acquire_with(&request));
    let mut earliest = Instant::now();
    let acquire = poll_fn(|context| {
        earliest = Instant::now();
        acquire.as_mut().poll(context)
    });
    tokio::time::timeout(HANG_TIMEOUT, acquire).await.expect("the limiter hangs")?;
    Ok(Arrival::between(earliest, Instant::now()).with_permits(request.cost().get()))
}

/// Waits until `condition` returns true.
async fn wait_until(description: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + HANG_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "condition not met within {HANG_TIMEOUT:?}: {description}");
        tokio::time::sleep(millis(5)).await;
    }
}

/// Sends `request` until the store grants it.
async fn wait_for_recovery(limiter: &RedisLimiter, request: PermitRequest) {
    let start = Instant::now();
    while take(limiter, request).await.is_err() || limiter.store() != Store::Shared {
        assert!(start.elapsed() < HANG_TIMEOUT, "the limiter did not recover: {limiter:?}");
        tokio::time::sleep(millis(10)).await;
    }
}

/// Runs `tasks` tasks for each limiter. The tasks take permits until the time `length` has passed. Returns all
/// grants, and the number of grants of each limiter.
async fn take_continuously(
    limiters: &[RedisLimiter],
    tasks: usize,
    length: Duration,
) -> (Arrivals, Vec<usize>) {
    let arrivals = Arrivals::new();
    let counts = take_continuously_into(limiters, tasks, length, &arrivals).await;
    (arrivals, counts)
}

/// Takes permits like [`take_continuously`], but adds the grants to `arrivals`.
async fn take_continuously_into(
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
                let (request, mut count) = (PermitRequest::new().with_deadline(end), 0);
                while Instant::now() < end {
                    match take(&limiter, request).await {
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
    let mut counts = vec![0; limiters.len()];
    while let Some(result) = all.join_next().await {
        let (number, count) = result.unwrap();
        counts[number] += count;
    }
    counts
}

/// Opens a connection for the test itself.
async fn connect(server: &RedisServer) -> redis::aio::MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

fn signal(server: &RedisServer, signal: &str) {
    let status = Command::new("kill").args([signal, &server.pid().to_string()]).status().unwrap();
    assert!(status.success());
}
