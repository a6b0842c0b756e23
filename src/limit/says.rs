//! What the server has said and still holds: a pause, and how much is left of its quotas.

use super::{Feedback, meter::Meter, nanos};

/// Quotas of the server that are kept in mind at once; what it says of more is not.
const MAX_GATES: usize = 8;

/// In nanoseconds since the queue's origin.
#[derive(Debug, Default)]
pub(super) struct Says {
    paused_until: u64,
    gates: Vec<Gate>,
}

/// No more than `left` permits before `until`.
#[derive(Debug)]
struct Gate {
    policy: u64,
    left: u64,
    until: u64,
}

impl Says {
    /// Takes in an answer that came now, while `in_flight` other permits may not be counted in it yet. True when
    /// it is stricter than what held before.
    pub(super) fn hear(&mut self, feedback: &Feedback, now: u64, in_flight: u64) -> bool {
        self.tidy(now);
        let mut stricter = match feedback.asked_pause() {
            Some(pause) => self.pause(now.saturating_add(nanos(pause))),
            None => false,
        };
        for remaining in feedback.remaining() {
            let left = remaining.left().saturating_sub(in_flight);
            let until = now.saturating_add(nanos(remaining.more_in()));
            let gate = Gate { policy: remaining.policy(), left, until };
            stricter |= match self.gates.iter_mut().find(|known| known.policy == gate.policy) {
                Some(known) => known.narrow(gate, now),
                None => self.add(gate),
            };
        }
        stricter
    }

    /// Where there is no room the widest gate makes way, if it is wider.
    fn add(&mut self, gate: Gate) -> bool {
        if self.gates.len() < MAX_GATES {
            self.gates.push(gate);
            return true;
        }
        match self.gates.iter_mut().max_by_key(|known| known.left) {
            Some(widest) if widest.left > gate.left => {
                *widest = gate;
                true
            }
            // All are as narrow: one of them holds for this one, too.
            Some(narrow) if narrow.left == gate.left && narrow.until < gate.until => {
                narrow.until = gate.until;
                true
            }
            _ => false,
        }
    }

    /// A pause is only ever extended. True when it was.
    pub(super) fn pause(&mut self, until: u64) -> bool {
        let longer = until > self.paused_until;
        self.paused_until = self.paused_until.max(until);
        longer
    }

    pub(super) fn paused_until(&self, now: u64) -> Option<u64> {
        Some(self.paused_until).filter(|until| now < *until)
    }

    /// When `cost` permits can go at the earliest, as far as the server's word goes.
    pub(super) fn earliest(&self, now: u64, cost: u64) -> u64 {
        let gates = self.gates.iter().filter(|gate| now < gate.until && gate.left < cost);
        gates.map(|gate| gate.until).max().unwrap_or(now).max(self.paused_until).max(now)
    }

    /// When the last of `total` permits can go, taken in turn: the server's word on top of the meter's.
    pub(super) fn forecast(&self, meter: &impl Meter, now: u64, total: u64) -> u64 {
        let start = now.max(self.paused_until);
        let late = self.gates.iter().filter(|gate| now < gate.until && gate.left < total);
        let late = late.map(|gate| meter.forecast(gate.until.max(start), total - gate.left));
        late.fold(meter.forecast(start, total), u64::max)
    }

    pub(super) fn spend(&mut self, cost: u64) {
        for gate in &mut self.gates {
            gate.left = gate.left.saturating_sub(cost);
        }
    }

    pub(super) fn any(&self) -> bool {
        self.paused_until > 0 || !self.gates.is_empty()
    }

    /// Forgets what is over, and says whether anything still holds.
    pub(super) fn tidy(&mut self, now: u64) -> bool {
        self.gates.retain(|gate| now < gate.until);
        if self.paused_until <= now {
            self.paused_until = 0;
        }
        self.any()
    }

    /// The least that the server has left.
    pub(super) fn left(&self, now: u64) -> Option<u64> {
        self.gates.iter().filter(|gate| now < gate.until).map(|gate| gate.left).min()
    }
}

impl Gate {
    /// A live gate counts down by itself. An answer that says more than it is late, or no news: it neither raises
    /// the count nor puts off the moment when the server has more.
    fn narrow(&mut self, said: Self, now: u64) -> bool {
        if now < self.until {
            let news = said.left < self.left || (said.left == self.left && said.until > self.until);
            if news {
                self.left = said.left;
                self.until = self.until.max(said.until);
            }
            return news;
        }
        *self = said;
        true
    }
}
