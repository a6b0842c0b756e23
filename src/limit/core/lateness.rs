//! Late timers: how far a grant is backdated, and how long the driver gathers several grants.

use crate::policy::{Quota, nanos};

/// The longest time that the first waiter waits beyond its due time, so that several waiters are served together: four
/// timer ticks, 4 ms in nanoseconds. A tick costs more processor time than a permit.
const GATHER: u64 = 4_000_000;

/// The maximum number of permits that are gathered. It is limited, because as many waiters' bounds are checked.
pub(super) const MAX_GATHERED: u64 = 64;

/// The delay of a late timer: 1 ms in nanoseconds.
const TICK: u64 = 1_000_000;

/// The additional wait is at most the last waiter's wait divided by this number.
const PART: u64 = 16;

/// Uncollected permits expire after at most this time, even without a quota: 1 s in nanoseconds.
pub(super) const LONGEST_UNCOLLECTED: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct Lateness {
    /// The longest time by which a grant is backdated.
    catch_up: u64,
    /// How long a granted permit stays valid.
    pub(super) slack: u64,
    /// The time to which the last grant was backdated. The times of grants never decrease.
    pub(super) taken_at: u64,
    /// The first waiter could not be served before this time, because of a server limit or of another waiter.
    held_until: u64,
}

/// When the permits of the first waiters are due.
pub(super) struct Due {
    /// The permits of the first waiter.
    pub(super) first: u64,
    /// The permits of the first waiter and one more.
    pub(super) next: u64,
    /// The permits of all waiters.
    pub(super) last: u64,
    /// The earliest bound of the first waiters.
    pub(super) bound: u64,
}

/// Returns the longest time by which a grant is backdated: a quarter of the margin. A grant after a late timer is
/// backdated to the time at which its permits became available, so that the delay does not lower the rate.
fn catch_up(quotas: &[Quota]) -> u64 {
    quotas.iter().map(|quota| nanos(quota.margin()) / 4).min().unwrap_or(0)
}

/// Returns how long a granted permit stays valid: a quarter of the margin. This limit applies to two delays: from the
/// grant until the waiter's task is polled, and from then until the inner service is ready. The third quarter of the
/// margin covers the network, and the fourth covers late timers.
///
/// Without a margin, a permit stays valid for 1/32 of the window, at most 50 ms. Zero would be too short: a task is
/// always polled a little late, so every permit of a queued request would expire. Without a quota, only uncollected
/// permits expire, after 1 s.
fn slack(quotas: &[Quota]) -> u64 {
    const LARGEST_WITHOUT_MARGIN: u64 = 100_000_000;
    let slack = |quota: &Quota| match nanos(quota.margin()) {
        0 => LARGEST_WITHOUT_MARGIN.min(nanos(quota.window()) / 16) / 2,
        margin => margin / 4,
    };
    quotas.iter().map(slack).min().unwrap_or(u64::MAX)
}

impl Lateness {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        Self { catch_up: catch_up(quotas), slack: slack(quotas), taken_at: 0, held_until: 0 }
    }

    pub(super) fn never_catch_up(&mut self) {
        self.catch_up = 0;
    }

    /// Returns the earliest time to which a grant to a waiter is backdated.
    pub(super) fn start(&self, now: u64) -> u64 {
        now.saturating_sub(self.catch_up).max(self.taken_at).max(self.held_until).min(now)
    }

    /// Records that the first waiter cannot be served before `until`, so that its grant is not backdated further.
    pub(super) fn hold(&mut self, until: u64) {
        self.held_until = until;
    }

    /// Replaces the quotas. Returns how far the times of earlier grants move forward, because a smaller margin allows
    /// less backdating.
    pub(super) fn change(&mut self, quotas: &[Quota]) -> u64 {
        let delay = self.catch_up.saturating_sub(catch_up(quotas));
        *self = Self { taken_at: self.taken_at.saturating_add(delay), ..Self::new(quotas) };
        delay
    }

    /// Returns when the driver serves the first waiter of a queue: when its permits are due, or later, so that one
    /// wake-up serves several waiters. No rate is lost, because grants are backdated by four times this delay, or
    /// because a bucket has `room` until it is full.
    pub(super) fn gather(&self, due: &Due, room: u64, now: u64) -> u64 {
        let step = due.next.saturating_sub(due.first);
        let longest = GATHER
            .min(due.last.saturating_sub(now) / PART)
            .min(step.saturating_mul(MAX_GATHERED))
            .min(due.bound.saturating_sub(TICK).saturating_sub(due.first));
        let patience = room.max(self.catch_up / 4).min(longest);
        // Waits until a permit becomes available, because waking up between two permits gains nothing.
        due.first.saturating_add(patience.checked_div(step).unwrap_or(0).saturating_mul(step))
    }
}
