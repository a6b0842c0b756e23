//! Learns the rate that a server accepts, from its rate-limit headers and its throttled responses.
//!
//! Seven events change the rate:
//!
//! | event | new rate |
//! |---|---|
//! | a throttled response | the highest of 0.98 of the last clean rate, 0.7 of the rate (0.75 while the rate of a unit is unknown) and a reported quota whose window is an estimate, at most the rate |
//! | the end of a pause before which no rate was known | the recently accepted requests per second |
//! | rate-limit headers with another quota | 98 % of that quota |
//! | a complete run without a throttled response | twice as much in the slow start, then 2 % more, 6 %, 18 %, 50 % |
//! | a complete run above the reported quota of a unit such as tokens, in which less than half of it was left | that quota |
//! | a run that used less than half of the last clean rate | the last clean rate |
//! | a 503 after six cuts by 503s | the rate before these cuts |
//!
//! A run is the time since the rate last changed, the last pause ended, or the requests last used less than 80 % of the
//! rate. A clean rate is a rate that had a complete run.
//!
//! A pause of more than a minute cannot be the rest of a window, so the server blocks all requests after an excess. The
//! slow start then raises the rate by a quarter instead of doubling it, because each block takes minutes.

mod learned_unit;
mod learning;
mod observation;
mod server_quotas;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::observation::{Acceptance, LearnedFrom};
pub(crate) use self::{
    learned_unit::LearnedUnit,
    observation::{IDLE, Observation, Progress},
};

use self::{
    learning::Pacer,
    observation::{Outage, Recent, SECOND},
    server_quotas::{ServerQuotas, Usage},
};
use crate::policy::Unit;

/// A throttled response lowers the rate to this share. With 0.8, up to 5 % of the requests are throttled after a bad
/// first estimate. With 0.5, the limiter uses only 69 % of the quota of some servers.
const CUT: f64 = 0.7;
/// The same, while the requests take amounts of a unit whose rate is unknown. A rejection then depends on the last
/// amounts and not only on the rate. With 0.7, the limiter uses on average 4 points less of the tokens.
const MIXED_CUT: f64 = 0.75;
/// The first cut after a clean rate keeps at least this share of it. With 1.0, 40 % more requests are throttled.
const BACK: f64 = 0.98;
/// The first raise after a slow start. Each raise that the server accepts triples the next one, so that the limiter
/// finds a doubled quota after five runs.
const STEP: f64 = 0.02;
const GROWTH: f64 = 3.0;
const LARGEST_STEP: f64 = 0.5;
/// A run is complete after this many accepted requests for each request in flight, plus as many again. A cut then costs
/// at most one of 80 requests.
const RUN: u64 = 40;
/// The same, while the requests take amounts of a unit whose rate is unknown. The mean amount of a short run is often too
/// low. With 40 and a cut to 0.7, 0.6 % of the requests are rejected instead of 0.4 %.
const MIXED_RUN: u64 = 60;
/// The requests of a run use at least this share of the rate. Otherwise the run proves nothing about the rate. The rest
/// is for late timers, and for requests without a response.
const USED: f64 = 0.8;
/// A run after a raise that was throttled lasts this many times as long as the time that the raise has cost. Raises
/// then cost at most 5 % of the time.
const PRICES_PER_RUN: u64 = 20;
/// A raise costs at least this time, or the pause if that is shorter. Without a minimum, the limiter uses up to 4 points
/// less of some token buckets, because requests that emptied the bucket look like a gain.
const LOWEST_PRICE: u64 = 2 * SECOND;
/// The limiter forgets the price of a raise when the next step is larger than this. Raises of 2 % and 6 % were then
/// accepted, so the quota has probably grown.
const SURE_STEP: f64 = 0.1;
/// An unknown window is as long as the longest pause, between these limits. Few servers have shorter or longer windows.
const SHORTEST_WINDOW: u64 = SECOND;
const LONGEST_WINDOW: u64 = 60 * SECOND;
/// A raise in the slow start, and at a server that blocks. A server that blocks throttles the last raise of the slow
/// start, and the limiter keeps the rate before it for 20 times the pause: on average 72 % of the quota after raises
/// of 100 %, and 88 % after raises of 25 %.
const START_STEP: f64 = 1.0;
const BLOCK_STEP: f64 = 0.25;
/// At a server that blocks, a run of the slow start is also complete after this many times the requests that the server
/// accepted before the first block. A run of as many requests may lie in two windows, and exceed neither of them.
const BLOCK_RUN: f64 = 1.5;
/// Each probe that is throttled doubles the wait up to a minute, and then increases it by a quarter, so that a pause is
/// rarely over 1.5 times as long as a block. If each probe extends the block, only a wait longer than the block ends it.
/// Few services block for longer than 15 minutes.
const DOUBLED_WAIT: u64 = 60 * SECOND;
const LONGEST_WAIT: u64 = 15 * 60 * SECOND;
/// The shortest pause after a throttled response without a requested delay if no rate is known.
const FIRST_WAIT: u64 = SECOND / 10;
/// A probe without a response counts as lost after this time, which is the default timeout of an attempt.
const PROBE_LIFE: u64 = 10 * SECOND;
/// Further 503s double the pause up to this limit, or up to the time between two requests if that is longer.
const LONGEST_OUTAGE_WAIT: u64 = 5 * SECOND;
/// The lowest rate, in requests per second.
const LOWEST: f64 = 1.0 / 60.0;
/// The highest rate, in requests per second. The pacer counts whole nanoseconds between two requests, so a higher rate
/// would not be exact.
const HIGHEST: f64 = 1e7;

