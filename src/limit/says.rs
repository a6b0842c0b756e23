//! What the server has said and still holds: a pause, and how much is left of its quotas.

use super::{Feedback, meter::Meter, nanos, ramp::Ramp};

/// Quotas of the server that are kept in mind at once; what it says of more is not.
const MAX_GATES: usize = 8;

/// In nanoseconds since the queue's origin.
#[derive(Debug)]
pub(super) struct Says {
    paused_until: u64,
    gates: Vec<Gate>,
    /// The way out of the last pause.
    ramp: Option<Ramp>,
    /// Whether there is a quota, which spreads those who waited by itself.
    metered: bool,
}

/// No more than `left` permits before `until`.
#[derive(Debug)]
struct Gate {
    policy: u64,
    left: u64,
    until: u64,
    /// The server has said that nothing is left. What was granted before that, and has not gone yet, must not go either.
    shut: bool,
    /// The most that the server has had left while the gate stood: as many are welcome when it opens.
    most: u64,
    /// The end that those who wait have been judged by.
    told: u64,
}

/// A gate whose end creeps on by less than this, 1 s in nanoseconds, is no news: servers count in whole seconds.
const CREEP: u64 = 1_000_000_000;

impl Says {
    pub(super) fn new(metered: bool) -> Self {
        Self { paused_until: 0, gates: Vec::new(), ramp: None, metered }
    }

    pub(super) fn set_metered(&mut self, metered: bool) {
        self.metered = metered;
    }

    fn ramp(&self) -> Option<Ramp> {
        self.ramp.filter(|_| !self.metered)
    }

    /// Takes in an answer that came now, while `in_flight` other permits may not be counted in it yet. True when
    /// it is stricter than what held before.
    pub(super) fn hear(&mut self, feedback: &Feedback, now: u64, in_flight: u64) -> bool {
        self.tidy(now);
        let mut stricter = match feedback.asked_pause() {
            Some(pause) => self.pause(now.saturating_add(nanos(pause)), now),
            None => false,
        };
        for remaining in feedback.remaining() {
            let left = remaining.left().saturating_sub(in_flight);
            let until = now.saturating_add(nanos(remaining.more_in()));
            let (policy, most) = (remaining.policy(), remaining.left());
            let gate = Gate { policy, left, until, shut: most == 0, most, told: until };
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
                narrow.shut |= gate.shut;
                true
            }
            _ => false,
        }
    }

    /// A pause is only ever extended. True when it was.
    pub(super) fn pause(&mut self, until: u64, now: u64) -> bool {
        let longer = until > self.paused_until.max(now);
        if longer {
            self.paused_until = until;
            self.lead_out(until, 1);
        }
        longer
    }

    fn lead_out(&mut self, from: u64, first: u64) {
        if self.ramp.is_none_or(|ramp| ramp.from() < from) {
            self.ramp = Some(Ramp::new(from, first));
        }
    }

    pub(super) fn paused_until(&self, now: u64) -> Option<u64> {
        Some(self.paused_until).filter(|until| now < *until)
    }

    /// Whether nothing may go, not even what was granted before the server said so.
    pub(super) fn is_shut(&self, now: u64) -> bool {
        now < self.paused_until || self.gates.iter().any(|gate| gate.shut && now < gate.until)
    }

    /// When `cost` permits can go at the earliest, as far as the server's word goes.
    pub(super) fn earliest(&self, now: u64, cost: u64) -> u64 {
        let gates = self.gates.iter().filter(|gate| now < gate.until && gate.left < cost);
        let ramp = self.ramp().map_or(now, |ramp| ramp.due(cost));
        gates.map(|gate| gate.until).max().unwrap_or(now).max(self.paused_until).max(ramp).max(now)
    }

    /// When the last of `total` permits can go, taken in turn: the server's word on top of the meter's.
    pub(super) fn forecast(&self, meter: &impl Meter, now: u64, total: u64) -> u64 {
        let start = now.max(self.paused_until);
        let late = self.gates.iter().filter(|gate| now < gate.until && gate.left < total).map(|gate| {
            let (from, total) = (gate.until.max(start), total - gate.left);
            let ramp = if self.metered { from } else { Ramp::new(gate.until, gate.most).due(total) };
            meter.forecast(from, total).max(ramp)
        });
        let ramp = self.ramp().map_or(start, |ramp| ramp.due(total));
        late.fold(meter.forecast(start, total).max(ramp), u64::max)
    }

    pub(super) fn spend(&mut self, cost: u64) {
        for gate in &mut self.gates {
            gate.left = gate.left.saturating_sub(cost);
        }
        if let Some(ramp) = &mut self.ramp {
            ramp.spend(cost);
        }
    }

    pub(super) fn forget(&mut self) {
        *self = Self::new(self.metered);
    }

    pub(super) fn any(&self) -> bool {
        self.paused_until > 0 || !self.gates.is_empty() || self.ramp().is_some()
    }

    /// Forgets what is over, and says whether anything still holds.
    pub(super) fn tidy(&mut self, now: u64) -> bool {
        let opened = self.gates.iter().filter(|gate| gate.until <= now).max_by_key(|gate| gate.until);
        if let Some((opened, most)) = opened.map(|gate| (gate.until, gate.most)) {
            self.lead_out(opened, most);
        }
        self.gates.retain(|gate| now < gate.until);
        if self.paused_until <= now {
            self.paused_until = 0;
        }
        self.ramp = self.ramp.filter(|ramp| !ramp.is_over(now));
        self.any()
    }

    /// The least that the server has left, or the way out of a pause.
    pub(super) fn left(&self, now: u64) -> Option<u64> {
        let gates = self.gates.iter().filter(|gate| now < gate.until).map(|gate| gate.left);
        gates.chain(self.ramp().and_then(|ramp| ramp.left(now))).min()
    }
}

