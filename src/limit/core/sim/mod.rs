//! A simulation of a limiter on a virtual clock: the core, its callers, and a server.
//!
//! The simulation jumps from one event to the next, applies it, and [checks](checks) the guarantees of the limiter after
//! each event. It does with the core what the limiter does: it wakes callers, drives the timer, and opens and closes
//! blocks.

mod checks;
mod oracle;
mod script;
#[cfg(test)]
mod tests;
mod window;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, btree_map::BTreeMap},
};

use self::checks::Checks;
pub(crate) use self::script::{Action, Call, Reply, Script, Step};
use super::{
    Ask, Block, Core, End, Feedback, Grant, Latest, Rule, Spread, Stage, Status, Submitted, Ticket,
    random::Random,
};
use crate::{error::Refusal, policy::adaptive::Acceptance};

/// The maximum number of events of a script. More mean that time does not proceed.
const MOST_EVENTS: usize = 20_000;

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
}

/// The state of a caller.
#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    Waiting(Ticket),
    /// Woken, and not polled since.
    Woken(Ticket),
    Held(Grant),
    Sent(Grant, u64),
    Ended,
}

#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) call: Call,
    pub(super) state: State,
    /// The order in which the caller joined the queue.
    pub(super) joined: u64,
}

/// A violated guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

/// The figures of a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) events: u64,
    pub(crate) granted: u64,
    pub(crate) refused: u64,
    pub(crate) expired: u64,
    pub(crate) blocks: u64,
    pub(crate) exact_waits: u64,
}

impl Report {
    /// Adds the figures of another simulation.
    pub(crate) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.granted += other.granted;
        self.refused += other.refused;
        self.expired += other.expired;
        self.blocks += other.blocks;
        self.exact_waits += other.exact_waits;
    }
}

pub(crate) struct Sim<'a> {
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
}

