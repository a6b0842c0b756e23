//! The guarantees that a simulation checks.

use std::{collections::BTreeSet, num::NonZeroU32};

use super::{
    bounds::Window,
    callers::{Caller, State, Tokens, Violation, violation_if},
    script::{Call, Reply, Script},
};
use crate::limit::core::{Block, Core, Grant, Rule, Stage};
use crate::{
    error::Refusal,
    policy::{Priority, Quota, nanos},
};

pub(super) struct Checks {
    /// The grants, and the arrivals at the server.
    granted: Vec<Window>,
    arrived: Vec<Window>,
    keeps_log: bool,
    /// Whether forecasts are checked.
    forecasts: bool,
    /// Whether forecasts are exact. The forecasts for costly requests may be too early, because they ignore the
    /// gaps that such requests leave. A paced window and several quotas also leave gaps.
    pub(super) is_exact: bool,
    /// The waiters of each priority that are neither woken nor absent, by the order in which they joined.
    waiting: [BTreeSet<u64>; Priority::COUNT],
    joined: u64,
    most_waiters: usize,
    paused_until: u64,
    /// The remaining permits that the server reported, until a reset. The flag is set if it reported none.
    gate: Option<(u64, u64, bool)>,
    /// Whether reports of the server apply.
    obeys_reports: bool,
    /// The quota of tokens.
    tokens: Option<Window>,
    /// Whether a request has taken tokens in the current event.
    has_new_tokens: bool,
    /// The actual tokens of the arrivals, if no request takes more than its estimate.
    arrived_tokens: Option<Window>,
    permits: u64,
    /// The permits of each priority since all priorities wait, in a script without costs.
    taken: [u64; Priority::COUNT],
    share: u64,
    /// How long a permit may be held.
    slack: u64,
    costliest: u64,
    max_in_flight: Option<u32>,
    hold_after_cancel: u64,
    /// When the cancelled requests stop counting.
    held: Vec<u64>,
    /// How late a waiter may be refused.
    lateness: u64,
}

/// How late a waiter behind others may be refused: 10 ms in nanoseconds.
const LATE_REFUSAL: u64 = 10_000_000;

impl Checks {
    pub(super) fn new(script: &Script) -> Self {
        let windows = || script.requests().map(Window::new).collect();
        let costliest = script.calls().map(|call| call.cost.get()).max().unwrap_or(1);
        // Forecasts are too inexact for a check if a rate is learned, or if priorities share the permits. The probes of a
        // long pause leave before its stated end, which is the forecast.
        let is_learned = script.settings.rule == Rule::Learned;
        let is_paced = script.settings.rule == Rule::PacedWindow;
        let has_reports = script.calls().any(|call| matches!(call.reply, Reply::Reports(..)));
        let most_tokens = script.tokens().map_or(u32::MAX, Quota::limit);
        let has_upper_bounds =
            script.calls().all(|call| call.tokens.1 <= call.tokens.0 && call.tokens.1 <= most_tokens);
        let longest = script.settings.pauses.longest;
        let is_long = |call: &Call| matches!(call.reply, Reply::Throttles(pause) if pause > longest);
        let has_ranks = script.calls().any(|call| call.priority != Priority::Normal);
        Self {
            granted: windows(),
            arrived: windows(),
            keeps_log: script.settings.rule != Rule::TokenBucket,
            is_exact: costliest == 1 && !is_paced && script.quotas.len() < 2 && script.tokens().is_none(),
            forecasts: !is_learned && !has_ranks && !has_reports && !script.calls().any(is_long),
            waiting: Default::default(),
            joined: 0,
            most_waiters: 0,
            paused_until: 0,
            gate: None,
            obeys_reports: !is_learned
                && (script.settings.obeys_remaining || script.requests().next().is_none()),
            tokens: script.tokens().map(Window::new),
            has_new_tokens: false,
            arrived_tokens: script.tokens().filter(|_| has_upper_bounds).map(Window::new),
            permits: 0,
            taken: [0; Priority::COUNT],
            slack: script.slack(),
            share: script.settings.lower_share.unwrap_or(10).into(),
            costliest: costliest.into(),
            max_in_flight: script.settings.max_in_flight.map(NonZeroU32::get),
            hold_after_cancel: script.settings.hold_after_cancel,
            held: Vec::new(),
            lateness: script.lateness + LATE_REFUSAL,
        }
    }

    pub(super) fn pause(&mut self, until: u64, now: u64) {
        if until > now {
            self.paused_until = self.paused_until.max(until);
        }
    }

    /// Records that a request in flight was cancelled.
    pub(super) fn cancelled(&mut self, now: u64) {
        self.held.push(now + self.hold_after_cancel);
    }

