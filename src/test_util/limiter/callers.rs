//! The callers of a simulation: they submit requests, wait, send them and receive responses.

use std::time::SystemTime;

use http::HeaderMap;

use super::{Event, Refused, Reply, Sim, script::Call};
use crate::{
    error::Refusal,
    limit::core::{Ask, End, Feedback, Grant, Latest, PATIENCE, Rule, Stage, Status, Submitted, Ticket},
    policy::{Amounts, Remaining, Taken, Unit, adaptive::Acceptance, rate_limit},
};

/// The bounds of a call that is never refused. They count as bounds, so that the second run does not differ before the
/// refusal.
const NEVER_MISSED: Latest = Latest { max_wait: u64::MAX - 1, deadline: u64::MAX - 1 };

/// The state of a caller.
#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    Waiting(Ticket),
    /// Woken, and not polled since.
    Woken(Ticket),
    Held(Grant),
    Sent(Grant, u64),
    /// The head of the response has arrived, and its body has not ended.
    Reading,
    Ended,
}

#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) call: Call,
    pub(super) state: State,
    /// The order in which the caller joined the queue.
    pub(super) joined: u64,
    /// Whether it waits again after its permits have expired, and is still in flight.
    pub(super) is_in_flight: bool,
    /// When its tokens were taken, and how many it takes so far.
    pub(super) tokens: Tokens,
    /// The earlier of its bounds.
    pub(super) bound: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tokens {
    pub(super) taken_at: u64,
    pub(super) taken: Taken,
}

impl Tokens {
    pub(super) fn new(taken_at: u64, tokens: u32) -> Self {
        Self { taken_at, taken: Taken::of(Amounts::of(Unit::Tokens, tokens)) }
    }

    pub(super) fn charged(&self) -> u32 {
        self.taken.charged.get(Unit::Tokens)
    }

    /// Records the end of the permit. Returns what the request takes.
    pub(super) fn end(&mut self, is_accepted: bool) -> Taken {
        self.taken.is_accepted = Some(is_accepted);
        self.taken
    }
}

/// A violated guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub(crate) String);

/// Returns a violation with the text if the condition holds.
macro_rules! violation_if {
    ($condition:expr, $($text:tt)+) => {
        if $condition {
            return Err($crate::test_util::limiter::Violation(format!($($text)+)));
        }
    };
}
pub(super) use violation_if;

/// The time in which the server processes a request: 20 ms in nanoseconds. Each response closes a block.
const PROCESSING: u64 = 20_000_000;

/// Returns the remaining permits of a response with these headers.
pub(crate) fn remaining(left: u64, seconds: u64) -> Vec<Remaining> {
    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-remaining", left.into());
    headers.insert("x-ratelimit-reset", seconds.into());
    rate_limit::remaining(&headers, &[], || SystemTime::UNIX_EPOCH)
}

/// Reports a quota of 1,000 tokens per second.
fn remaining_tokens(left: u64) -> Vec<Remaining> {
    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-limit-tokens", 1_000.into());
    headers.insert("x-ratelimit-remaining-tokens", left.into());
    headers.insert("x-ratelimit-reset-tokens", 1.into());
    rate_limit::remaining(&headers, &[], || SystemTime::UNIX_EPOCH)
}

