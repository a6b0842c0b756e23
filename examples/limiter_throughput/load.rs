use std::{
    future::Future,
    mem,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use tower_outbound::{
    BoxError,
    limit::{Limiter, PermitRequest},
};

use crate::grant_time::{Clock, GrantTime, GrantTimer};

/// The largest number of grants in a run. This number of grants takes 400 MB of memory.
const MAX_GRANTS: u64 = 10_000_000;

/// The state that all tasks of the run share.
pub(crate) struct Load {
    start: Instant,
    duration: Duration,
    clock: Arc<Clock>,
    requested: AtomicU64,
    granted: AtomicU64,
    /// The grants that the finished tasks got.
    grants: Mutex<Vec<Grant>>,
}

/// The grants that one task got. When the task ends or is aborted, its grants move to the `Load`.
struct Grants<'a> {
    load: &'a Load,
    own: Vec<Grant>,
}

impl Drop for Grants<'_> {
    fn drop(&mut self) {
        self.load.grants.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.own);
    }
}

/// A grant, with its position among all requests and its position among all grants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) time: GrantTime,
    pub(crate) request_index: u64,
    pub(crate) grant_index: u64,
}

/// The results of a finished run.
pub(crate) struct Run {
    pub(crate) grants: Vec<Grant>,
    pub(crate) took: Duration,
    /// Whether the run ended early, because of Ctrl-C or because it reached the largest number of grants.
    pub(crate) cut_short: bool,
    /// The exit code if Ctrl-C ended the run.
    pub(crate) interrupted: Option<ExitCode>,
    /// The CPU time of the thread that ran the limiter and all tasks, or `None` if the operating system does not report
    /// it.
    pub(crate) cpu: Option<Duration>,
}

impl Load {
    pub(crate) fn new(start: Instant, duration: Duration) -> Self {
        let clock = Arc::new(Clock::new(start));
        let (requested, granted) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { start, duration, clock, requested, granted, grants: Mutex::default() }
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    fn cut_short(&self) -> bool {
        self.granted.load(Ordering::Relaxed) >= MAX_GRANTS
    }
}

/// Runs the tasks until the duration has passed or `interrupted` completes.
pub(crate) async fn run<L>(
    load: &Arc<Load>,
    tasks: usize,
    limiter: &L,
    interrupted: impl Future<Output = ExitCode>,
) -> Result<Run, BoxError>
where
    L: Limiter + Send + Sync + 'static,
{
    let cpu_before = cpu();
    let mut running: JoinSet<_> =
        (0..tasks).map(|_| acquire_repeatedly(Arc::clone(load), limiter.clone(), tasks)).collect();
    let all = async {
        while let Some(joined) = running.join_next().await {
            joined?;
        }
        Ok::<_, BoxError>(None)
    };
    let interrupted = tokio::select! {
        ended = all => ended?,
        code = interrupted => Some(code),
    };
    running.shutdown().await;
    let mut grants = mem::take(&mut *load.grants.lock().unwrap_or_else(PoisonError::into_inner));
    let cpu = cpu().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
    let took = load.start.elapsed();
    // The timer that ends the run fires one or two milliseconds late. Grants after the end of the run are not counted.
    grants.retain(|grant: &Grant| u128::from(grant.time.granted) <= load.duration.as_nanos());
    Ok(Run { grants, cut_short: load.cut_short() || interrupted.is_some(), interrupted, took, cpu })
}

async fn acquire_repeatedly<L: Limiter>(load: Arc<Load>, limiter: L, tasks: usize) {
    let mut grants = Grants { load: &load, own: Vec::new() };
    let timer = GrantTimer::new(&load.clock).await;
    let acquire_all = async {
        // The queue has room for all tasks at the same time.
        let request = PermitRequest::new().with_max_queue(tasks);
        while load.start.elapsed() < load.duration && !load.cut_short() {
            let request_index = load.requested.fetch_add(1, Ordering::Relaxed);
            // The limiter never refuses this request: the cost is 1, there is no deadline, and the queue has room.
            let Ok((time, waited)) = timer.measure(limiter.acquire_with(&request)).await else { return };
            let grant_index = load.granted.fetch_add(1, Ordering::Relaxed);
            grants.own.push(Grant { time, request_index, grant_index });
            // The task yields, because a task that never waits for its permit would block the other tasks.
            if !waited {
                tokio::task::yield_now().await;
            }
        }
    };
    let _ = tokio::time::timeout_at(load.start + load.duration, acquire_all).await;
}

/// Returns the CPU time of the main thread, or `None` if the operating system does not report it.
fn cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
