//! Measures many tasks that wait for permits of the same limiter.

use std::{
    fs,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use crate::{BoxError, median, now, runtime};

/// A task that gets no permit within this time counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The figures of tasks that all waited for permits at the same time.
#[derive(Debug, Clone, Copy)]
pub struct ServedWaiters {
    /// The time from the first grant to the last grant.
    pub took: Duration,
    /// The CPU time of the process in milliseconds, or `None` if the operating system does not report it.
    pub cpu: Option<f64>,
    /// How many positions a grant was away from FIFO order: the median and the maximum of all grants.
    pub displacement: (f64, f64),
    /// The average number of further polls that a waiting task had after its first poll.
    pub wakeups: f64,
}

/// Spawns tasks that wait for one permit each, on a runtime with `workers` workers.
///
/// The tasks start in batches, and the runtime runs the started tasks between two batches. If all tasks started at
/// once, the runtime's queue would be as long as the limiter's. On one thread, a task with a permit would then run only
/// after all tasks that have not requested a permit yet.
pub fn serve_waiters<W, F>(
    workers: usize,
    tasks: usize,
    batch: usize,
    make: impl Fn() -> Result<W, BoxError>,
) -> Result<ServedWaiters, BoxError>
where
    W: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = bool> + Send,
{
    let runtime = runtime(workers)?;
    runtime.block_on(async {
        let (wait, counters) = (make()?, Arc::new([const { AtomicU64::new(0) }; 2]));
        let cpu = cpu_millis();
        let mut waiting = Vec::with_capacity(tasks);
        for task in 1..=tasks {
            let (wait, counters) = (wait.clone(), Arc::clone(&counters));
            waiting.push(tokio::spawn(async move {
                let request_index = counters[0].fetch_add(1, Ordering::SeqCst);
                let (granted, polls) = count_polls(wait()).await;
                let grant_index = counters[1].fetch_add(1, Ordering::SeqCst);
                granted.then(|| (request_index.abs_diff(grant_index) as f64, polls - 1, now()))
            }));
            if task % batch == 0 {
                tokio::task::yield_now().await;
            }
        }
        let mut grants = Vec::with_capacity(tasks);
        for task in waiting {
            let outcome = tokio::time::timeout(TIMEOUT, task)
                .await
                .map_err(|_| "a task still waits for its permit")??;
            grants.push(outcome.ok_or("the limiter refused a waiting task")?);
        }
        let cpu = cpu.zip(cpu_millis()).map(|(before, after)| after - before);
        let times = || grants.iter().map(|(_, _, time)| *time);
        let (first, last) = times().min().zip(times().max()).ok_or("no waiting task got a permit")?;
        Ok(ServedWaiters {
            took: last - first,
            cpu,
            displacement: (
                median(grants.iter().map(|(displacement, ..)| *displacement).collect()),
                grants.iter().map(|(displacement, ..)| *displacement).fold(0.0, f64::max),
            ),
            wakeups: grants.iter().map(|(_, wakeups, _)| *wakeups as f64).sum::<f64>() / tasks as f64,
        })
    })
}

/// Calls `$run!(name, make)` for each limiter that can wait for a permit.
///
/// Each limiter grants `$burst` permits immediately, and then `$rate` permits per `$per`. A limiter that refills in
/// steps refills `$burst` permits per step.
#[macro_export]
macro_rules! for_each_waiting_limiter {
    ($rate:expr, $per:expr, $burst:expr, $run:ident) => {{
        const MAX_QUEUE: usize = 200_000;
        const TIMEOUT: ::std::time::Duration = ::std::time::Duration::from_secs(365 * 86_400);
        let (rate, per, burst): (u32, ::std::time::Duration, u32) = ($rate, $per, $burst);
        // The burst counts against the quota, so a quota of `rate + burst` permits refills only `rate` permits per
        // window.
        let quota = ::tower_outbound::Quota::new(rate + burst, per)?.with_burst(burst)?.without_margin();
        let step = per * burst / rate;
        let request = ::tower_outbound::limit::PermitRequest::new().with_max_queue(MAX_QUEUE);
        $run!("tower-outbound token bucket", || {
            let limiter = ::tower_outbound::limit::LocalLimiter::token_bucket(quota);
            Ok(move || {
                let acquire = ::tower_outbound::limit::Limiter::acquire_with(&limiter, &request);
                ::futures_util::FutureExt::map(acquire, |granted| granted.is_ok())
            })
        });
        $run!("tower-outbound token bucket, fast clock", || {
            let limiter = ::tower_outbound::limit::LocalLimiter::token_bucket(quota).with_quanta_clock();
            Ok(move || {
                let acquire = ::tower_outbound::limit::Limiter::acquire_with(&limiter, &request);
                ::futures_util::FutureExt::map(acquire, |granted| granted.is_ok())
            })
        });
        $run!("governor until_ready", || {
            let peer = ::std::sync::Arc::new(::governor::RateLimiter::direct($crate::governor_quota(
                per / rate,
                burst,
            )?));
            Ok(move || {
                let peer = ::std::sync::Arc::clone(&peer);
                async move {
                    peer.until_ready().await;
                    true
                }
            })
        });
        $run!("leaky-bucket, fair", || {
            let peer = $crate::leaky(burst as usize, step, Some(burst as usize));
            Ok(move || {
                // `map` is used because an async block would store the future twice.
                ::futures_util::FutureExt::map(::std::sync::Arc::clone(&peer).acquire_owned(1), |()| true)
            })
        });
        $run!("tower Buffer + RateLimit", || {
            let peer = ::tower::buffer::Buffer::new($crate::tower_limit(u64::from(burst), step), MAX_QUEUE);
            Ok(move || $crate::wait_for(peer.clone()))
        });
        $run!("tower-resilience token bucket", || {
            let peer = $crate::resilience(burst as usize, step, TIMEOUT, Ok(0))?;
            Ok(move || $crate::wait_for(peer.clone()))
        });
    }};
}

/// The distribution of grants among tasks that acquire permits in a loop.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    /// The grants of the task that got the fewest.
    pub least: u64,
    /// The grants of the task that got the most.
    pub most: u64,
    /// The number of grants of all tasks together.
    pub total: u64,
    /// The length of the run.
    pub took: Duration,
}

