use std::time::Duration;

pub use super::core::UnitState;
pub use crate::policy::adaptive::LearnedFrom;
use crate::{
    clock::Instant,
    policy::{QuotaName, Remaining, Unit},
};

/// The state of a limiter at one point in time. Its times have the type `T`.
///
/// # What delays the queue
///
/// The first of these that applies:
///
/// 1. a pause, if `paused_until` is set;
/// 2. the server's quota, if `quota` is set;
/// 3. the limit of requests in flight, if `requests_in_flight` is at least this limit;
/// 4. the limiter's own quota or learned rate of the unit in `delayed_by`, if it is set;
/// 5. its own quota or learned rate of requests, if `available` is 0.
///
/// A refused call has the same facts in its [`Refusal`](crate::error::Refusal).
///
/// # Account and parts
///
/// In a [`Joint`](crate::limit::Joint), the limiters of the account and of each part have their own snapshots.
///
/// | field | read it from |
/// |---|---|
/// | `queued` | the parts: add them. The first request of each part is also counted by the account |
/// | `granted`, `awaiting_response` | the account, where the requests of all parts take permits |
/// | `requests_in_flight` | the limiter that has the limit |
/// | `available`, `paused_until`, `quota`, `units`, `delayed_by` | both. A server's quota of a resource is only in the part |
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot<T = Instant> {
    /// The number of available permits. Zero if no further request may be in flight. `u32::MAX` if neither a quota nor
    /// a server limit applies.
    pub available: u32,
    /// The number of queued requests.
    pub queued: usize,
    /// The end of the current pause. `None` if the limiter is not paused.
    pub paused_until: Option<T>,
    /// When the next request may leave before [`paused_until`](Self::paused_until), to test whether the server accepts
    /// requests again. `None` unless the server stated a delay beyond the
    /// [longest pause](crate::limit::LocalLimiter::with_longest_pause).
    pub probe_at: Option<T>,
    /// The quota of the server that delays the queue, or that has no permits left. `None` if the server reported no
    /// such quota, if a pause lasts longer, or if the limiter does not obey the remaining permits. The name is
    /// `redacted` if it is a text of the server that contains the key, or whose call is unknown.
    pub quota: Option<QuotaName>,
    /// The server's quotas of tokens, points and other units that have not reset, from the last response that the
    /// limiter read and that reported any. Their resets are counted from this snapshot. An adaptive limiter learns a rate
    /// from them. For other limiters, an empty quota limits requests if it caused a rejection without a stated delay, or
    /// if the limiter has a quota in the same unit and
    /// [`with_server_remaining`](crate::limit::LocalLimiter::with_server_remaining) is set.
    ///
    /// A limiter with a quota reads them from rejected requests and from the responses that end a pause, unless
    /// [`with_server_remaining`](crate::limit::LocalLimiter::with_server_remaining) is set. An adaptive limiter with a
    /// quota reads them from the first throttled response on.
    pub other_quotas: Vec<Remaining>,
    /// The number of permits granted since the limiter was created.
    pub granted: u64,
    /// The number of requests refused since the limiter was created.
    pub refused: u64,
    /// The number of granted permits whose responses have not begun. A permit no longer counts if the head of its
    /// response has arrived, or if its call has failed or was dropped.
    pub awaiting_response: u64,
    /// The number of requests in flight, also those whose response body is read, and the cancelled ones that
    /// [still count](crate::limit::LocalLimiter::with_hold_after_cancel). `None` without a
    /// [limit](crate::limit::LocalLimiter::with_max_in_flight).
    pub requests_in_flight: Option<u32>,
    /// The state of each quota that counts a unit other than requests.
    pub units: Vec<UnitState>,
    /// The unit other than requests whose quota or learned rate delays the first waiter. `None` if no request waits, if
    /// another limit delays it, or if a store cannot forecast its amounts.
    pub delayed_by: Option<Unit>,
    /// The learned rate of an [adaptive](crate::limit::LocalLimiter::adaptive) limiter. `None` for other limiters, and
    /// until the limiter has learned a rate.
    pub learned: Option<Learned<T>>,
    /// The learned rate of each unit other than requests: see [`adaptive`](crate::limit::LocalLimiter::adaptive).
    pub learned_units: Vec<Learned<T>>,
}

/// What a response changed in a limiter. The rate-limit layer logs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Effect {
    /// The learned rate, if it has changed.
    pub learned: Option<Learned>,
    /// The pause that the response began, if the server stated no delay, or a delay beyond the
    /// [longest pause](crate::limit::LocalLimiter::with_longest_pause).
    pub pause: Option<Duration>,
    /// The longest pause, if the stated delay exceeds it. One request then leaves, to test whether the server accepts
    /// requests again.
    pub probe_after: Option<Duration>,
}

impl Effect {
    /// Returns this effect, completed with the changes of `other`.
    pub(super) fn or(self, other: Self) -> Self {
        let (pause, probe_after) = match self.pause {
            Some(_) => (self.pause, self.probe_after),
            None => (other.pause, other.probe_after),
        };
        Self { learned: self.learned.or(other.learned), pause, probe_after }
    }
}

/// The rate and the quota that an [adaptive](crate::limit::LocalLimiter::adaptive) limiter has learned from a server.
/// Its times have the type `T`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Learned<T = Instant> {
    /// What the rate counts.
    pub unit: Unit,
    /// The time between two requests, or between two of the unit.
    pub interval: Duration,
    /// The limit and the window of the quota in the server's rate-limit headers. If the headers report several quotas,
    /// this is the one that allows the lowest rate. If they contain no window, the longest reset so far represents it.
    pub quota: Option<(u64, Duration)>,
    /// The reason for the latest change of the interval.
    pub source: LearnedFrom,
    /// The time of the latest throttled response.
    pub throttled_at: Option<T>,
}

impl Learned {
    /// Returns the requests per second, or the amount of the unit per second.
    pub fn rate(&self) -> f64 {
        1.0 / self.interval.as_secs_f64()
    }
}

impl<T> Learned<T> {
    /// Converts the times with `time`.
    pub(super) fn with_times<U>(self, time: impl FnOnce(T) -> U) -> Learned<U> {
        let Self { unit, interval, quota, source, throttled_at } = self;
        Learned { unit, interval, quota, source, throttled_at: throttled_at.map(time) }
    }
}
