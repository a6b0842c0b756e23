//! Checks the permits in every window of a quota, and the wait that a refusal states: in a second run of the script,
//! the refused call waits.

use super::{Refused, Sim, State, Violation, callers::Caller};
use crate::{
    limit::core::{Stage, Status, Ticket},
    policy::{Quota, Taken, Unit, nanos},
};

/// The times of permits under one quota.
#[derive(Debug, Clone)]
pub(super) struct Window {
    limit: u64,
    length: u64,
    /// The permits that a bucket refills, and in which time.
    refill: Option<(u64, u64)>,
    /// In the order of their times.
    times: Vec<(u64, u64)>,
}

impl Window {
    pub(super) fn new(quota: &Quota) -> Self {
        let refill = quota.refill().map(|(refill, per)| (refill.into(), nanos(per)));
        Self { limit: quota.limit().into(), length: nanos(quota.window()), refill, times: Vec::new() }
    }

    /// Replaces the limit. Earlier permits count only if `keeps` is set.
    pub(super) fn change(&mut self, limit: u64, keeps: bool) {
        self.limit = limit;
        if !keeps {
            self.times.clear();
        }
    }

    /// Adds permits at `at`. Returns the number of permits in the fullest closed window that contains them. For a bucket,
    /// returns the number of permits that it would have to hold.
    pub(super) fn add(&mut self, at: u64, cost: u64) -> u64 {
        let place = self.times.partition_point(|(time, _)| *time <= at);
        self.times.insert(place, (at, cost));
        if let Some((refill, per)) = self.refill {
            return levels(&self.times, refill, per).max().unwrap_or(0);
        }
        let from = self.times.partition_point(|(time, _)| time.saturating_add(self.length) < at);
        let mut fullest = 0;
        for start in from..=place {
            let Some(&(first, _)) = self.times.get(start) else { break };
            let within = self.times[start..].iter().take_while(|(time, _)| *time - first <= self.length);
            fullest = fullest.max(within.map(|(_, cost)| cost).sum());
        }
        fullest
    }

    /// Returns the tokens that these callers take in the window that ends at `now`, or the level of the bucket. An
    /// amount above the limit counts as the limit, except for actual tokens from a bucket.
    pub(super) fn tokens_of(&self, callers: &[Caller], now: u64) -> u64 {
        let amount = |caller: &Caller| {
            let Taken { granted, charged, .. } = caller.tokens.taken;
            let most = if self.refill.is_some() && charged != granted { u64::MAX } else { self.limit };
            (caller.tokens.taken_at, u64::from(charged.get(Unit::Tokens)).min(most))
        };
        let mut times: Vec<_> = callers.iter().map(amount).collect();
        times.sort_unstable();
        match self.refill {
            Some((refill, per)) => levels(&times, refill, per).last().unwrap_or(0),
            None => times.iter().filter(|(at, _)| now - at <= self.length).map(|(_, tokens)| tokens).sum(),
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }
}

/// Returns the level of a bucket after each of the permits.
fn levels(times: &[(u64, u64)], refill: u64, per: u64) -> impl Iterator<Item = u64> {
    // One permit is `per` units, so that the arithmetic is exact.
    let (mut level, mut before) = (0_u128, 0);
    times.iter().map(move |(at, cost)| {
        level = level.saturating_sub(u128::from(at - before) * u128::from(refill));
        level += u128::from(*cost) * u128::from(per);
        before = *at;
        u64::try_from(level.div_ceil(per.into())).unwrap_or(u64::MAX)
    })
}

impl Sim<'_> {
    /// Runs the script up to a refusal, without the bounds of the refused call. After the refusal, the only further
    /// events are grants. Returns 1 if the call is granted when it is due. Returns 0 if the forecast may be too early,
    /// or if it is unknown because of another refusal, of a waiter that returned in the same event, of tokens that an
    /// expired permit returns, or of the requests in flight.
    pub(super) fn check_wait(mut self, refused: &Refused) -> Result<u64, Violation> {
        self.unbounded = Some(refused.caller);
        while self.start != refused.start {
            if !self.step()? {
                return Ok(0);
            }
        }
        if self.returns > refused.returns || self.callers.iter().any(|caller| self.returns_tokens(caller)) {
            return Ok(0);
        }
        let (due, others) = (refused.due, self.core.snapshot(self.time).refused);
        let granted_at = match self.callers[refused.caller].state {
            State::Waiting(ticket) | State::Woken(ticket) => self.granted_at(ticket, due),
            _ => Some(self.time),
        };
        if self.core.snapshot(self.time).refused > others {
            return Ok(0);
        }
        let max = self.script.settings.max_in_flight.map(u32::from);
        let is_full = max.is_some() && self.core.requests_in_flight(due) >= max;
        match granted_at {
            Some(at) if at == due => Ok(1),
            // Behind a waiter that is polled late, the wait may be too long: its grant is backdated.
            Some(at) if at < due && due - at <= self.script.backdating() => Ok(0),
            None if is_full || !self.checks.is_exact => Ok(0),
            _ => Err(Violation(format!(
                "refused at {} with a wait until {due}, but granted at {granted_at:?}: {:?}",
                refused.start.map_or(0, |(at, ..)| at),
                self.callers[refused.caller]
            ))),
        }
    }

    /// Returns whether a caller has not collected a permit with tokens before it expired.
    fn returns_tokens(&self, caller: &Caller) -> bool {
        let State::Woken(ticket) = caller.state else { return false };
        let Some(Stage::Granted(at)) = self.core.stage(ticket) else { return false };
        caller.call.tokens.0 > 0 && self.core.is_expired(*at, self.time)
    }

    /// Serves the waiters until a time. Each collects its permits immediately. Returns when this waiter gets its own.
    fn granted_at(&mut self, ticket: Ticket, until: u64) -> Option<u64> {
        let is_due = |ticket: &Ticket| match self.core.stage(*ticket) {
            Some(Stage::Granted(at)) => !self.core.is_expired(*at, self.time),
            stage => matches!(stage, Some(Stage::Offered(_))),
        };
        let queued = self.callers.iter().filter_map(|caller| match caller.state {
            State::Waiting(ticket) | State::Woken(ticket) => Some(ticket),
            _ => None,
        });
        let mut woken: Vec<_> = queued.filter(is_due).collect();
        loop {
            while let Some(next) = woken.pop().or_else(|| self.core.pop_woken()) {
                if matches!(self.core.status(next, self.time), Status::Granted(_)) && next == ticket {
                    return Some(self.time);
                }
            }
            if self.time >= until {
                return None;
            }
            let next = if self.time + 1 < until { until - 1 } else { until };
            self.time = self.core.next_wake(self.time).unwrap_or(next).clamp(self.time + 1, next);
            self.core.advance(self.time);
        }
    }
}