    pub(super) fn resume(&mut self) {
        self.paused_until = 0;
        self.gate = None;
    }

    /// Records a report of the server. A report of more permits than remain is an older one.
    pub(super) fn report(&mut self, reported: u64, uncounted: u64, seconds: u64, now: u64) {
        let (left, until) = (reported.saturating_sub(uncounted), now + seconds * 1_000_000_000);
        self.gate = match self.gate.filter(|(_, end, _)| now < *end) {
            _ if !self.obeys_reports => None,
            Some((known, end, is_shut)) if left <= known => {
                Some((left, end.max(until), is_shut || reported == 0))
            }
            Some(known) => Some(known),
            None => Some((left, until, reported == 0)),
        };
    }

    pub(super) fn change(&mut self, quotas: &[Quota]) {
        let (own, tokens): (Vec<&Quota>, Vec<_>) = quotas.iter().partition(|quota| quota.counts_requests());
        if let (Some(window), Some(new)) = (&mut self.tokens, tokens.first()) {
            window.change(new.limit().into(), true);
            self.arrived_tokens = None;
        }
        for (index, quota) in own.iter().enumerate() {
            let limit = u64::from(quota.limit());
            if let Some(window) = self.granted.get_mut(index) {
                window.change(limit, self.keeps_log);
            }
            // Requests that were granted before the change may arrive after it.
            if let Some(window) = self.arrived.get_mut(index) {
                let before = window.limit();
                window
                    .change(if self.keeps_log { before.max(limit) } else { before + limit }, self.keeps_log);
            }
        }
    }

    pub(super) fn joined(&mut self, caller: &mut Caller) {
        self.joined += 1;
        caller.joined = self.joined;
        self.returned(caller);
    }

    /// Records that a waiter whose permits expired is back at its position.
    pub(super) fn returned(&mut self, caller: &Caller) {
        self.waiting[caller.call.priority.rank()].insert(caller.joined);
    }

    pub(super) fn left(&mut self, caller: &Caller) {
        self.waiting[caller.call.priority.rank()].remove(&caller.joined);
    }

    /// Checks a grant: order, pause and windows.
    pub(super) fn granted(
        &mut self,
        caller: &mut Caller,
        was_queued: bool,
        now: u64,
    ) -> Result<(), Violation> {
        let (rank, cost) = (caller.call.priority.rank(), u64::from(caller.call.cost.get()));
        let waiting = &mut self.waiting[rank];
        let first = waiting.first().copied();
        violation_if!(was_queued && !waiting.contains(&caller.joined), "a second grant at {now}: {caller:?}");
        // A new request has not joined the queue. While no further request may be in flight, those that are go first.
        violation_if!(
            !caller.is_in_flight && first.is_some_and(|first| caller.joined == 0 || first < caller.joined),
            "a grant out of order at {now}: {caller:?}"
        );
        waiting.remove(&caller.joined);
        violation_if!(now < self.paused_until, "a grant at {now} before the end of a pause: {caller:?}");
        if let Some((left, _, _)) = self.gate.as_mut().filter(|(_, end, _)| now < *end) {
            let Some(rest) = left.checked_sub(cost) else {
                return Err(Violation(format!("a grant beyond the remaining permits at {now}: {caller:?}")));
            };
            *left = rest;
        }
        self.permits += cost;
        caller.tokens = Tokens::new(now, caller.call.tokens.0);
        self.has_new_tokens |= caller.tokens.charged() > 0;
        let is_saturated = self.waiting.iter().all(|waiting| !waiting.is_empty());
        self.taken[rank] = if is_saturated && self.costliest == 1 { self.taken[rank] + cost } else { 0 };
        if !is_saturated {
            self.taken = [0; Priority::COUNT];
        }
        let total: u64 = self.taken.iter().sum();
        for lower in 1..Priority::COUNT {
            violation_if!(
                self.taken[lower] + 3 < total * self.share / 100,
                "shares of {:?} at {now}",
                self.taken
            );
        }
        for window in &mut self.granted {
            let fullest = window.add(now, cost);
            violation_if!(fullest > window.limit(), "{fullest} grants in a window at {now}");
        }
        Ok(())
    }