impl Gate {
    /// A live gate counts down by itself. An answer that says more than it is late, or no news: it neither raises
    /// the count nor puts off the moment when the server has more.
    fn narrow(&mut self, said: Self, now: u64) -> bool {
        if now >= self.until {
            *self = said;
            return true;
        }
        self.most = self.most.max(said.most);
        let fewer = said.left < self.left;
        if fewer || said.left == self.left {
            self.left = said.left;
            self.until = self.until.max(said.until);
            self.shut |= said.shut;
        }
        let news = fewer || self.until.saturating_sub(self.told) >= CREEP;
        if news {
            self.told = self.until;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(left: u64, until: u64) -> Gate {
        Gate { policy: left, left, until, shut: false, most: left, told: until }
    }

    fn kept(says: &Says) -> Vec<(u64, u64)> {
        says.gates.iter().map(|gate| (gate.left, gate.until)).collect()
    }

    #[test]
    fn where_there_is_no_room_the_narrowest_are_kept() {
        let mut says = Says::new(true);
        assert!(!says.any());
        assert!((1..=8).all(|left| says.add(gate(left, 100))));
        for (new, taken) in
            [(gate(9, 900), false), (gate(8, 100), false), (gate(8, 99), false), (gate(8, 200), true)]
        {
            assert_eq!(says.add(new), taken);
        }
        assert_eq!(kept(&says).pop(), Some((8, 200)), "of two as narrow the one that holds for longer");
        assert!(says.add(gate(3, 50)));
        let mut narrow = kept(&says);
        narrow.sort_unstable();
        assert_eq!(narrow, [(1, 100), (2, 100), (3, 50), (3, 100), (4, 100), (5, 100), (6, 100), (7, 100)]);
    }

    #[test]
    fn what_lowers_a_count_or_puts_its_end_off_by_a_second_is_news() {
        let mut known = gate(5, CREEP);
        assert!(!known.narrow(gate(5, CREEP), 0), "the same again");
        assert!(!known.narrow(gate(6, 9 * CREEP), 0), "late");
        assert!(!known.narrow(gate(5, 2 * CREEP - 1), 0), "creeps");
        assert!(known.narrow(gate(5, 2 * CREEP), 0));
        assert!(!known.narrow(gate(5, 2 * CREEP), 0), "told by now");
        assert!(known.narrow(gate(4, CREEP), 0));
        assert_eq!((known.left, known.until, known.most), (4, 2 * CREEP, 6));
        assert!(known.narrow(gate(7, 3 * CREEP), 2 * CREEP), "after its end whatever comes");
        assert_eq!((known.left, known.until), (7, 3 * CREEP));
    }

    #[test]
    fn once_the_server_has_said_that_nothing_is_left_a_gate_is_shut_to_its_end() {
        // Eight of which all is in flight, and one that is shut and finds no room.
        let mut says = Says::new(true);
        assert!((1..=8).all(|policy| says.add(Gate { policy, ..gate(0, 100) })));
        assert!(!says.is_shut(50));
        assert!(says.add(Gate { shut: true, ..gate(0, 200) }));
        assert!(says.is_shut(50) && says.is_shut(199) && !says.is_shut(200));

        let mut known = gate(0, 100);
        for (shut, then) in [(false, false), (true, true), (true, true), (false, true)] {
            known.narrow(Gate { shut, ..gate(0, 100) }, 50);
            assert_eq!(known.shut, then);
        }
    }

    #[test]
    fn a_pause_is_over_at_its_end_and_only_a_longer_one_is_news() {
        let mut says = Says::new(true);
        assert!(!says.pause(10, 10) && says.pause(11, 10) && !says.pause(11, 10) && !says.pause(5, 0));
        assert_eq!((says.paused_until(10), says.paused_until(11)), (Some(11), None));
        assert!(says.tidy(10) && !says.tidy(11));
        says.add(gate(0, 20));
        assert!(says.tidy(19) && !says.tidy(20));
    }

    #[test]
    fn the_way_out_of_what_ends_last_is_kept() {
        for (gate_ends, pause_ends) in [(50, 100), (100, 100)] {
            let mut says = Says::new(false);
            says.pause(pause_ends, 0);
            says.add(gate(20, gate_ends));
            says.tidy(gate_ends);
            assert_eq!(says.left(gate_ends), Some(u64::from(gate_ends == pause_ends)), "one, to see");
        }
        let mut says = Says::new(false);
        says.pause(50, 0);
        says.add(gate(20, 100));
        says.tidy(100);
        assert_eq!(says.left(100), Some(20));
    }
}
