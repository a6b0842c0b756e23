//! How `benches/limiter.rs` measures: turns of a loop, crowds of waiting tasks, greedy callers; and how it
//! tells, the peers as they are configured, and the rows that need a server. What is measured is listed there.

mod crowd;
mod fleet;
mod greedy;
mod keys;
mod made;
mod report;
mod turns;

use std::{
    error::Error,
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

pub use self::crowd::{Crowd, Shares, crowd, loopers};
pub use self::fleet::{Server, redis, redis_cost, redis_memory};
pub use self::greedy::{Greedy, Pattern, greedy, most_in_window};
pub use self::keys::Keys;
pub use self::made::{NoOp, bucket, leaky, let_through, no_op, ratelimit, resilience, tower_limit, wait_for};
pub use self::report::{Column, Report, Table};
pub use self::turns::{Contest, Settings};

/// Whatever went wrong.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The machine's clock.
#[inline]
#[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// What the future is ready with when it is polled for the first time.
#[inline]
pub fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A runtime with so many workers; with one, it is the thread that blocks on it.
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

/// The middle one, and 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
