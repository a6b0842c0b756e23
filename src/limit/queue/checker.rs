//! The task that checks a queue for absent waiters.
//!
//! Each runtime on which requests are queued runs one, because a blocked runtime must not delay the requests of another.
//! A waiter cannot check in its place: its caller may keep the future without polling it. The task ends at its first
//! check after the queue has become empty.

use std::sync::Weak;

use tokio::{runtime, time::sleep_until};

use super::any::AnyQueue;
use crate::clock::Instant;

/// Checks the queue until no request is queued. `queue` does not keep the limiter alive.
pub(super) async fn check(queue: Weak<dyn AnyQueue>, runtime: runtime::Id, first: Instant) {
    let mut checker = Checker { queue, runtime: Some(runtime) };
    let mut at = first;
    loop {
        sleep_until(at).await;
        let next = checker.queue.upgrade().and_then(|queue| queue.check(runtime));
        let Some(next) = next else {
            checker.runtime = None;
            return;
        };
        at = next;
    }
}

/// Removes its runtime from the queue if the task is dropped, for example at a shutdown of the runtime.
struct Checker {
    queue: Weak<dyn AnyQueue>,
    /// `None` after the task has ended.
    runtime: Option<runtime::Id>,
}

impl Drop for Checker {
    fn drop(&mut self) {
        if let (Some(runtime), Some(queue)) = (self.runtime, self.queue.upgrade()) {
            queue.stop_checks(runtime);
        }
    }
}
