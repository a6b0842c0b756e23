//! The two clocks of the crate. All code reads the time here, so that it follows tokio's paused time.

use std::time::{Duration, SystemTime};

pub(crate) use tokio::time::Instant;

/// Returns the time of tokio's clock, which a test can pause and advance.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the wall-clock time. If a test pauses tokio's clock, the wall-clock time is shifted like tokio's time, so
/// that dates in headers agree with sleeps.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clocks of the machine")]
pub(crate) fn wall() -> SystemTime {
    let (tokio, real, wall) = (Instant::now().into_std(), std::time::Instant::now(), SystemTime::now());
    let ahead = tokio.checked_duration_since(real).unwrap_or(Duration::ZERO);
    let behind = real.checked_duration_since(tokio).unwrap_or(Duration::ZERO);
    // If tokio's clock is not paused, `tokio` and `real` differ only by nanoseconds.
    wall.checked_add(ahead).and_then(|wall| wall.checked_sub(behind)).unwrap_or(wall)
}

/// Returns the machine's wall-clock time, even if a test pauses tokio's clock. Only ids contain this time, so that they
/// can be sorted by it. The function reads one clock, whereas [`wall`] reads three.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clocks of the machine")]
pub(crate) fn machine() -> SystemTime {
    SystemTime::now()
}

/// Returns `start + wait`. Limits `wait` to a century, or to a year if the clock cannot represent the sum.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);
    let within = |longest: Duration| start.checked_add(wait.min(longest));
    within(100 * YEAR).or_else(|| within(YEAR)).unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wall_clock_follows_paused_time() {
        let before = wall();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let moved = wall().duration_since(before).unwrap();
        assert!(moved >= Duration::from_secs(3599) && moved < Duration::from_secs(3660), "{moved:?}");
    }
}
