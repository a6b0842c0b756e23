//! The line: first come, first served, one armed timer, two wake-ups a grant at most.
//!
//! Only the head of the line holds a timer. When it fires, the head takes permits for itself and for all behind
//! it who can go by now, wakes those, and wakes the new head to arm the next timer. Who finds its place gone
//! from the line has been granted its permits. Nothing is spawned: the line runs in the tasks that wait in it.

use std::{collections::BTreeMap, num::NonZeroU32, task::Waker, time::Duration};

use super::{
    Ask, Reason, Refusal, meter::Meter, nanos, queue::Core, says::Says, sync::Ordering, ticker::Ticker,
};
use crate::policy::Quota;

/// Ordered by arrival. A tree and not a ring: whoever leaves from the middle leaves no hole behind.
#[derive(Debug)]
pub(super) struct Line<M> {
    pub(super) meter: M,
    pub(super) says: Says,
    pub(super) places: BTreeMap<u64, Place>,
    /// Said to those who were waiting, for them to find.
    pub(super) refusals: BTreeMap<u64, Refusal>,
    pub(super) next_place: u64,
    /// Granted and woken, but not polled yet.
    pub(super) called: BTreeMap<u64, Called>,
    /// How long permits may be held before their request leaves.
    pub(super) guard: u64,
    /// The highest bit of the tally, which changes under the lock alone.
    pub(super) busy: bool,
    /// What all who wait ask for together.
    pub(super) asked: u64,
    pub(super) refused: u64,
}

#[derive(Debug)]
pub(super) struct Place {
    pub(super) waker: Waker,
    pub(super) cost: NonZeroU32,
    /// The last moment at which the permits are worth having, and what it means to miss it.
    pub(super) latest: Option<(u64, Reason)>,
}

/// A request that has its permits and does not know yet.
#[derive(Debug)]
pub(super) struct Called {
    /// When they were granted.
    pub(super) at: u64,
    pub(super) latest: Option<(u64, Reason)>,
}

/// Wakers to call and to drop when the lock is given back: a waker may run anything, and so may its end.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    pub(super) call: Vec<Waker>,
    pub(super) drop: Vec<Waker>,
}

/// Without a quota there is no window that a late request could fall into.
pub(super) fn guard(quotas: &[Quota]) -> u64 {
    quotas.iter().map(|quota| nanos(quota.guard())).min().unwrap_or(u64::MAX)
}

/// The last moment at which the permits are worth having, and what it means to miss it.
pub(super) fn latest(ask: &Ask, now: u64, ticker: &Ticker) -> Option<(u64, Reason)> {
    let longest = ask.max_wait.map(|longest| (now.saturating_add(nanos(longest)), Reason::MaxWait));
    let deadline = ask.deadline.map(|deadline| (ticker.at(deadline), Reason::Deadline));
    longest.into_iter().chain(deadline).min_by_key(|(latest, _)| *latest)
}

impl<M: Meter> Line<M> {
    pub(super) fn new(meter: M, quotas: &[Quota]) -> Self {
        Self {
            meter,
            says: Says::default(),
            places: BTreeMap::new(),
            refusals: BTreeMap::new(),
            next_place: 0,
            called: BTreeMap::new(),
            guard: guard(quotas),
            busy: false,
            asked: 0,
            refused: 0,
        }
    }

    /// Grants to the head of the line for as long as there are permits.
    pub(super) fn serve(&mut self, core: &Core, visitor: Option<u64>, wakes: &mut Wakes) {
        let before = self.places.keys().next().copied();
        while let Some((place, cost)) = self.head() {
            if !self.take(core, cost) {
                // A new head has no timer yet.
                if Some(place) != before {
                    self.wake_head(wakes);
                }
                return;
            }
            if let Some(granted) = self.remove(place) {
                self.called.insert(place, Called { at: core.ticker.now(), latest: granted.latest });
                match Some(place) == visitor {
                    true => wakes.drop.push(granted.waker),
                    false => wakes.call.push(granted.waker),
                }
            }
        }
    }

