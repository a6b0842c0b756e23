//! How the benches measure: calls to a service, turns of a loop, crowds of waiting tasks, greedy callers, clients against
//! a server of their own; and how they tell, the peers as they are configured, and the rows that need a server. What is
//! measured is listed in the bench.

mod crowd;
mod fleet;
mod greedy;
mod keys;
mod made;
#[path = "../../shared/mod.rs"]
mod shared;
mod stacks;
mod turns;
mod waiting;
mod wire;

use std::{
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, Waker},
};

pub use self::crowd::{Crowd, Shares, crowd, loopers};
pub use self::fleet::{Server, redis, redis_cost, redis_memory};
pub use self::greedy::{Greedy, Pattern, greedy, most_in_window};
pub use self::keys::Keys;
pub use self::made::{
    NoOp, bucket, leaky, let_through, no_op, ratelimit, resilience, resilience_layer, tower_limit, wait_for,
};
pub use self::shared::*;
pub use self::stacks::{tower_buffered, tower_outside, tower_resilience};
pub use self::turns::{Contest, Settings};
pub use self::waiting::{Held, held, idle};
pub use self::wire::{BODY, Caller, OwnServer, Race, serve};

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
