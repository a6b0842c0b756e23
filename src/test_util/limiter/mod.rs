//! The core of the limiter without a runtime, and its simulation on a virtual clock: the core, its callers, and a
//! server. These items may change in any release.
//!
//! The simulation jumps from one event to the next, applies it, and checks the guarantees of the limiter
//! after each event. It does with the core what the limiter does: it wakes callers, drives the timer, and opens and
//! closes blocks.

mod bounds;
mod callers;
mod checks;
mod script;
mod table;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, btree_map::BTreeMap},
};

#[cfg(test)]
pub(crate) use self::callers::remaining;
pub use self::{
    callers::Violation,
    script::{Action, Call, Reply, Script, Step},
};
use self::{
    callers::{Caller, State, Tokens, violation_if},
    checks::Checks,
};
use crate::limit::LocalLimiter;
pub use crate::limit::core::{
    Ask, Block, Core, CoreSettings, End, Feedback, Grant, Latest, Rule, Status, Submitted, Ticket,
};
use crate::policy::{Amounts, Quota, Unit};
pub use crate::policy::{Taken, adaptive::Acceptance};
use crate::random::Random;

/// A constructor of a limiter.
pub type MakeLimiter = fn(Vec<Quota>) -> LocalLimiter;

/// The rules of the in-process limiters: the name, the rule and the constructor of each. The simulation and the tests
/// of tower's contract run each of them.
pub const RULES: [(&str, Rule, MakeLimiter); 4] = [
    ("token bucket", Rule::TokenBucket, LocalLimiter::token_bucket),
    ("paced window", Rule::PacedWindow, LocalLimiter::paced_window),
    ("sliding window", Rule::SlidingWindow, LocalLimiter::sliding_window),
    ("adaptive", Rule::Learned, LocalLimiter::adaptive),
];

/// The maximum number of events of a script. More mean that time does not proceed.
const MOST_EVENTS: usize = 20_000;

/// The number of refusals whose waits are checked. Each takes a second run.
const CHECKED_WAITS: usize = 3;

/// Something that happens at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Step(usize),
    /// The driver's timer fires, if it was set to this number.
    Timer(u64),
    Poll(usize),
    /// The inner service is ready for the request.
    Ready(usize),
    Reply(usize),
    Settle(usize),
    BodyEnd(usize),
}

/// The start of an event: its time, its number, the event, and how many events have been scheduled before.
type Start = (u64, u64, Event, u64);

/// A refusal that states when the call would be granted without its bounds.
struct Refused {
    caller: usize,
    due: u64,
    /// The event with the refusal.
    start: Option<Start>,
    /// How many absent waiters had returned before the refusal.
    returns: u64,
}

/// The figures of a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub events: u64,
    pub granted: u64,
    pub refused: u64,
    pub expired: u64,
    pub blocks: u64,
    pub exact_waits: u64,
}

impl Report {
    /// Adds the figures of another simulation.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.granted += other.granted;
        self.refused += other.refused;
        self.expired += other.expired;
        self.blocks += other.blocks;
        self.exact_waits += other.exact_waits;
    }
}

pub struct Sim<'a> {
    script: &'a Script,
    core: Core,
    time: u64,
    callers: Vec<Caller>,
    /// The callers in the queue, by the slots of their tickets.
    by_slot: BTreeMap<usize, usize>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    random: Random,
    /// The number of the driver's timer, and the time for which it is set.
    timer: (u64, Option<u64>),
    /// The open block, and the callers that took its permits.
    block: Option<(Block, Vec<usize>)>,
    checks: Checks,
    report: Report,
    /// The start of the current event.
    start: Option<Start>,
    /// The refusals that state a wait.
    refused: Vec<Refused>,
    /// How many absent waiters have returned to their positions.
    returns: u64,
    /// The call without bounds in the second run.
    unbounded: Option<usize>,
}

impl<'a> Sim<'a> {
    pub fn new(script: &'a Script) -> Self {
        let mut sim = Self {
            script,
            core: Core::new(&script.quotas, script.settings),
            time: 0,
            callers: Vec::new(),
            by_slot: BTreeMap::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            random: Random::seeded(!script.seed),
            timer: (0, None),
            block: None,
            checks: Checks::new(script),
            report: Report::default(),
            start: None,
            refused: Vec::new(),
            returns: 0,
            unbounded: None,
        };
        for (index, step) in script.steps.iter().enumerate() {
            sim.schedule(step.at, Event::Step(index));
        }
        sim
    }

    /// Runs the script until no request waits and no event remains.
    ///
    /// # Errors
    ///
    /// Returns the first violation of a guarantee.
    pub fn run(mut self) -> Result<Report, Violation> {
        while self.step()? {}
        let waiting = self.callers.iter().position(|caller| !matches!(caller.state, State::Ended));
        if let Some(caller) = waiting {
            return Err(Violation(format!("call {caller} was lost: {:?}", self.callers[caller])));
        }
        self.checks.at_end(&self.core)?;
        for refused in self.refused.iter().rev().take(CHECKED_WAITS) {
            self.report.exact_waits += Sim::new(self.script).check_wait(refused)?;
        }
        Ok(self.report)
    }

