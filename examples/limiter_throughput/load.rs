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

use crate::stamp::{Clock, Stamp, Stamper};

/// No run notes more: 400 MB of stamps.
const MOST_GRANTS: u64 = 10_000_000;

/// What the tasks have in common.
pub(crate) struct Load {
    start: Instant,
    lasting: Duration,
    clock: Arc<Clock>,
    asked: AtomicU64,
    granted: AtomicU64,
    /// The grants of tasks that have ended.
    grants: Mutex<Vec<Grant>>,
}

/// The grants of one task. The load receives them when the task ends or is aborted.
struct Grants<'a> {
    load: &'a Load,
    own: Vec<Grant>,
}

impl Drop for Grants<'_> {
    fn drop(&mut self) {
        self.load.grants.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.own);
    }
}

/// One grant, with its place among all who asked and among all who were granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) stamp: Stamp,
    pub(crate) asked_as: u64,
    pub(crate) granted_as: u64,
}

/// A run that has ended.
pub(crate) struct Run {
    pub(crate) grants: Vec<Grant>,
    pub(crate) took: Duration,
    /// Whether the run ended early: by Ctrl-C, or because it reached the largest number of grants.
    pub(crate) cut_short: bool,
    /// The exit code after Ctrl-C.
    pub(crate) interrupted: Option<ExitCode>,
    /// Of this thread, which ran all of it; none where the system doesn't tell.
    pub(crate) cpu: Option<Duration>,
}

impl Load {
    pub(crate) fn new(start: Instant, lasting: Duration) -> Self {
        let clock = Arc::new(Clock::new(start));
        let (asked, granted) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { start, lasting, clock, asked, granted, grants: Mutex::default() }
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    fn cut_short(&self) -> bool {
        self.granted.load(Ordering::Relaxed) >= MOST_GRANTS
    }
}

/// Runs until the time is over or `interrupted` completes.
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
    let mut joining: JoinSet<_> =
        (0..tasks).map(|_| work(Arc::clone(load), limiter.clone(), tasks)).collect();
    let all = async {
        while let Some(joined) = joining.join_next().await {
            joined?;
        }
        Ok::<_, BoxError>(None)
    };
    let interrupted = tokio::select! {
        ended = all => ended?,
        code = interrupted => Some(code),
    };
    joining.shutdown().await;
    let mut grants = mem::take(&mut *load.grants.lock().unwrap_or_else(PoisonError::into_inner));
    let cpu = cpu().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
    let took = load.start.elapsed();
    // A timer is late by a millisecond or two: what came meanwhile is not allowed for.
    grants.retain(|grant: &Grant| u128::from(grant.stamp.granted) <= load.lasting.as_nanos());
    Ok(Run { grants, cut_short: load.cut_short() || interrupted.is_some(), interrupted, took, cpu })
}

async fn work<L: Limiter>(load: Arc<Load>, limiter: L, tasks: usize) {
    let mut grants = Grants { load: &load, own: Vec::new() };
    let stamper = Stamper::new(&load.clock).await;
    let asking = async {
        // All others of this run may be waiting already.
        let ask = PermitRequest::new().with_max_queue(tasks);
        while load.start.elapsed() < load.lasting && !load.cut_short() {
            let asked_as = load.asked.fetch_add(1, Ordering::Relaxed);
            // It can be refused for nothing: it asks for one permit, and waits for as long as it takes.
            let Ok((stamp, waited)) = stamper.stamp(limiter.acquire_with(&ask)).await else { return };
            let granted_as = load.granted.fetch_add(1, Ordering::Relaxed);
            grants.own.push(Grant { stamp, asked_as, granted_as });
            // Whoever never waits would never let the others have their turn.
            if !waited {
                tokio::task::yield_now().await;
            }
        }
    };
    let _ = tokio::time::timeout_at(load.start + load.lasting, asking).await;
}

/// The processor's time that this thread, the first of its process, has had.
fn cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