impl<'a> Sim<'a> {
    pub(crate) fn new(script: &'a Script) -> Self {
        let mut sim = Self {
            script,
            core: Core::new(&script.quotas, script.settings),
            time: 0,
            callers: Vec::new(),
            by_slot: BTreeMap::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            random: Random::new(!script.seed),
            timer: (0, None),
            block: None,
            checks: Checks::new(script),
            report: Report::default(),
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
    pub(crate) fn run(mut self) -> Result<Report, Violation> {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.report.events += 1;
            if self.report.events > MOST_EVENTS as u64 {
                return Err(Violation(format!("no end after {MOST_EVENTS} events: {event:?}")));
            }
            self.time = at.max(self.time);
            self.apply(event)?;
            self.collect_woken()?;
            self.checks.after(&self.core, &self.callers, self.block.as_ref(), self.time)?;
            self.set_timer();
        }
        let waiting = self.callers.iter().position(|caller| !matches!(caller.state, State::Ended));
        match waiting {
            Some(caller) => Err(Violation(format!("call {caller} was lost: {:?}", self.callers[caller]))),
            None => self.checks.at_end(&self.core).map(|()| self.report),
        }
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
        if let Some(wake) = wake {
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
                if self.core.next_wake(now).is_some_and(|wake| wake <= now) {
                    return Err(Violation(format!("the driver spins at {now}")));
                }
            }
            Event::Timer(_) => {}
            Event::Poll(caller) => self.poll(caller)?,
            Event::Ready(caller) => self.ready(caller)?,
            Event::Reply(caller) => self.reply(caller),
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
                    }
                    State::Held(grant) => _ = self.core.finished(grant, End::Unsent, now),
                    State::Sent(grant, _) => _ = self.core.finished(grant, End::Unconfirmed, now),
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

    fn call(&mut self, call: Call) -> Result<(), Violation> {
        let caller = self.callers.len();
        self.callers.push(Caller { call, state: State::Ended, joined: 0 });
        if let Some((block, takers)) = &mut self.block {
            let has_room = takers.len() < block.permits as usize && self.time < block.end;
            if has_room && call.cost.get() == 1 {
                takers.push(caller);
                return self.granted(caller, Grant { at: self.time, cost: call.cost }, true);
            }
            self.close_block();
        }
        let bound = |after: Option<u64>| after.map_or(u64::MAX, |after| self.time.saturating_add(after));
        let latest = Latest { max_wait: bound(call.max_wait), deadline: bound(call.deadline) };
        self.submit(caller, latest, call.max_queue)?;
        self.open_block();
        Ok(())
    }

    fn submit(&mut self, caller: usize, latest: Latest, max_queue: usize) -> Result<(), Violation> {
        let Call { cost, priority, .. } = self.callers[caller].call;
        let ask = Ask { cost, priority, latest, max_queue };
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
                self.report.refused += 1;
                let exact = || oracle::grant_of_new(&self.core, ask, self.time);
                self.report.exact_waits += self.checks.refused(&refusal, exact, self.time)?;
                self.callers[caller].state = State::Ended;
                Ok(())
            }
        }
    }

    /// Hands the wake-ups of the core to the callers.
    fn collect_woken(&mut self) -> Result<(), Violation> {
        while let Some(ticket) = self.core.pop_woken() {
            let Some((_, stage, _)) = self.core.queue.find(ticket) else { continue };
            let Some(&caller) = self.by_slot.get(&ticket.slot()) else { continue };
            match stage {
                Stage::Granted(_) => self.checks.granted(&mut self.callers[caller], true, self.time)?,
                Stage::Refused(refusal) => {
                    self.report.refused += 1;
                    self.checks.left(&self.callers[caller]);
                    let exact = || oracle::grant_of_refused(&self.core, ticket, self.time);
                    self.report.exact_waits += self.checks.refused(refusal, exact, self.time)?;
                }
                _ => continue,
            }
            self.callers[caller].state = State::Woken(ticket);
            let at = self.time.saturating_add(self.callers[caller].call.poll);
            // A task is absent at most once.
            self.callers[caller].call.poll = 0;
            self.schedule(at, Event::Poll(caller));
        }
        Ok(())
    }

    fn poll(&mut self, caller: usize) -> Result<(), Violation> {
        let (State::Waiting(ticket) | State::Woken(ticket)) = self.callers[caller].state else {
            return Ok(());
        };
        self.close_block();
        self.core.advance(self.time);
        self.collect_woken()?;
        let is_valid = match self.core.queue.find(ticket) {
            Some((_, Stage::Granted(at), _)) => !self.core.is_expired(*at, self.time),
            _ => false,
        };
        let was_waiting = matches!(self.callers[caller].state, State::Waiting(_));
        match self.core.status(ticket, self.time) {
            Status::Waiting if was_waiting => {}
            Status::Waiting => {
                self.report.expired += 1;
                self.callers[caller].state = State::Waiting(ticket);
                self.checks.returned(&self.callers[caller]);
            }
            Status::Granted(grant) => {
                self.by_slot.remove(&ticket.slot());
                self.granted(caller, grant, !is_valid)?;
            }
            Status::Refused(_) => {
                self.by_slot.remove(&ticket.slot());
                self.callers[caller].state = State::Ended;
            }
        }
        Ok(())
    }

    fn granted(&mut self, caller: usize, grant: Grant, is_new: bool) -> Result<(), Violation> {
        if is_new {
            self.checks.granted(&mut self.callers[caller], false, self.time)?;
        }
        self.report.granted += u64::from(grant.cost.get());
        self.callers[caller].state = State::Held(grant);
        let ready = self.callers[caller].call.ready;
        self.callers[caller].call.ready = 0;
        self.schedule(self.time.saturating_add(ready), Event::Ready(caller));
        Ok(())
    }

    /// Sends the request, or asks for other permits if they have expired.
    fn ready(&mut self, caller: usize) -> Result<(), Violation> {
        let State::Held(grant) = self.callers[caller].state else { return Ok(()) };
        let is_expired = self.core.is_expired(grant.at, self.time);
        if is_expired {
            self.close_block();
            self.report.expired += 1;
            self.core.finished(grant, End::Unsent, self.time);
            self.collect_woken()?;
            self.callers[caller].joined = 0;
            return self.submit(caller, Latest { max_wait: u64::MAX, deadline: u64::MAX }, usize::MAX);
        }
        self.checks.sent(&self.callers[caller], self.time)?;
        self.callers[caller].state = State::Sent(grant, self.time);
        let network = self.callers[caller].call.network;
        self.schedule(self.time.saturating_add(2 * network), Event::Reply(caller));
        Ok(())
    }

    fn reply(&mut self, caller: usize) {
        let State::Sent(grant, sent_at) = self.callers[caller].state else { return };
        self.close_block();
        self.callers[caller].state = State::Ended;
        let throttled = |pause| Feedback {
            acceptance: if pause > 0 { Acceptance::Throttled } else { Acceptance::Accepted },
            pause: Some(pause).filter(|pause| *pause > 0),
            remaining: Vec::new(),
        };
        let feedback = match self.callers[caller].call.reply {
            Reply::Accepts => throttled(0),
            Reply::Throttles(pause) => {
                self.checks.pause(self.time.saturating_add(pause), self.time);
                throttled(pause)
            }
            Reply::Nothing => {
                self.core.finished(grant, End::Unconfirmed, self.time);
                return;
            }
        };
        self.core.finished(grant, End::Response(&feedback, sent_at), self.time);
    }

    fn open_block(&mut self) {
        if self.script.has_blocks && self.block.is_none() {
            self.block = self.core.open_block(self.time).map(|block| (block, Vec::new()));
            self.report.blocks += u64::from(self.block.is_some());
        }
    }

    fn close_block(&mut self) {
        if let Some((_, takers)) = self.block.take() {
            self.core.close_block(u32::try_from(takers.len()).unwrap_or(u32::MAX), self.time);
        }
    }
}
