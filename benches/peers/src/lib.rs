//! Measures limiters, stacks and clients for the benches. The peers are the crates that the benches compare with this
//! crate.
//!
//! The package contains the measurements, the configured peers and the servers. The benches define the rows.

mod greedy;
mod interleaved;
mod keyed;
mod limiters;
mod loopback;
mod memory;
#[path = "../../shared/mod.rs"]
mod shared;
mod shared_quota;
mod stacks;
mod waiters;

use std::{
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, Waker},
};

pub use self::greedy::{Greedy, Pattern, greedy, most_in_window};
pub use self::interleaved::{LimiterComparison, Settings};
pub use self::keyed::KeyedComparison;
pub use self::limiters::{
    NoOp, governor_quota, is_admitted, leaky, no_op, ratelimit, resilience, resilience_layer, tower_limit,
    wait_for,
};
pub use self::loopback::{BODY, BenchClient, ClientComparison, ServerProcess, serve};
pub use self::memory::{QueuedMemory, idle_memory, queued_memory};
pub use self::shared::*;
pub use self::shared_quota::{Server, redis, redis_cost, redis_memory};
pub use self::stacks::{tower_buffered, tower_resilience, tower_unlimited_retries};
pub use self::waiters::{ServedWaiters, Shares, acquire_in_loops, serve_waiters};

/// Polls the future once. Returns the output if the future is ready.
#[inline]
pub fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Creates a tokio runtime. With one worker, everything runs on the thread that calls `block_on`.
pub fn runtime(workers: usize) -> io::Result<tokio::runtime::Runtime> {
    let mut builder = match workers {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if workers > 1 {
        builder.worker_threads(workers);
    }
    builder.enable_all().build()
}
