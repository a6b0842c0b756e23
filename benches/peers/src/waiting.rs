//! What is held while nothing moves: by a limiter that is idle, and by tasks that wait for it.
//!
//! Counted is what the program asked of the allocator and has not given back, spare room included: exact, and the same
//! in every run. What the allocator keeps for itself comes on top.

use std::future::Future;

use crate::{BoxError, now, runtime};

/// Of tasks that came at once, nobody being served: for each of them.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// The task itself included, which the runtime allocates.
    pub bytes: f64,
    /// Of the heap.
    pub blocks: f64,
    /// Nanoseconds to make it and put it in line.
    pub queue: f64,
    /// Nanoseconds to cancel it, all being cancelled in the order in which they came.
    pub cancel: f64,
    /// Bytes that are still held when all have been cancelled.
    pub left: f64,
}

/// Lets `tasks` tasks wait, on one thread, for a limiter whose permits at once are `burst`, and which has no more before
/// all are in line.
pub fn held<W, F>(tasks: usize, burst: u32, make: impl Fn() -> Result<W, BoxError>) -> Result<Held, BoxError>
where
    W: Fn() -> F,
    F: Future<Output = bool> + Send + 'static,
{
    let runtime = runtime(1)?;
    let wait = runtime.block_on(async {
        let wait = make()?;
        for _ in 0..burst {
            wait().await.then_some(()).ok_or("a full bucket refused")?;
        }
        Ok::<_, BoxError>(wait)
    })?;
    let mut handles = Vec::with_capacity(tasks);

    let mut queue = 0.0;
    let in_line = allocation_counter::measure(|| {
        let start = now();
        runtime.block_on(async {
            for task in 0..tasks {
                handles.push(tokio::spawn(wait()));
                // In small lots, so that the runtime's own queue stays short.
                if task % 64 == 63 {
                    tokio::task::yield_now().await;
                }
            }
            // For the last, and for whoever serves them behind a channel.
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
        });
        queue = start.elapsed().as_nanos() as f64;
    });
    if handles.iter().any(tokio::task::JoinHandle::is_finished) {
        return Err("somebody was served or refused".into());
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
    let each = |sum: f64| sum / tasks as f64;
    Ok(Held {
        bytes: each(in_line.bytes_current as f64),
        blocks: each(in_line.count_current as f64),
        queue: each(queue),
        cancel: each(cancel),
        left: each((in_line.bytes_current + cancelled.bytes_current) as f64),
    })
}

/// Bytes of the value itself, bytes and blocks of the heap that it holds.
pub fn idle<T>(make: impl FnOnce() -> Result<T, BoxError>) -> Result<[f64; 3], BoxError> {
    let mut made = None;
    let heap = allocation_counter::measure(|| made = Some(make()));
    let made = made.ok_or("nothing was made")??;
    Ok([size_of_val(&made) as f64, heap.bytes_current as f64, heap.count_current as f64])
}
