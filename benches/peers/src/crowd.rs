//! Many tasks that wait on one limiter.

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

/// Whoever has not been served by then never will be.
const PATIENCE: Duration = Duration::from_secs(20);

/// What became of a crowd that came at once.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// From the first grant to the last.
    pub took: Duration,
    /// Processor time of the process, in milliseconds, where the system tells.
    pub cpu: Option<f64>,
    /// By how many places a grant came earlier or later than its turn: the median, and the worst.
    pub displaced: (f64, f64),
    /// How often a waiting task was polled again, for each grant.
    pub wakes: f64,
}

/// Lets `tasks` tasks wait for one permit each, of a limiter made on a runtime of so many workers. They come in lots of
/// `lot`, between which the runtime turns to those that were there before: of all at once its own queue is as long as the
/// limiter's, and on one thread who was granted a permit comes behind those that have not asked yet.
pub fn crowd<W, F>(
    workers: usize,
    tasks: usize,
    lot: usize,
    make: impl Fn() -> Result<W, BoxError>,
) -> Result<Crowd, BoxError>
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
                let arrival = counters[0].fetch_add(1, Ordering::SeqCst);
                let (granted, polls) = count_polls(wait()).await;
                let turn = counters[1].fetch_add(1, Ordering::SeqCst);
                granted.then(|| (arrival.abs_diff(turn) as f64, polls - 1, now()))
            }));
            if task % lot == 0 {
                tokio::task::yield_now().await;
            }
        }
        let mut grants = Vec::with_capacity(tasks);
        for task in waiting {
            let outcome =
                tokio::time::timeout(PATIENCE, task).await.map_err(|_| "somebody still waits")??;
            grants.push(outcome.ok_or("somebody was refused")?);
        }
        let cpu = cpu.zip(cpu_millis()).map(|(before, after)| after - before);
        let stamps = || grants.iter().map(|(_, _, stamp)| *stamp);
        let (first, last) = stamps().min().zip(stamps().max()).ok_or("nobody came")?;
        Ok(Crowd {
            took: last - first,
            cpu,
            displaced: (
                median(grants.iter().map(|(displaced, ..)| *displaced).collect()),
                grants.iter().map(|(displaced, ..)| *displaced).fold(0.0, f64::max),
            ),
            wakes: grants.iter().map(|(_, wakes, _)| *wakes as f64).sum::<f64>() / tasks as f64,
        })
    })
}

/// Calls `$run!(name, make)` with each limiter that can be waited on: `$burst` at once, from then on `$rate` in every
/// `$per`. Those that refill in lumps get them of the size of the burst.
#[macro_export]
macro_rules! each_waiter {
    ($rate:expr, $per:expr, $burst:expr, $run:ident) => {{
        const ROOM: usize = 200_000;
        const PATIENCE: ::std::time::Duration = ::std::time::Duration::from_secs(365 * 86_400);
        let (rate, per, burst): (u32, ::std::time::Duration, u32) = ($rate, $per, $burst);
        // The burst counts in the quota: this refills `rate`.
        let quota = ::tower_outbound::Quota::new(rate + burst, per)?.with_burst(burst)?.without_margin();
        let lump = per * burst / rate;
        let ask = ::tower_outbound::limit::PermitRequest::new().with_max_queue(ROOM);
        $run!("tower-outbound TokenBucket", || {
            let ours = ::tower_outbound::limit::TokenBucket::new(quota);
            Ok(move || {
                let acquire = ::tower_outbound::limit::Limiter::acquire_with(&ours, &ask);
                ::futures_util::FutureExt::map(acquire, |granted| granted.is_ok())
            })
        });
        $run!("tower-outbound TokenBucket, fast clock", || {
            let ours = ::tower_outbound::limit::TokenBucket::with_quanta_clock([quota]);
            Ok(move || {
                let acquire = ::tower_outbound::limit::Limiter::acquire_with(&ours, &ask);
                ::futures_util::FutureExt::map(acquire, |granted| granted.is_ok())
            })
        });
        $run!("governor until_ready", || {
            let peer =
                ::std::sync::Arc::new(::governor::RateLimiter::direct($crate::bucket(per / rate, burst)?));
            Ok(move || {
                let peer = ::std::sync::Arc::clone(&peer);
                async move {
                    peer.until_ready().await;
                    true
                }
            })
        });
        $run!("leaky-bucket, fair", || {
            let peer = $crate::leaky(burst as usize, lump, Some(burst as usize));
            Ok(move || {
                // Not awaited in a block, which would keep the future twice.
                ::futures_util::FutureExt::map(::std::sync::Arc::clone(&peer).acquire_owned(1), |()| true)
            })
        });
        $run!("tower Buffer + RateLimit", || {
            let peer = ::tower::buffer::Buffer::new($crate::tower_limit(u64::from(burst), lump), ROOM);
            Ok(move || $crate::wait_for(peer.clone()))
        });
        $run!("tower-resilience token bucket", || {
            let peer = $crate::resilience(burst as usize, lump, PATIENCE, Ok(0))?;
            Ok(move || $crate::wait_for(peer.clone()))
        });
    }};
}

/// How the grants were shared out among tasks that come again and again.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    /// Of the task with the fewest.
    pub least: u64,
    /// Of the task with the most.
    pub most: u64,
    /// Of all together.
    pub total: u64,
    /// From the first arrival to the last look.
    pub took: Duration,
}

/// Lets `tasks` tasks wait for a permit again and again, on two workers, for so long.
pub fn loopers<W, F>(
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

/// Of all threads that live now. On Linux alone.
pub(crate) fn cpu_millis() -> Option<f64> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let nanos = tasks.flatten().filter_map(|task| {
        let line = fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split(' ').next()?.parse::<f64>().ok()
    });
    Some(nanos.sum::<f64>() / 1e6)
}