/// The learned rate of one unit. Times are nanoseconds since any fixed origin, and rates are requests, or amounts of the
/// unit, per second.
#[derive(Debug, Clone, Default)]
pub struct Learner {
    pub(crate) unit: Unit,
    /// The configured quota, or infinity.
    ceiling: f64,
    /// `None` until a throttled response or a header reports a limit.
    pub(crate) rate: Option<f64>,
    pub(crate) source: LearnedFrom,
    /// The rate before the ceiling fell below it. Applies again when the ceiling rises.
    capped: Option<f64>,
    /// The last rate that had a complete run, until it is throttled.
    clean_rate: Option<f64>,
    step: f64,
    is_starting: bool,
    /// Whether the rate was raised since the last cut.
    is_raised: bool,
    pub(crate) throttled_at: Option<u64>,
    /// The longest pause, which represents the unknown window.
    span: u64,
    /// By how much the requests since the last raise were ahead of the clean rate when they were throttled.
    lead: u64,
    /// The time that the last raise has cost: the pause to which it led, without the lead.
    price: u64,
    /// The number of accepted requests that complete a run of the slow start at a server that blocks.
    block_run: u64,
    pacer: Pacer,
    quotas: ServerQuotas,
    run: Run,
    probe: Probe,
    /// The start of the current pause.
    paused_at: Option<u64>,
    wait: u64,
    /// The end of the last pause after which no rate was known.
    reopened_at: u64,
    /// When a slow start last began: at that time, or when the rate ended together with a reported quota.
    pub(crate) slow_from: u64,
    /// The time of the last throttled response that began or extended a pause. Requests granted at or before this time
    /// left before it.
    cut_at: u64,
    recent: Recent,
    /// Whether the current pause began with a 503.
    is_outage_pause: bool,
    outage: Outage,
    has_changed: bool,
    /// Whether the requests take amounts of a unit whose rate is unknown, so that this rate must also limit that unit.
    pub(crate) is_mixed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Probe {
    /// Requests leave at the rate.
    #[default]
    Open,
    /// The next request is a probe.
    Due,
    /// A probe was granted at this time, and no other request leaves.
    Sent(u64),
}

#[derive(Debug, Clone, Default)]
struct Run {
    from: u64,
    /// The total of accepted requests at the start.
    accepted: u64,
    usage: Usage,
}

impl Learner {
    /// Creates a learner whose rate never exceeds `ceiling`.
    pub(crate) fn new(ceiling: f64) -> Self {
        Self {
            ceiling,
            step: STEP,
            pacer: Pacer { burst: 1, ..Pacer::default() },
            is_starting: true,
            ..Self::default()
        }
    }

    pub(crate) fn set_ceiling(&mut self, ceiling: f64) {
        self.ceiling = ceiling;
        if let Some(rate) = self.capped.or(self.rate) {
            self.set(rate, self.source);
            self.capped = (rate > ceiling).then_some(rate);
        }
    }

