//! The quotas of a server, as its rate-limit headers report them.

use super::observation::SECOND;
use crate::policy::{
    nanos,
    rate_limit::{Remaining, Unit},
};

/// Lengthens the window of a quota by 2 %, so that no window exceeds the limit with a burst of a fiftieth of it.
pub(super) const MARGIN: f64 = 1.02;
const BURST_PART: u64 = 50;

/// A quota is used up if less than a twentieth of its limit remains.
const USED_UP_PART: u64 = 20;

/// The longest window from which the learner derives a rate: two minutes, twice the default total timeout of a call.
/// The average rate of a longer window would delay a burst beyond that timeout although most of the quota remains. Such
/// a quota applies only through throttled responses.
const LONGEST_WINDOW: u64 = 120 * SECOND;

/// A quota with more than a request, or a token, per 100 ns is not real, and determines no rate.
const LEAST_INTERVAL: u64 = 100;

/// A quota that is no longer reported expires after at most a day, in nanoseconds. Otherwise one response with
/// distant resets would fill the list for years.
const LONGEST_KEPT: u64 = 86_400 * SECOND;

/// The maximum number of quotas that are stored.
const MAX_QUOTAS: usize = 8;

/// The quotas that a server has reported. Times are nanoseconds since the learner's origin.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerQuotas {
    quotas: Vec<ServerQuota>,
    slowest: Option<Pace>,
}

#[derive(Debug, Clone)]
struct ServerQuota {
    policy: u64,
    limit: u64,
    window: u64,
    is_exact: bool,
    is_of_resource: bool,
    reset_at: u64,
    /// A window after the reset.
    expires_at: u64,
}

impl ServerQuota {
    /// Returns the pace if the quota determines a rate. Resets are whole seconds, so a shorter window comes from
    /// rounding or from a difference between the clocks.
    fn pace(&self) -> Option<Pace> {
        let is_usable = self.limit >= 2
            && (SECOND..=LONGEST_WINDOW).contains(&self.window)
            && self.limit <= self.window / LEAST_INTERVAL;
        is_usable.then_some(Pace { limit: self.limit, window: self.window, is_exact: self.is_exact })
    }

    /// Returns whether a window has passed since the reset, without another report.
    fn is_expired(&self, now: u64) -> bool {
        self.expires_at <= now
    }
}

/// The limit and the window of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) limit: u64,
    pub(super) window: u64,
    /// Whether the headers contain the window. Otherwise the longest reset is the estimate.
    pub(super) is_exact: bool,
}

impl Pace {
    /// Returns the requests per second at which no window exceeds the limit.
    pub(super) fn rate(self) -> f64 {
        self.limit as f64 * SECOND as f64 / (MARGIN * self.window as f64)
    }

    /// Returns how many requests may be sent at once at this rate.
    pub(super) fn burst(self) -> u64 {
        self.limit.div_ceil(BURST_PART)
    }
}

/// How much of the quotas was used during a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    /// Whether over half of a quota was used.
    pub(super) is_half: bool,
    pub(super) is_used_up: bool,
}

impl ServerQuotas {
    /// Returns the quota that allows the lowest rate.
    pub(super) fn slowest(&self) -> Option<Pace> {
        self.slowest
    }

    /// Returns the latest reset of the reported quotas without remaining permits, if it lies in the future. Uses the known
    /// reset of a quota, but at most one second after the reported one, because most resets are rounded to seconds.
    pub(super) fn reset_at(&self, reported: &[Remaining], now: u64) -> Option<u64> {
        let empty = reported.iter().filter(|reported| reported.left() == 0);
        let resets = empty.map(|reported| {
            let reset_at = now.saturating_add(nanos(reported.reset_after()));
            let known = self.quotas.iter().find(|quota| quota.policy == reported.policy());
            let known = known.map(|quota| quota.reset_at).filter(|known| *known > now);
            known.map_or(reset_at, |known| known.min(reset_at.saturating_add(SECOND)))
        });
        resets.max().filter(|reset_at| *reset_at > now)
    }

    /// Reads the headers of a response, and adds to the usage. Returns whether the slowest quota has changed.
    pub(super) fn read(&mut self, reported: &[Remaining], unit: Unit, usage: &mut Usage, now: u64) -> bool {
        // A quota of tokens determines no rate of requests, even if it has caused a rejection.
        for reported in reported.iter().filter(|reported| reported.unit() == unit) {
            let reset_after = nanos(reported.reset_after());
            let reset_at = now.saturating_add(reset_after);
            let Some(quota) = self.of_policy(reported.policy(), reset_at) else { continue };
            // Servers round a reset up to a second, so the earlier of two resets is more exact.
            quota.reset_at = if quota.reset_at > now { quota.reset_at.min(reset_at) } else { reset_at };
            let limit = reported.limit().unwrap_or(quota.limit);
            // The longest reset so far represents a window that the headers do not contain. A changed limit means
            // another quota.
            let longest = if limit == quota.limit { quota.window.max(reset_after) } else { reset_after };
            quota.window = reported.window().map_or(longest, nanos);
            quota.is_exact = reported.window().is_some();
            (quota.limit, quota.is_of_resource) = (limit, reported.is_of_resource());
            let expires_at = quota.reset_at.saturating_add(quota.window);
            quota.expires_at = expires_at.min(now.saturating_add(LONGEST_KEPT));
            if quota.pace().is_some() {
                usage.is_half |= reported.left() < quota.limit / 2;
                usage.is_used_up |= reported.left() < (quota.limit / USED_UP_PART).max(1);
            }
        }
        self.retain(reported, now)
    }

    pub(super) fn has_expired(&self, now: u64) -> bool {
        self.quotas.iter().any(|quota| quota.is_expired(now))
    }

    /// Removes the quotas that expired, unless `reported` contains them. Returns whether the slowest quota has changed.
    pub(super) fn retain(&mut self, reported: &[Remaining], now: u64) -> bool {
        self.quotas.retain(|quota| {
            reported.iter().any(|reported| reported.policy() == quota.policy) || !quota.is_expired(now)
        });
        // The quota of one resource must not pace the requests to another.
        let is_alone = self.quotas.len() == 1;
        let of_all = self.quotas.iter().filter(|quota| is_alone || !quota.is_of_resource);
        let paces = of_all.filter_map(ServerQuota::pace);
        let slowest = paces.min_by(|one, other| one.rate().total_cmp(&other.rate()));
        let is_changed = slowest != self.slowest;
        self.slowest = slowest;
        is_changed
    }

    fn of_policy(&mut self, policy: u64, reset_at: u64) -> Option<&mut ServerQuota> {
        let known = self.quotas.iter().position(|quota| quota.policy == policy);
        let place = known.or_else(|| {
            (self.quotas.len() < MAX_QUOTAS).then(|| {
                self.quotas.push(ServerQuota {
                    policy,
                    limit: 0,
                    window: 0,
                    is_exact: false,
                    is_of_resource: false,
                    reset_at,
                    expires_at: 0,
                });
                self.quotas.len() - 1
            })
        });
        self.quotas.get_mut(place?)
    }
}
