//! Requests that were given up without an answer: the server may not have counted them yet when it says what is
//! left.

use std::collections::VecDeque;

/// How long a request that was given up may be on its way: 10 s, in nanoseconds, what a preset gives an attempt.
const LINGER: u64 = 10_000_000_000;

/// Given up within one of these, 100 ms in nanoseconds, they are remembered together: 100 entries at the most.
const TOGETHER: u64 = LINGER / 100;

#[derive(Debug, Default)]
pub(super) struct Abandoned {
    /// Until when, and how many permits.
    entries: VecDeque<(u64, u64)>,
}

impl Abandoned {
    pub(super) fn add(&mut self, permits: u64, now: u64) {
        self.forget(now);
        match self.entries.back_mut() {
            Some((until, together)) if now.saturating_add(LINGER) <= *until => {
                *together = together.saturating_add(permits);
            }
            _ => self.entries.push_back((now.saturating_add(LINGER + TOGETHER), permits)),
        }
    }

    pub(super) fn permits(&mut self, now: u64) -> u64 {
        self.forget(now);
        self.entries.iter().fold(0, |sum, (_, permits)| sum.saturating_add(*permits))
    }

    fn forget(&mut self, now: u64) {
        while self.entries.front().is_some_and(|(until, _)| *until <= now) {
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_remembered_for_ten_seconds_and_a_little_in_bounded_space() {
        let mut abandoned = Abandoned::default();
        let millisecond = 1_000_000;
        for now in 0..60_000 {
            abandoned.add(1, now * millisecond);
            let remembered = abandoned.permits(now * millisecond);
            assert!(remembered >= (now + 1).min(10_000), "{remembered} at {now} ms");
            assert!(remembered <= 10_200, "{remembered} at {now} ms");
            assert!(abandoned.entries.len() <= 102);
        }
        assert_eq!(abandoned.permits(71_000 * millisecond), 0);
    }
}