    /// Checks a request that is sent: the pause, and the windows of the server.
    pub(super) fn sent(&mut self, caller: &Caller, grant: Grant, now: u64) -> Result<(), Violation> {
        violation_if!(now - grant.at > self.slack, "expired permits were used at {now}: {caller:?}");
        violation_if!(now < self.paused_until, "a request left at {now} during a pause: {caller:?}");
        violation_if!(
            self.gate.is_some_and(|(_, end, is_shut)| is_shut && now < end),
            "a request left at {now} without remaining permits: {caller:?}"
        );
        for window in &mut self.arrived {
            let fullest = window.add(now + caller.call.network, caller.call.cost.get().into());
            violation_if!(fullest > window.limit(), "{fullest} arrivals in a window at {now}");
        }
        if let Some(window) = &mut self.arrived_tokens {
            let fullest = window.add(now + caller.call.network, caller.call.tokens.1.into());
            violation_if!(fullest > window.limit(), "{fullest} tokens arrive in a window at {now}");
        }
        Ok(())
    }

    /// Returns when a refused call would be granted without its bounds, if the refusal states it.
    pub(super) fn due(&self, refusal: &Refusal, now: u64) -> Option<u64> {
        let wait = refusal.wait().filter(|wait| self.forecasts && !wait.is_zero())?;
        Some(now.saturating_add(nanos(wait)))
    }

    /// Checks the state after an event: no permit and no waiter is lost, and memory is bounded.
    pub(super) fn after(
        &mut self,
        core: &Core,
        callers: &mut [Caller],
        block: Option<&(Block, Vec<usize>)>,
        now: u64,
    ) -> Result<(), Violation> {
        let in_block = block.map_or(0, |(_, takers)| takers.len() as u64);
        let (mut waiters, mut in_flight, mut queued, mut requests) = (0, 0, 0, 0);
        for caller in &mut *callers {
            let cost = u64::from(caller.call.cost.get());
            match caller.state {
                State::Waiting(ticket) | State::Woken(ticket) => {
                    waiters += 1;
                    requests += u32::from(caller.is_in_flight);
                    match core.stage(ticket) {
                        Some(Stage::Granted(_)) => {
                            in_flight += cost;
                            requests += u32::from(!caller.is_in_flight);
                        }
                        Some(Stage::Waiting) if self.is_overdue(caller, now) => {
                            return Err(Violation(format!("a waiter was not refused by {now}: {caller:?}")));
                        }
                        Some(Stage::Waiting | Stage::Offered(_) | Stage::Absent) => {
                            queued += 1;
                            caller.tokens = Tokens::default();
                        }
                        Some(Stage::Refused(_)) => {}
                        Some(Stage::Free) | None => {
                            return Err(Violation(format!("a waiter was lost by {now}: {caller:?}")));
                        }
                    }
                }
                State::Held(_) | State::Sent(..) => (in_flight, requests) = (in_flight + cost, requests + 1),
                State::Reading => requests += 1,
                State::Ended => {}
            }
        }
        let is_new = std::mem::take(&mut self.has_new_tokens);
        if let Some(window) = self.tokens.as_ref().filter(|_| is_new) {
            let (tokens, limit) = (window.tokens_of(callers, now), window.limit());
            violation_if!(tokens > limit, "{tokens} of {limit} tokens at {now}");
        }
        let snapshot = core.snapshot(now);
        violation_if!(
            snapshot.granted + in_block != self.permits,
            "{snapshot:?} at {now}, expected {} granted",
            self.permits
        );
        violation_if!(
            snapshot.awaiting_response + in_block != in_flight || snapshot.queued != queued,
            "{snapshot:?} at {now}, expected {in_flight} in flight, {queued} queued"
        );
        self.held.retain(|until| now < *until);
        if let Some(max) = self.max_in_flight {
            let requests = requests + self.held.len() as u32;
            violation_if!(
                requests > max || snapshot.requests_in_flight != Some(requests),
                "{requests} requests in flight at {now}: {snapshot:?}"
            );
        }
        let is_waiting = self.waiting.iter().any(|waiting| !waiting.is_empty());
        violation_if!(is_waiting && core.next_wake(now).is_none(), "waiters without a timer at {now}");
        self.most_waiters = self.most_waiters.max(waiters);
        let (_, slots) = core.slots();
        violation_if!(slots > self.most_waiters + 1, "{slots} slots for {} waiters", self.most_waiters);
        Ok(())
    }

    /// Returns whether the limit of requests in flight holds up a waiter for longer than its bound.
    fn is_overdue(&self, caller: &Caller, now: u64) -> bool {
        self.max_in_flight.is_some() && caller.bound.saturating_add(self.lateness) < now
    }

    /// Checks that nothing remains after the last event.
    pub(super) fn at_end(&self, core: &Core) -> Result<(), Violation> {
        match core.slots().0 {
            0 => Ok(()),
            used => Err(Violation(format!("{used} slots in use without waiters"))),
        }
    }
}
