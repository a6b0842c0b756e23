use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use tower_outbound::{
    BoxError,
    limit::{Ask, Limiter},
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
}

/// One grant, with its place among all who asked and among all who were granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) stamp: Stamp,
    pub(crate) asked_as: u64,
    pub(crate) granted_as: u64,
}

/// A run that is over.
pub(crate) struct Run {
    pub(crate) grants: Vec<Grant>,
    pub(crate) took: Duration,
    pub(crate) cut_short: bool,
    /// Of this thread, which ran all of it; none where the system doesn't tell.
    pub(crate) cpu: Option<Duration>,
}

impl Load {
    pub(crate) fn new(start: Instant, lasting: Duration) -> Self {
        let clock = Arc::new(Clock::new(start));
        Self { start, lasting, clock, asked: AtomicU64::new(0), granted: AtomicU64::new(0) }
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    fn cut_short(&self) -> bool {
        self.granted.load(Ordering::Relaxed) >= MOST_GRANTS
    }
}

pub(crate) async fn run<L>(load: &Arc<Load>, tasks: usize, limiter: &L) -> Result<Run, BoxError>
where
    L: Limiter<Acquire: Send> + Send + Sync + 'static,
{
    let cpu_before = cpu();
    let mut joining: JoinSet<_> =
        (0..tasks).map(|_| work(Arc::clone(load), limiter.clone(), tasks)).collect();
    let mut grants = Vec::new();
    while let Some(joined) = joining.join_next().await {
        grants.extend(joined?);
    }
    let cpu = cpu().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
    let took = load.start.elapsed();
    // A timer is late by a millisecond or two: what came meanwhile is not allowed for.
    grants.retain(|grant: &Grant| u128::from(grant.stamp.granted) <= load.lasting.as_nanos());
    Ok(Run { grants, cut_short: load.cut_short(), took, cpu })
}

async fn work<L: Limiter>(load: Arc<Load>, limiter: L, tasks: usize) -> Vec<Grant> {
    let mut grants = Vec::new();
    let stamper = Stamper::new(&load.clock).await;
    let asking = async {
        // All others of this run may be waiting already.
        let mut ask = Ask::default();
        ask.max_queue = tasks;
        while load.start.elapsed() < load.lasting && !load.cut_short() {
            let asked_as = load.asked.fetch_add(1, Ordering::Relaxed);
            // It can be refused for nothing: it asks for one permit, and waits for as long as it takes.
            let Ok((stamp, waited)) = stamper.stamp(limiter.acquire(ask)).await else { return };
            let granted_as = load.granted.fetch_add(1, Ordering::Relaxed);
            grants.push(Grant { stamp, asked_as, granted_as });
            // Whoever never waits would never let the others have their turn.
            if !waited {
                tokio::task::yield_now().await;
            }
        }
    };
    let _ = tokio::time::timeout_at(load.start + load.lasting, asking).await;
    grants
}

/// The processor's time that this thread, the first of its process, has had.
fn cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
