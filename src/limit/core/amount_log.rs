//! The exact log of recent amounts of one unit.

use std::collections::VecDeque;

use super::grant_log::{counted_window, whole_windows};
use crate::policy::Quota;

/// A window is divided into this many parts. The amounts of one part share an entry with the time of the last of them, so
/// that the log has a bounded length. Each amount then counts for at most 0.1 % longer.
const PARTS: u64 = 1_024;

/// The amounts of recent grants, oldest first. The sum may exceed the limit, because requests may turn out to be more
/// expensive than estimated.
#[derive(Debug, Clone)]
pub(super) struct AmountLog {
    /// The time and the sum of each entry.
    entries: VecDeque<(u64, u64)>,
    /// The sum of all entries.
    held: u64,
    pub(super) limit: u64,
    /// How long an amount [counts](counted_window).
    pub(super) window: u64,
}

impl AmountLog {
    pub(super) fn new(quota: &Quota) -> Self {
        Self { entries: VecDeque::new(), held: 0, limit: 0, window: 0 }.under(quota)
    }

    /// Changes the quota of the log.
    pub(super) fn under(mut self, quota: &Quota) -> Self {
        self.limit = u64::from(quota.limit());
        self.window = counted_window(quota);
        self
    }

    /// Returns when `total` is available, because enough old amounts have left the window. The forecast is never too
    /// late. It can be too early, because several grants may not fill each window exactly.
    pub(super) fn due(&self, start: u64, total: u64) -> u64 {
        let (windows, rest) = whole_windows(total, self.limit);
        let mut excess = (self.held + rest).saturating_sub(self.limit);
        let mut due = start;
        for (at, amount) in &self.entries {
            if excess == 0 {
                break;
            }
            due = at.saturating_add(self.window).max(start);
            excess = excess.saturating_sub(*amount);
        }
        due.saturating_add(windows.saturating_mul(self.window))
    }

    /// Adds an amount, even beyond the limit.
    pub(super) fn add(&mut self, now: u64, amount: u64) {
        self.forget(now);
        if amount == 0 {
            return;
        }
        self.held += amount;
        let part = (self.window / PARTS).max(1);
        match self.entries.back_mut() {
            Some((at, sum)) if now / part <= *at / part => (*at, *sum) = (now.max(*at), *sum + amount),
            _ => self.entries.push_back((now, amount)),
        }
    }

    /// Subtracts a part of the amount that was added at `added`, if it still counts. Its entry has a later time if later
    /// amounts share it.
    pub(super) fn give_back(&mut self, added: u64, amount: u64, now: u64) {
        if added.saturating_add(self.window) <= now {
            return;
        }
        let (index, mut rest) = (self.entries.partition_point(|(at, _)| *at < added), amount);
        // A larger amount was partly added later. The older entries come first, so that no window has room too early.
        for (_, sum) in self.entries.iter_mut().skip(index) {
            let part = rest.min(*sum);
            *sum -= part;
            rest -= part;
        }
        self.held -= amount - rest;
    }

    /// Returns the sum of the amounts after `from`.
    pub(super) fn since(&self, from: u64) -> u64 {
        self.entries.iter().rev().take_while(|(at, _)| *at > from).map(|(_, sum)| sum).sum()
    }

    pub(super) fn available(&self, now: u64) -> u64 {
        let left = self.entries.iter().take_while(|(at, _)| at.saturating_add(self.window) <= now);
        let held = self.held - left.map(|(_, sum)| sum).sum::<u64>();
        self.limit.saturating_sub(held)
    }

    /// Adds `delay` to the times of all amounts.
    pub(super) fn postpone(&mut self, delay: u64) {
        self.entries.iter_mut().for_each(|(at, _)| *at = at.saturating_add(delay));
    }

    fn forget(&mut self, now: u64) {
        while let Some((_, sum)) =
            self.entries.front().filter(|(at, _)| at.saturating_add(self.window) <= now)
        {
            self.held -= sum;
            self.entries.pop_front();
        }
    }
}
