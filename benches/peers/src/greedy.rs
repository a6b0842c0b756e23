//! Runs a caller that acquires every permit that it can get, and measures the most grants in any window.

use std::time::{Duration, Instant};

use crate::{BoxError, now, runtime};

/// The times at which the greedy caller tries to acquire permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// The caller tries continuously for almost five windows.
    Steady,
    /// The caller tries to acquire permits across the boundary of a window. This is the worst case for full buckets and
    /// fixed windows.
    ///
    /// The caller sleeps for three windows and calls once. After that call, the caller sleeps until shortly before the
    /// window ends, and then calls continuously for two windows.
    Boundary,
}

/// The permits that the greedy caller got.
#[derive(Debug, Clone, Copy)]
pub struct Greedy {
    /// The most grants in any window.
    ///
    /// Each grant happened between two readings of the clock. A grant counts only if both readings are in the window.
    pub worst: usize,
    /// The number of all grants.
    pub total: usize,
    /// The time from the first grant to the last grant.
    pub took: Duration,
}

/// Acquires every permit that a limiter grants. `make` creates the limiter within a runtime.
pub fn greedy<O: FnMut() -> bool>(
    pattern: Pattern,
    window: Duration,
    make: impl Fn() -> Result<O, BoxError>,
) -> Result<Greedy, BoxError> {
    let mut grants = Vec::with_capacity(10_000);
    runtime(1)?.block_on(async {
        let mut attempt = make()?;
        let idle = match pattern {
            Pattern::Steady => Duration::ZERO,
            Pattern::Boundary => {
                tokio::time::sleep(window * 3).await;
                try_acquire(&mut attempt, &mut grants);
                window - (window / 100).max(Duration::from_millis(3))
            }
        };
        tokio::time::sleep(idle).await;
        let windows = if pattern == Pattern::Steady { 5 } else { 2 };
        // The run ends slightly before a window ends, so that it contains no part of the next window.
        let end = now() + window * windows - window / 50;
        while now() < end {
            if !try_acquire(&mut attempt, &mut grants) {
                // The caller yields between attempts, because the runtime fires timers only when a task yields.
                tokio::task::yield_now().await;
            }
        }
        let took = grants.first().zip(grants.last()).map_or(Duration::ZERO, |(first, last)| last.1 - first.1);
        Ok(Greedy { worst: most_in_window(&grants, window), total: grants.len(), took })
    })
}

fn try_acquire(attempt: &mut impl FnMut() -> bool, grants: &mut Vec<(Instant, Instant)>) -> bool {
    let before = now();
    let granted = attempt();
    if granted {
        grants.push((before, now()));
    }
    granted
}

/// Returns the largest number of grants that certainly happened within one window, both ends included.
///
/// Each entry of `grants` contains the clock readings before and after a grant.
pub fn most_in_window(grants: &[(Instant, Instant)], window: Duration) -> usize {
    let mut first = 0;
    let counts = grants.iter().enumerate().map(|(last, (_, after))| {
        while after.duration_since(grants[first].0) > window {
            first += 1;
        }
        last + 1 - first
    });
    counts.max().unwrap_or(0)
}