    /// Takes the permits for a newcomer, or says how long it would wait at the end of the line.
    pub(super) fn wait(
        &mut self,
        core: &Core,
        cost: NonZeroU32,
        wakes: &mut Wakes,
    ) -> Result<Option<Duration>, Refusal> {
        let largest = self.meter.largest();
        if cost.get() > largest {
            return Err(Refusal::too_costly(largest));
        }
        self.serve(core, None, wakes);
        if self.places.is_empty() && self.take(core, cost) {
            return Ok(None);
        }
        let now = core.ticker.now();
        let due = self.due(now, self.asked + u64::from(cost.get()));
        Ok(Some(Duration::from_nanos(due - now)))
    }

    /// The last moment for a newcomer who would have to wait this long, if it may wait at all.
    pub(super) fn admit(
        &self,
        ask: &Ask,
        wait: Duration,
        ticker: &Ticker,
    ) -> Result<Option<(u64, Reason)>, Refusal> {
        if self.places.len() >= ask.max_queue {
            return Err(Refusal::new(Reason::QueueFull, wait));
        }
        let now = ticker.now();
        let latest = latest(ask, now, ticker);
        match latest {
            Some((latest, reason)) if now.saturating_add(nanos(wait)) > latest => {
                Err(Refusal::new(reason, wait))
            }
            _ => Ok(latest),
        }
    }

    /// Refuses those who wait for what can't come in time, or at all, any more.
    pub(super) fn turn_away(&mut self, now: u64, wakes: &mut Wakes) {
        let largest = self.meter.largest();
        let before = self.head();
        let (mut lost, mut ahead) = (Vec::new(), 0);
        for (&place, entry) in &self.places {
            let due = self.says.forecast(&self.meter, now, ahead + u64::from(entry.cost.get()));
            match entry.latest {
                _ if entry.cost.get() > largest => lost.push((place, Refusal::too_costly(largest))),
                Some((latest, reason)) if due > latest => {
                    lost.push((place, Refusal::new(reason, Duration::from_nanos(due - now))));
                }
                _ => ahead += u64::from(entry.cost.get()),
            }
        }
        for (place, refusal) in lost {
            let refusal = self.refuse(refusal);
            self.refusals.insert(place, refusal);
            wakes.call.extend(self.remove(place).map(|entry| entry.waker));
        }
        if self.head() != before {
            self.wake_head(wakes);
        }
    }

    /// Gives a place up; the next head is woken to arm its timer. False when it was granted already.
    pub(super) fn leave(&mut self, place: u64, wakes: &mut Wakes) -> bool {
        let before = self.head();
        let removed = self.remove(place);
        let waiting = removed.is_some() || self.refusals.remove(&place).is_some();
        wakes.drop.extend(removed.map(|entry| entry.waker));
        if self.head() != before {
            self.wake_head(wakes);
        }
        waiting
    }

    pub(super) fn take(&mut self, core: &Core, cost: NonZeroU32) -> bool {
        let permits = u64::from(cost.get());
        let allowed = !self.says.any() || {
            let now = core.ticker.now();
            self.says.earliest(now, permits) <= now
        };
        let taken = allowed && self.meter.take(cost, &core.ticker).is_ok();
        if taken {
            self.says.spend(permits);
            core.word.tally.fetch_add(permits, Ordering::AcqRel);
        }
        taken
    }

    /// When the last of `total` permits can be granted, taken in turn.
    pub(super) fn due(&self, now: u64, total: u64) -> u64 {
        self.says.forecast(&self.meter, now, total)
    }

    /// Whether permits that were granted `held` ago are worth nothing any more: what leaves later than it was
    /// counted would fall into another window, or into a pause.
    pub(super) fn is_stale(&self, held: u64, now: u64) -> bool {
        held > self.guard || self.says.paused_until(now).is_some()
    }

    pub(super) fn new_place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }

    pub(super) fn head(&self) -> Option<(u64, NonZeroU32)> {
        self.places.first_key_value().map(|(&place, entry)| (place, entry.cost))
    }

    pub(super) fn remove(&mut self, place: u64) -> Option<Place> {
        let entry = self.places.remove(&place)?;
        self.asked -= u64::from(entry.cost.get());
        Some(entry)
    }

    pub(super) fn wake_head(&self, wakes: &mut Wakes) {
        wakes.call.extend(self.places.first_key_value().map(|(_, head)| head.waker.clone()));
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) -> Refusal {
        self.refused += 1;
        refusal
    }
}
