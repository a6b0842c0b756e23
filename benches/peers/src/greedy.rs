//! A caller who takes whatever it gets, and looks how much that was in any window.

use std::time::{Duration, Instant};

use crate::{BoxError, now, runtime};

/// When the greedy caller calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// All the time, for next to five windows.
    Steady,
    /// Not for three windows, then once, then not until shortly before a window is over, then all the time for
    /// two windows: what a bucket that has filled up and a window that begins anew have least defence against.
    Sly,
}

/// What the greedy caller got.
#[derive(Debug, Clone, Copy)]
pub struct Greedy {
    /// The most in any window. Each grant's moment is known to lie between two readings of the clock, and a
    /// grant counts only where it lies in the window for certain.
    pub worst: usize,
    /// All grants.
    pub total: usize,
    /// From the first grant to the last.
    pub took: Duration,
}

/// Asks a limiter, made within a runtime, for all that it gives.
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
            Pattern::Sly => {
                tokio::time::sleep(window * 3).await;
                ask(&mut attempt, &mut grants);
                window - (window / 100).max(Duration::from_millis(3))
            }
        };
        tokio::time::sleep(idle).await;
        let calling = if pattern == Pattern::Steady { 5 } else { 2 };
        // Not quite, so that a sixth window doesn't begin.
        let end = now() + window * calling - window / 50;
        while now() < end {
            if !ask(&mut attempt, &mut grants) {
                // Timers fire only where the runtime gets to look at them.
                tokio::task::yield_now().await;
            }
        }
        let took = grants.first().zip(grants.last()).map_or(Duration::ZERO, |(first, last)| last.1 - first.1);
        Ok(Greedy { worst: most_in_window(&grants, window), total: grants.len(), took })
    })
}

fn ask(attempt: &mut impl FnMut() -> bool, grants: &mut Vec<(Instant, Instant)>) -> bool {
    let before = now();
    let granted = attempt();
    if granted {
        grants.push((before, now()));
    }
    granted
}

/// The most grants that lie in one closed window for certain, each given as the moments before and after it.
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