    /// Returns the limit and the window of the server's quota that allows the lowest rate.
    pub(crate) fn quota(&self) -> Option<(u64, Duration)> {
        self.quotas.slowest().map(|pace| (pace.limit, Duration::from_nanos(pace.window)))
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Returns whether the rate has changed since the last call.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Returns the time between two requests at the rate.
    pub(crate) fn interval(&self) -> u64 {
        self.pacer.interval
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.probe != Probe::Open
    }

    /// Returns whether no quota is configured.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.ceiling.is_infinite()
    }

    /// Returns whether the learner reads rate-limit headers. A learner with a configured quota ignores them until the
    /// first throttled response.
    pub(crate) fn reads_headers(&self) -> bool {
        self.is_unlimited() || self.throttled_at.is_some()
    }

    /// Returns whether a permit granted at `granted_at` has expired, because a pause began after the grant.
    pub(crate) fn is_void(&self, granted_at: u64) -> bool {
        self.throttled_at.is_some() && granted_at <= self.cut_at
    }

    /// Returns when the last of `total` permits is available, if none is taken before `start`. Assumes that the server
    /// accepts a probe.
    pub(crate) fn due(&self, start: u64, total: u64, costliest: u32) -> u64 {
        match self.probe {
            Probe::Open => self.pacer.due(start, total, costliest),
            _ if total <= u64::from(costliest) => start,
            _ => start.saturating_add(self.pacer.interval.saturating_mul(total - 1)),
        }
    }

    /// Returns whether a request of this cost may leave now.
    pub(crate) fn is_free(&self, cost: u32, now: u64) -> bool {
        match self.probe {
            Probe::Open => self.due(now, cost.into(), cost) <= now,
            Probe::Due => true,
            Probe::Sent(_) => self.probe_ends().is_some_and(|ends| ends <= now),
        }
    }

    /// Returns when a probe in flight counts as lost.
    pub(crate) fn probe_ends(&self) -> Option<u64> {
        match self.probe {
            Probe::Sent(at) => Some(at.saturating_add(self.wait.max(PROBE_LIFE))),
            Probe::Open | Probe::Due => None,
        }
    }

    /// Returns the number of permits that are available now.
    pub(crate) fn available(&self, now: u64) -> u64 {
        match self.probe {
            Probe::Sent(_) => 0,
            Probe::Due => 1,
            Probe::Open => self.pacer.available(now),
        }
    }

    pub(crate) fn grant(&mut self, cost: u32, progress: Progress, now: u64) {
        self.recent.grant(progress, self.is_probing(), now);
        self.pacer.grant(cost, now);
        if self.probe != Probe::Open {
            self.probe = Probe::Sent(now);
        }
    }

    /// Ends a probe that was granted at `granted_at` and received no response. Returns when the next probe may leave.
    pub(crate) fn lose(&mut self, granted_at: u64, was_sent: bool) -> Option<u64> {
        let Probe::Sent(at) = self.probe else { return None };
        if granted_at < at {
            return None;
        }
        self.probe = Probe::Due;
        Some(if was_sent { at.saturating_add(self.wait) } else { at })
    }

    /// Lifts a pause, and forgets the server's quotas and the rate that they determined.
    pub(crate) fn resume(&mut self, now: u64) {
        self.lift_pause();
        let had_quota = self.quotas.slowest().is_some();
        self.quotas = ServerQuotas::default();
        if had_quota {
            self.end_rate(now);
        }
    }

    /// Ends a rate that came from a quota. The requests then leave in a slow start. Otherwise the whole queue would
    /// leave at once.
    fn end_rate(&mut self, now: u64) {
        self.put(None, LearnedFrom::Headers);
        self.slow_from = now;
    }

    fn lift_pause(&mut self) {
        (self.probe, self.paused_at) = (Probe::Open, None);
    }

    fn set(&mut self, rate: f64, source: LearnedFrom) {
        self.put(Some(rate.clamp(LOWEST, HIGHEST).min(self.ceiling)), source);
    }

    fn put(&mut self, rate: Option<f64>, source: LearnedFrom) {
        if self.rate != rate {
            self.capped = None;
            (self.rate, self.source, self.has_changed) = (rate, source, true);
            self.pacer.interval = rate.map_or(0, |rate| (SECOND as f64 / rate) as u64);
            if rate.is_none() {
                (self.pacer.arrival, self.clean_rate) = (0, None);
            }
        }
    }
}
