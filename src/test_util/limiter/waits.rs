//! Checks the wait that a refusal states: in a second run of the script, the refused call waits.

use super::{Event, Sim, State, Violation};
use crate::limit::core::{Latest, Stage, Status, Ticket};

/// The bounds of a call that is never refused. They count as bounds, so that the second run does not differ before the
/// refusal.
pub(super) const NEVER_MISSED: Latest = Latest { max_wait: u64::MAX - 1, deadline: u64::MAX - 1 };

/// The start of an event: its time, its number, the event, and how many events have been scheduled before.
pub(super) type Start = (u64, u64, Event, u64);

/// A refusal that states when the call would be granted without its bounds.
pub(super) struct Refused {
    pub(super) caller: usize,
    pub(super) due: u64,
    /// The event with the refusal.
    pub(super) start: Option<Start>,
}

impl Sim<'_> {
    /// Runs the script up to a refusal, without the bounds of the refused call. After the refusal, the only further
    /// events are grants. Returns 1 if the call is granted when it is due. Returns 0 if the forecast may be too early,
    /// or if it is unknown because of another refusal or of the requests in flight.
    pub(super) fn check_wait(mut self, refused: &Refused) -> Result<u64, Violation> {
        self.unbounded = Some(refused.caller);
        while self.start != refused.start {
            if !self.step()? {
                return Ok(0);
            }
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
            None if is_full || !self.checks.is_exact => Ok(0),
            _ => Err(Violation(format!(
                "refused at {} with a wait until {due}, but granted at {granted_at:?}: {:?}",
                refused.start.map_or(0, |(at, ..)| at),
                self.callers[refused.caller]
            ))),
        }
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