impl Sim<'_> {
    pub(super) fn call(&mut self, call: Call) -> Result<(), Violation> {
        let caller = self.callers.len();
        self.callers.push(Caller {
            call,
            state: State::Ended,
            joined: 0,
            is_in_flight: false,
            tokens: Tokens::default(),
            bound: u64::MAX,
        });
        if let Some((block, takers)) = &mut self.block {
            let has_room = takers.len() + call.cost.get() as usize <= block.permits as usize;
            if has_room && self.time < block.end {
                takers.extend((0..call.cost.get()).map(|_| caller));
                return self.granted(caller, Grant::new(self.time, call.cost), true);
            }
            self.close_block();
        }
        let bound = |after: Option<u64>| after.map_or(u64::MAX, |after| self.time.saturating_add(after));
        let latest = Latest { max_wait: bound(call.max_wait), deadline: bound(call.deadline) };
        match self.unbounded == Some(caller) {
            true => self.submit(caller, NEVER_MISSED, usize::MAX)?,
            false => self.submit(caller, latest, call.max_queue)?,
        }
        self.open_block();
        Ok(())
    }

    fn submit(&mut self, caller: usize, latest: Latest, max_queue: usize) -> Result<(), Violation> {
        let Call { cost, priority, .. } = self.callers[caller].call;
        let is_in_flight = self.callers[caller].is_in_flight;
        let amounts = Amounts::of(Unit::Tokens, self.callers[caller].call.tokens.0);
        let ask = Ask {
            cost,
            priority,
            latest,
            max_queue,
            is_renewed: is_in_flight,
            is_in_flight,
            amounts: &amounts,
        };
        self.callers[caller].bound = latest.last(0);
        match self.core.submit(ask, self.time) {
            Ok(Submitted::Granted(grant)) => {
                self.collect_woken()?;
                self.granted(caller, grant, true)
            }
            Ok(Submitted::Queued(ticket)) => {
                self.collect_woken()?;
                self.by_slot.insert(ticket.slot(), caller);
                self.callers[caller].state = State::Waiting(ticket);
                self.checks.joined(&mut self.callers[caller]);
                Ok(())
            }
            Err(refusal) => {
                self.refused(caller, &refusal);
                self.end_refused(caller);
                Ok(())
            }
        }
    }

    /// Hands the wake-ups of the core to the callers.
    pub(super) fn collect_woken(&mut self) -> Result<(), Violation> {
        while let Some(ticket) = self.core.pop_woken() {
            let Some(stage) = self.core.stage(ticket).cloned() else { continue };
            let Some(&caller) = self.by_slot.get(&ticket.slot()) else { continue };
            match stage {
                Stage::Granted(_) => self.checks.granted(&mut self.callers[caller], true, self.time)?,
                Stage::Refused(refusal) => {
                    self.checks.left(&self.callers[caller]);
                    self.refused(caller, &refusal);
                }
                Stage::Offered(_) => {
                    let late = self.callers[caller].call.poll.min(PATIENCE.into());
                    self.schedule(self.time.saturating_add(late), Event::Poll(caller));
                    continue;
                }
                _ => continue,
            }
            self.callers[caller].state = State::Woken(ticket);
            let call = &mut self.callers[caller].call;
            let at = self.time.saturating_add(call.poll);
            if !call.is_always_late {
                call.poll = 0;
            }
            self.schedule(at, Event::Poll(caller));
        }
        Ok(())
    }

    pub(super) fn poll(&mut self, caller: usize) -> Result<(), Violation> {
        let (State::Waiting(ticket) | State::Woken(ticket)) = self.callers[caller].state else {
            return Ok(());
        };
        self.close_block();
        self.core.advance(self.time);
        self.collect_woken()?;
        let (is_valid, is_absent) = match self.core.stage(ticket) {
            Some(Stage::Granted(at)) if self.core.is_expired(*at, self.time) => (false, true),
            stage => (matches!(stage, Some(Stage::Granted(_))), matches!(stage, Some(Stage::Absent))),
        };
        self.returns += u64::from(is_absent);
        let was_waiting = matches!(self.callers[caller].state, State::Waiting(_));
        match self.core.status(ticket, self.time) {
            Status::Waiting if was_waiting => {}
            Status::Waiting => {
                self.report.expired += 1;
                self.callers[caller].state = State::Waiting(ticket);
                // A waiter that was absent until after its bound is refused at the next event.
                self.callers[caller].bound = self.callers[caller].bound.max(self.time);
                self.checks.returned(&self.callers[caller]);
            }
            Status::Granted(grant) => {
                self.by_slot.remove(&ticket.slot());
                self.granted(caller, grant, !is_valid)?;
            }
            Status::Refused(refusal) => {
                self.by_slot.remove(&ticket.slot());
                if was_waiting {
                    self.checks.left(&self.callers[caller]);
                    self.refused(caller, &refusal);
                }
                self.end_refused(caller);
            }
        }
        Ok(())
    }

    /// Records a refusal, and when the call would be granted without its bounds.
    fn refused(&mut self, caller: usize, refusal: &Refusal) {
        self.report.refused += 1;
        let due = self.checks.due(refusal, self.time);
        self.refused.extend(due.map(|due| Refused { caller, due, start: self.start, returns: self.returns }));
    }

    fn granted(&mut self, caller: usize, grant: Grant, is_new: bool) -> Result<(), Violation> {
        if is_new {
            self.checks.granted(&mut self.callers[caller], false, self.time)?;
        }
        self.callers[caller].is_in_flight = false;
        self.report.granted += u64::from(grant.cost.get());
        self.callers[caller].state = State::Held(grant);
        let ready = self.callers[caller].call.ready;
        self.callers[caller].call.ready = 0;
        self.schedule(self.time.saturating_add(ready), Event::Ready(caller));
        Ok(())
    }

    /// Sends the request, or submits it again if its permits have expired.
    pub(super) fn ready(&mut self, caller: usize) -> Result<(), Violation> {
        let State::Held(grant) = self.callers[caller].state else { return Ok(()) };
        let is_expired = self.core.is_expired(grant.at, self.time);
        if is_expired {
            self.close_block();
            self.report.expired += 1;
            self.settle(caller, 0);
            let taken = self.callers[caller].tokens.end(false);
            self.core.finished(grant, End::Unsent, &taken, self.time);
            self.collect_woken()?;
            self.callers[caller].is_in_flight = true;
            self.callers[caller].joined = 0;
            return self.submit(caller, Latest { max_wait: u64::MAX, deadline: u64::MAX }, usize::MAX);
        }
        self.checks.sent(&self.callers[caller], grant, self.time)?;
        self.callers[caller].state = State::Sent(grant, self.time);
        let network = self.callers[caller].call.network;
        self.schedule(self.time.saturating_add(2 * network + PROCESSING), Event::Reply(caller));
        Ok(())
    }

    pub(super) fn reply(&mut self, caller: usize) {
        let State::Sent(grant, sent_at) = self.callers[caller].state else { return };
        self.close_block();
        self.callers[caller].state = State::Reading;
        let learns = self.script.settings.rule == Rule::Learned;
        // An adaptive limiter also learns the rate of tokens.
        let tokens = |left| if learns { remaining_tokens(left) } else { Vec::new() };
        let response = |acceptance, pause| {
            let others = tokens(if acceptance == Acceptance::Throttled { 0 } else { 900 });
            let is_success = acceptance == Acceptance::Accepted;
            Feedback { acceptance, is_success, pause, remaining: Vec::new(), others }
        };
        let feedback = match self.callers[caller].call.reply {
            Reply::Accepts => response(Acceptance::Accepted, None),
            Reply::Throttles(pause) => {
                let shortest = if pause == 0 { self.script.shortest_pause() } else { pause };
                // In a longer pause, probes leave.
                let certain = shortest.min(self.script.settings.pauses.longest);
                self.checks.pause(self.time.saturating_add(certain), self.time);
                response(Acceptance::Throttled, Some(pause).filter(|pause| *pause > 0))
            }
            Reply::Reports(left, seconds) => {
                self.core.expire_uncollected(self.time);
                let uncounted = self.core.uncounted(self.time) - u64::from(grant.cost.get());
                self.checks.report(left, uncounted, seconds, self.time);
                Feedback { remaining: remaining(left, seconds), ..response(Acceptance::Accepted, None) }
            }
            Reply::Nothing => {
                let taken = self.callers[caller].tokens.end(false);
                self.core.finished(grant, End::Unconfirmed, &taken, self.time);
                return self.end_in_flight(caller, true);
            }
        };
        let taken = self.callers[caller].tokens.end(feedback.acceptance == Acceptance::Accepted);
        self.core.finished(grant, End::Response(&feedback, sent_at), &taken, self.time);
        if let Some(after) = self.callers[caller].call.settles_after {
            self.schedule(self.time.saturating_add(after), Event::Settle(caller));
        }
        self.schedule(self.time.saturating_add(self.callers[caller].call.body), Event::BodyEnd(caller));
    }
}
