//! Runs tasks that send queries to the Redis server, on a runtime of their own.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use tower_outbound::{
    adapter::RedisLimiter,
    limit::{Limiter, PermitRequest},
};

use crate::{BoxError, median, now, runtime};

/// The measured operation: a bare round trip, or the acquisition of a permit.
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

/// The figures that a load measured in one sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) calls: f64,
    pub(super) took: Duration,
    /// The median duration of a call in nanoseconds.
    pub(super) median: f64,
}

impl Sample {
    /// Returns the nanoseconds per call: the length of the sample divided by the number of calls of all tasks.
    pub(super) fn nanos(&self) -> f64 {
        self.took.as_nanos() as f64 / self.calls.max(1.0)
    }
}

pub(super) struct Load {
    runtime: Runtime,
    /// Each operation has its own connection, which the runtime drives.
    ops: Vec<Op>,
    /// The number of tasks that share each operation.
    tasks: usize,
}

impl Load {
    pub(super) fn new(
        workers: usize,
        tasks: usize,
        make: impl FnOnce(&Runtime) -> Result<Op, BoxError>,
    ) -> Result<Self, BoxError> {
        let runtime = runtime(workers)?;
        let ops = vec![make(&runtime)?];
        Ok(Self { runtime, ops, tasks })
    }

    /// Creates a load with one task per operation, on one thread.
    pub(super) fn separate(ops: Vec<Op>) -> Result<Self, BoxError> {
        Ok(Self { runtime: runtime(1)?, ops, tasks: 1 })
    }

    /// Acquires at least `permits` permits from each limiter, one limiter after the other. Several tasks acquire the
    /// permits, so that few queries are needed. If all limiters were filled at once, permits would expire before
    /// their tasks run.
    pub(super) fn fill(&self, permits: u32) -> Result<(), BoxError> {
        self.runtime.block_on(async {
            for op in &self.ops {
                let task = |_| tokio::spawn(run_many(op.clone(), permits / 64 + 1));
                let tasks: Vec<_> = (0..64).map(task).collect();
                for task in tasks {
                    task.await??;
                }
            }
            Ok(())
        })
    }

    /// Makes the given number of sequential calls from one task.
    pub(super) fn calls(&self, calls: u32) -> Result<(), BoxError> {
        self.runtime.block_on(run_many(self.ops[0].clone(), calls))
    }

    /// Runs all tasks in loops for `length`, after a warm-up that is not measured.
    ///
    /// A lease shrinks while it is unused, so it must grow again during the warm-up.
    pub(super) fn sample(&self, warm_up: Duration, length: Duration) -> Result<Sample, BoxError> {
        let start = now() + warm_up;
        let stop = start + length;
        self.runtime.block_on(async {
            let ops = self.ops.iter().flat_map(|op| (0..self.tasks).map(move |_| op.clone()));
            let tasks: Vec<_> = ops.map(|op| tokio::spawn(run_until(op, start, stop))).collect();
            let mut latencies = Vec::new();
            for task in tasks {
                latencies.extend(task.await??);
            }
            Ok(Sample { calls: latencies.len() as f64, took: length, median: median(latencies) })
        })
    }

    /// Returns the allocations per call of one task, including those of the task that drives the connection.
    pub(super) fn allocations(&self) -> Result<f64, BoxError> {
        const CALLS: u32 = 1_000;
        let mut outcome = Ok(());
        let info = allocation_counter::measure(|| outcome = self.calls(CALLS));
        outcome.map(|()| info.count_total as f64 / f64::from(CALLS))
    }
}

async fn run_many(mut op: Op, calls: u32) -> Result<(), BoxError> {
    for _ in 0..calls {
        op.run().await?;
    }
    Ok(())
}

/// Returns the durations of all calls that began and ended between `start` and `stop`.
async fn run_until(mut op: Op, start: Instant, stop: Instant) -> Result<Vec<f64>, BoxError> {
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
