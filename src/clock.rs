//! The two clocks, each read at one place: all of the crate follows tokio's paused time through here.

use std::time::{Duration, SystemTime};

pub(crate) use tokio::time::Instant;

/// Tokio's clock: real, or what the user's test has set it to.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The wall clock, moved along with tokio's clock where that one is paused, so that a date in a header and a
/// sleep agree in a test.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clocks of the machine")]
pub(crate) fn wall() -> SystemTime {
    let (tokio, real, wall) = (Instant::now().into_std(), std::time::Instant::now(), SystemTime::now());
    let ahead = tokio.checked_duration_since(real).unwrap_or(Duration::ZERO);
    let behind = real.checked_duration_since(tokio).unwrap_or(Duration::ZERO);
    // Without a pause the two readings lie nanoseconds apart: the difference is the pause, or next to nothing.
    wall.checked_add(ahead).and_then(|wall| wall.checked_sub(behind)).unwrap_or(wall)
}

/// The wall clock as the machine has it, for what only has to sort: one reading in place of three.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clocks of the machine")]
pub(crate) fn machine() -> SystemTime {
    SystemTime::now()
}

/// `start + wait`, a century on at the most, or a year where the clock can't hold the sum.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);
    let within = |longest: Duration| start.checked_add(wait.min(longest));
    within(100 * YEAR).or_else(|| within(YEAR)).unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wall_clock_follows_paused_time() {
        let before = wall();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let moved = wall().duration_since(before).unwrap();
        assert!(moved >= Duration::from_secs(3599) && moved < Duration::from_secs(3660), "{moved:?}");
    }
}
