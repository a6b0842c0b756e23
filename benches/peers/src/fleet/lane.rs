//! One way to ask: so many tasks, on a runtime of their own.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use tower_outbound::{
    adapter::RedisLimiter,
    limit::{Limiter, PermitRequest},
};

use crate::{BoxError, median, now, runtime};

/// One round trip, or one permit.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Incr(MultiplexedConnection),
    Acquire(RedisLimiter),
}

impl Op {
    async fn run(&mut self) -> Result<(), BoxError> {
        match self {
            Self::Incr(connection) => {
                redis::cmd("INCR").arg("bench").query_async::<i64>(connection).await?;
            }
            Self::Acquire(limiter) => drop(limiter.acquire_with(&PermitRequest::new()).await?),
        }
        Ok(())
    }
}

/// What was done in a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) calls: f64,
    pub(super) took: Duration,
    /// Nanoseconds from asking to having, the middle one.
    pub(super) median: f64,
}

impl Turn {
    /// For each call; tasks that ask side by side share the time.
    pub(super) fn nanos(&self) -> f64 {
        self.took.as_nanos() as f64 / self.calls.max(1.0)
    }
}

pub(super) struct Lane {
    runtime: Runtime,
    /// Each over a connection of its own, which lives on the runtime.
    ops: Vec<Op>,
    /// That share each of them.
    tasks: usize,
}

impl Lane {
    pub(super) fn new(
        workers: usize,
        tasks: usize,
        make: impl FnOnce(&Runtime) -> Result<Op, BoxError>,
    ) -> Result<Self, BoxError> {
        let runtime = runtime(workers)?;
        let ops = vec![make(&runtime)?];
        Ok(Self { runtime, ops, tasks })
    }

    /// On one thread, one task for each.
    pub(super) fn apart(ops: Vec<Op>) -> Result<Self, BoxError> {
        Ok(Self { runtime: runtime(1)?, ops, tasks: 1 })
    }

    /// Takes so many permits of each: many ask together, in few questions.
    pub(super) fn fill(&self, permits: u32) -> Result<(), BoxError> {
        self.runtime.block_on(async {
            let each = self.ops.iter().flat_map(|op| (0..64).map(|_| op.clone()));
            let tasks: Vec<_> = each.map(|op| tokio::spawn(many(op, permits / 64 + 1))).collect();
            for task in tasks {
                task.await??;
            }
            Ok(())
        })
    }

    /// So many calls, of one task after another.
    pub(super) fn calls(&self, calls: u32) -> Result<(), BoxError> {
        self.runtime.block_on(many(self.ops[0].clone(), calls))
    }

    /// All tasks ask again and again for so long. What is done in the first `warm` does not count: a lease that nobody
    /// has used meanwhile has shrunk.
    pub(super) fn turn(&self, warm: Duration, length: Duration) -> Result<Turn, BoxError> {
        let start = now() + warm;
        let stop = start + length;
        self.runtime.block_on(async {
            let each = self.ops.iter().flat_map(|op| (0..self.tasks).map(move |_| op.clone()));
            let tasks: Vec<_> = each.map(|op| tokio::spawn(again(op, start, stop))).collect();
            let mut latencies = Vec::new();
            for task in tasks {
                latencies.extend(task.await??);
            }
            Ok(Turn { calls: latencies.len() as f64, took: length, median: median(latencies) })
        })
    }

    /// For each call of one task on this thread, those of the task that asks the server among them.
    pub(super) fn allocations(&self) -> Result<f64, BoxError> {
        const CALLS: u32 = 1_000;
        let mut outcome = Ok(());
        let info = allocation_counter::measure(|| outcome = self.calls(CALLS));
        outcome.map(|()| info.count_total as f64 / f64::from(CALLS))
    }
}

async fn many(mut op: Op, calls: u32) -> Result<(), BoxError> {
    for _ in 0..calls {
        op.run().await?;
    }
    Ok(())
}

/// How long each call took that began and ended between the two moments.
async fn again(mut op: Op, start: Instant, stop: Instant) -> Result<Vec<f64>, BoxError> {
    let (mut before, mut latencies) = (now(), Vec::new());
    loop {
        op.run().await?;
        let after = now();
        if after > stop {
            return Ok(latencies);
        }
        if before >= start {
            latencies.push((after - before).as_nanos() as f64);
        }
        before = after;
    }
}
