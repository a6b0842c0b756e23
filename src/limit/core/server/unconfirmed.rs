//! Requests that ended without a response. They may still reach the server, so they count against the remaining permits
//! that the server reports.

use std::collections::VecDeque;

/// The longest time that a dropped request may take to reach the server: 10 s in nanoseconds, a preset's attempt
/// timeout.
const TRANSIT: u64 = 10_000_000_000;

/// Requests that are dropped within the same 100 ms share an entry, so that there are at most about 100 entries.
const RESOLUTION: u64 = TRANSIT / 100;

#[derive(Debug, Clone)]
pub(crate) struct Unconfirmed {
    /// Each entry contains the time until which its requests count, and the sum of their permits.
    entries: VecDeque<(u64, u64)>,
}

impl Unconfirmed {
    pub(crate) const fn new() -> Self {
        Self { entries: VecDeque::new() }
    }

    pub(crate) fn add(&mut self, permits: u64, now: u64) {
        while self.entries.front().is_some_and(|(until, _)| *until <= now) {
            self.entries.pop_front();
        }
        match self.entries.back_mut() {
            Some((until, sum)) if now.saturating_add(TRANSIT) <= *until => {
                *sum = sum.saturating_add(permits);
            }
            _ => self.entries.push_back((now.saturating_add(TRANSIT + RESOLUTION), permits)),
        }
    }

    pub(crate) fn permits(&self, now: u64) -> u64 {
        let counted = self.entries.iter().filter(|(until, _)| *until > now);
        counted.fold(0, |sum, (_, permits)| sum.saturating_add(*permits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unconfirmed_requests_count_for_ten_seconds_and_use_bounded_memory() {
        let mut unconfirmed = Unconfirmed::new();
        let millisecond = 1_000_000;
        for now in 0..60_000 {
            unconfirmed.add(1, now * millisecond);
            let remembered = unconfirmed.permits(now * millisecond);
            assert!(remembered >= (now + 1).min(10_000), "{remembered} at {now} ms");
            assert!(remembered <= 10_200, "{remembered} at {now} ms");
            assert!(unconfirmed.entries.len() <= 102);
        }
        assert_eq!(unconfirmed.permits(71_000 * millisecond), 0);
    }
}