    /// Applies the next event. Returns whether there was one.
    fn step(&mut self) -> Result<bool, Violation> {
        let Some(Reverse((at, number, event))) = self.events.pop() else { return Ok(false) };
        self.report.events += 1;
        violation_if!(
            self.report.events > MOST_EVENTS as u64,
            "no end after {MOST_EVENTS} events: {event:?}"
        );
        self.time = at.max(self.time);
        self.start = Some((self.time, number, event, self.scheduled));
        self.apply(event)?;
        self.collect_woken()?;
        self.checks.after(&self.core, &mut self.callers, self.block.as_ref(), self.time)?;
        self.set_timer();
        Ok(true)
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    /// Sets the driver's timer to the next wake-up of the core.
    fn set_timer(&mut self) {
        let wake = self.core.next_wake(self.time);
        if wake == self.timer.1 {
            return;
        }
        self.timer = (self.timer.0 + 1, wake);
        // Without a timer, the end of a request in flight serves the next waiter.
        if let Some(wake) = wake.filter(|wake| *wake < u64::MAX) {
            let late = self.random.up_to(self.script.lateness);
            self.schedule(wake.max(self.time).saturating_add(late), Event::Timer(self.timer.0));
        }
    }

    fn apply(&mut self, event: Event) -> Result<(), Violation> {
        let now = self.time;
        match event {
            Event::Step(index) => {
                let script = self.script;
                let Some(step) = script.steps.get(index) else { return Ok(()) };
                match &step.action {
                    Action::Call(call) => return self.call(*call),
                    other => {
                        self.close_block();
                        self.act(other)?;
                    }
                }
            }
            Event::Timer(number) if number == self.timer.0 => {
                self.close_block();
                self.core.advance(now);
                self.timer.1 = None;
                violation_if!(
                    self.core.next_wake(now).is_some_and(|wake| wake <= now),
                    "the driver spins at {now}"
                );
            }
            Event::Timer(_) => {}
            Event::Poll(caller) => self.poll(caller)?,
            Event::Ready(caller) => self.ready(caller)?,
            Event::Reply(caller) => self.reply(caller),
            Event::Settle(caller) => {
                self.close_block();
                self.settle(caller, self.callers[caller].call.tokens.1);
            }
            Event::BodyEnd(caller) => {
                if let State::Reading = self.callers[caller].state {
                    self.end_in_flight(caller, false);
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Result<(), Violation> {
        let now = self.time;
        match action {
            Action::Call(_) => {}
            Action::Drop(caller) => {
                let Some(found) = self.callers.get_mut(*caller) else { return Ok(()) };
                match std::mem::replace(&mut found.state, State::Ended) {
                    State::Waiting(ticket) | State::Woken(ticket) => {
                        self.by_slot.remove(&ticket.slot());
                        self.checks.left(found);
                        self.core.cancel(ticket, now);
                        self.end_refused(*caller);
                    }
                    State::Held(grant) => {
                        self.settle(*caller, 0);
                        let taken = self.callers[*caller].tokens.end(false);
                        self.core.finished(grant, End::Unsent, &taken, now);
                        self.end_in_flight(*caller, false);
                    }
                    State::Sent(grant, _) => {
                        let taken = self.callers[*caller].tokens.end(false);
                        self.core.finished(grant, End::Unconfirmed, &taken, now);
                        self.end_in_flight(*caller, true);
                    }
                    State::Reading => self.end_in_flight(*caller, true),
                    State::Ended => {}
                }
            }
            Action::Poll(caller) => self.poll(*caller)?,
            Action::Pause(length) => {
                self.checks.pause(now.saturating_add(*length), now);
                self.core.pause(now.saturating_add(*length), now);
            }
            Action::Resume => {
                self.checks.resume();
                self.core.resume(now);
            }
            Action::SetQuotas(quotas) => {
                self.checks.change(quotas);
                self.core.set_quotas(quotas, now);
            }
        }
        Ok(())
    }

    /// Replaces the tokens of a call.
    fn settle(&mut self, caller: usize, actual: u32) {
        let Some(found) = self.callers.get_mut(caller) else { return };
        let Tokens { taken_at, taken } = found.tokens;
        let actual = Amounts::of(Unit::Tokens, actual);
        found.tokens.taken.charged = actual;
        self.core.settle(taken_at, &taken, &actual, self.time);
    }

    /// Ends a call that got no permits.
    fn end_refused(&mut self, caller: usize) {
        self.callers[caller].state = State::Ended;
        self.callers[caller].tokens = Tokens::default();
        if std::mem::take(&mut self.callers[caller].is_in_flight) {
            self.core.end_in_flight(false, self.time);
        }
    }

    fn end_in_flight(&mut self, caller: usize, is_cancelled: bool) {
        self.callers[caller].state = State::Ended;
        if is_cancelled {
            self.checks.cancelled(self.time);
        }
        self.core.end_in_flight(is_cancelled, self.time);
    }

    fn open_block(&mut self) {
        if self.script.has_blocks && self.block.is_none() {
            self.block = self.core.open_block(self.time).map(|block| (block, Vec::new()));
            self.report.blocks += u64::from(self.block.is_some());
        }
    }

    fn close_block(&mut self) {
        if let Some((block, takers)) = self.block.take() {
            let used = u32::try_from(takers.len()).unwrap_or(u32::MAX);
            self.core.close_block(block.permits - used.min(block.permits), self.time);
        }
    }
}
