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

/// Lets `tasks` tasks wait for one permit each, of a limiter made on a runtime of so many workers.
pub fn crowd<W, F>(
    workers: usize,
    tasks: usize,
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
        let waiting: Vec<_> = (0..tasks)
            .map(|_| {
                let (wait, counters) = (wait.clone(), Arc::clone(&counters));
                tokio::spawn(async move {
                    let arrival = counters[0].fetch_add(1, Ordering::SeqCst);
                    let (granted, polls) = count_polls(wait()).await;
                    let turn = counters[1].fetch_add(1, Ordering::SeqCst);
                    granted.then(|| (arrival.abs_diff(turn) as f64, polls - 1, now()))
                })
            })
            .collect();
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
fn cpu_millis() -> Option<f64> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let nanos = tasks.flatten().filter_map(|task| {
        let line = fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split(' ').next()?.parse::<f64>().ok()
    });
    Some(nanos.sum::<f64>() / 1e6)
}