/// Runs tasks that acquire permits in loops for `length`, on two workers.
pub fn acquire_in_loops<W, F>(
    tasks: usize,
    length: Duration,
    make: impl Fn() -> Result<W, BoxError>,
) -> Result<Shares, BoxError>
where
    W: Fn() -> F + Clone + Send + Sync + 'static,
    F: Future<Output = bool> + Send,
{
    let runtime = runtime(2)?;
    runtime.block_on(async {
        let wait = make()?;
        let counts: Arc<[AtomicU64]> = (0..tasks).map(|_| AtomicU64::new(0)).collect();
        let start: Instant = now();
        for task in 0..tasks {
            let (wait, counts) = (wait.clone(), Arc::clone(&counts));
            tokio::spawn(async move {
                while wait().await {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        tokio::time::sleep(length).await;
        let counts: Vec<_> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        Ok(Shares {
            least: counts.iter().copied().min().unwrap_or(0),
            most: counts.iter().copied().max().unwrap_or(0),
            total: counts.iter().sum(),
            took: start.elapsed(),
        })
    })
}

async fn count_polls<F: Future>(future: F) -> (F::Output, u64) {
    let (mut future, mut polls) = (pin!(future), 0);
    std::future::poll_fn(move |cx| {
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready((output, polls)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Returns the CPU time of all running threads in milliseconds. Returns `None` on systems other than Linux.
pub(crate) fn cpu_millis() -> Option<f64> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let nanos = tasks.flatten().filter_map(|task| {
        let line = fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split(' ').next()?.parse::<f64>().ok()
    });
    Some(nanos.sum::<f64>() / 1e6)
}
