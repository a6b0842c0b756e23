//! Measures the memory of idle limiters and of queued tasks.
//!
//! The figures are the allocated bytes that were not freed, including unused capacity. They are exact and the same in
//! every run. They do not include the allocator's own overhead.

use std::future::Future;

use crate::{BoxError, now, runtime};

/// The cost of each queued task. No task is served during the measurement.
#[derive(Debug, Clone, Copy)]
pub struct QueuedMemory {
    /// The allocated bytes per task, including the task that the runtime allocates.
    pub bytes: f64,
    /// The number of heap allocations per task.
    pub blocks: f64,
    /// The time to spawn and enqueue a task, in nanoseconds.
    pub enqueue: f64,
    /// The time to cancel a task, in nanoseconds. The tasks are cancelled in FIFO order.
    pub cancel: f64,
    /// The bytes per task that remain allocated after all tasks were cancelled.
    pub remaining: f64,
}

/// Acquires `burst` permits, and then queues tasks on one thread. The limiter must refill no permit before all tasks
/// are queued.
pub fn queued_memory<W, F>(
    tasks: usize,
    burst: u32,
    make: impl Fn() -> Result<W, BoxError>,
) -> Result<QueuedMemory, BoxError>
where
    W: Fn() -> F,
    F: Future<Output = bool> + Send + 'static,
{
    let runtime = runtime(1)?;
    let wait = runtime.block_on(async {
        let wait = make()?;
        for _ in 0..burst {
            wait().await.then_some(()).ok_or("a full bucket refused a permit")?;
        }
        Ok::<_, BoxError>(wait)
    })?;
    let mut handles = Vec::with_capacity(tasks);

    let mut enqueue = 0.0;
    let queued = allocation_counter::measure(|| {
        let start = now();
        runtime.block_on(async {
            for task in 0..tasks {
                handles.push(tokio::spawn(wait()));
                // The tasks are spawned in small batches, so that the runtime's own queue stays short.
                if task % 64 == 63 {
                    tokio::task::yield_now().await;
                }
            }
            // The yields let the last tasks run, and also the worker task of a limiter behind a channel.
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
        });
        enqueue = start.elapsed().as_nanos() as f64;
    });
    if handles.iter().any(tokio::task::JoinHandle::is_finished) {
        return Err("a queued task was served or refused".into());
    }
    let mut cancel = 0.0;
    let cancelled = allocation_counter::measure(|| {
        let start = now();
        handles.iter().for_each(tokio::task::JoinHandle::abort);
        runtime.block_on(async {
            for handle in &mut handles {
                _ = handle.await;
            }
        });
        cancel = start.elapsed().as_nanos() as f64;
        handles.clear();
    });
    let per_task = |sum: f64| sum / tasks as f64;
    Ok(QueuedMemory {
        bytes: per_task(queued.bytes_current as f64),
        blocks: per_task(queued.count_current as f64),
        enqueue: per_task(enqueue),
        cancel: per_task(cancel),
        remaining: per_task((queued.bytes_current + cancelled.bytes_current) as f64),
    })
}

/// Returns the size of the created value, the size of its heap allocations (both in bytes), and the number of these
/// allocations.
pub fn idle_memory<T>(make: impl FnOnce() -> Result<T, BoxError>) -> Result<[f64; 3], BoxError> {
    let mut value = None;
    let heap = allocation_counter::measure(|| value = Some(make()));
    let value = value.ok_or("the closure that creates the value did not run")??;
    Ok([size_of_val(&value) as f64, heap.bytes_current as f64, heap.count_current as f64])
}
