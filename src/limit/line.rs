//! The line: first come, first served, one armed timer, two wake-ups a grant at most.
//!
//! Only the head of the line holds a timer. When it fires, the head takes permits for itself and for all behind
//! it who can go by now, wakes those, and wakes the new head to arm the next timer. Whoever is granted finds that
//! in its [seat](super::seat). Nothing is spawned: the line runs in the tasks that wait in it.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, task::Waker, time::Duration};

use super::{
    PermitRequest, Reason, Refusal,
    abandoned::Abandoned,
    core::Core,
    meter::Meter,
    nanos,
    says::Says,
    seat::{Latest, Seat, State},
    sync::Ordering,
    ticker::Ticker,
};
use crate::policy::Quota;

/// The longest that the head sleeps on to be served together with others: 4 ms, in nanoseconds, four ticks of the
/// timers. A tick costs a processor more than a permit does.
const TOGETHER: u64 = 4_000_000;

/// The most permits that it sleeps on for: who gets them is looked at one by one.
const MOST_TOGETHER: u64 = 64;

/// How late a timer fires: 1 ms, in nanoseconds.
const TICK: u64 = 1_000_000;

/// And no more than this part of the time that the whole line takes: nobody's wait gets longer by more.
const PART: u64 = 16;

#[derive(Debug)]
pub(super) struct Line<M> {
    pub(super) meter: M,
    pub(super) says: Says,
    pub(super) abandoned: Abandoned,
    /// Said to those who were waiting, for them to find.
    pub(super) refusals: BTreeMap<u64, Refusal>,
    /// When somebody was last called from the line.
    pub(super) called_at: u64,
    /// The highest bits of the tally, which change under the lock alone.
    pub(super) flags: u64,
    /// Ordered by arrival. A tree and not a ring: whoever leaves from the middle leaves no hole behind.
    places: BTreeMap<u64, Place>,
    next_place: u64,
    /// What all who wait ask for together.
    asked: u64,
}

#[derive(Debug)]
pub(super) struct Place {
    pub(super) waker: Waker,
    pub(super) cost: NonZeroU32,
    pub(super) seat: Arc<Seat>,
}

/// What those who wait ask for.
#[cfg(feature = "redis")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// All of them together.
    pub(crate) permits: u64,
    /// The first of them; none where nobody waits.
    pub(crate) head: Option<NonZeroU32>,
    /// When the first of them has no use for it any more.
    pub(crate) last: Option<u64>,
}

/// Wakers to call and to drop when the lock is given back: a waker may run anything, and so may its end.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    pub(super) call: Vec<Waker>,
    pub(super) drop: Vec<Waker>,
}

/// Returns how long a granted permit stays valid, in nanoseconds: once until its task is polled, and once more until
/// the inner service is ready. Each is a quarter of the margin. The third quarter covers the network. The fourth is for
/// late timers, and nothing else uses it.
///
/// Without a margin each is 1/32 of the window, at most 50 ms. Zero would waste every queued permit, because every task
/// is polled a little late. Without a quota, permits never expire.
pub(super) fn slack(quotas: &[Quota]) -> u64 {
    const LARGEST_WITHOUT_MARGIN: u64 = 100_000_000;
    let slack = |quota: &Quota| match nanos(quota.margin()) {
        0 => LARGEST_WITHOUT_MARGIN.min(nanos(quota.window()) / 16) / 2,
        margin => margin / 4,
    };
    quotas.iter().map(slack).min().unwrap_or(u64::MAX)
}

impl<M: Meter> Line<M> {
    pub(super) fn new(meter: M, quotas: &[Quota]) -> Self {
        Self {
            meter,
            says: Says::new(!quotas.is_empty()),
            abandoned: Abandoned::default(),
            refusals: BTreeMap::new(),
            called_at: 0,
            flags: 0,
            places: BTreeMap::new(),
            next_place: 0,
            asked: 0,
        }
    }

    /// Grants to the head of the line for as long as there are permits.
    pub(super) fn serve(&mut self, core: &Core, visitor: Option<u64>, wakes: &mut Wakes) {
        let before = self.places.keys().next().copied();
        if before.is_none() {
            return;
        }
        let now = core.ticker.now();
        while let Some((place, cost)) = self.head() {
            if !self.take(core, cost, now) {
                // A new head has no timer yet.
                if Some(place) != before {
                    self.wake_head(wakes);
                }
                return;
            }
            let Some(granted) = self.remove(place) else { return };
            if Some(place) == visitor {
                wakes.drop.push(granted.waker);
            } else {
                core.called.fetch_add(1, Ordering::AcqRel);
                self.called_at = now;
                wakes.call.push(granted.waker);
            }
            granted.seat.set(State::Granted(now));
        }
    }

    /// Takes the permits for a newcomer, or says how long it would wait at the end of the line.
    pub(super) fn wait(
        &mut self,
        core: &Core,
        cost: NonZeroU32,
        now: u64,
        wakes: &mut Wakes,
    ) -> Result<Option<Duration>, Refusal> {
        let largest = self.meter.largest();
        if cost.get() > largest {
            return Err(Refusal::too_costly(largest));
        }
        if let Some(refusal) = self.meter.closed(cost, now) {
            return Err(refusal);
        }
        self.serve(core, None, wakes);
        if self.is_empty() && self.take(core, cost, now) {
            return Ok(None);
        }
        let due = self.forecast(now, self.asked + u64::from(cost.get()));
        Ok(Some(Duration::from_nanos(due - now)))
    }

    /// The last moments of a newcomer who would have to wait this long, if it may wait at all.
    pub(super) fn admit(
        &self,
        ask: &PermitRequest,
        wait: Duration,
        now: u64,
        ticker: &Ticker,
    ) -> Result<Latest, Refusal> {
        if self.places.len() >= ask.max_queue {
            return Err(Refusal::new(Reason::QueueFull, wait));
        }
        let latest = Latest::of(ask, now, ticker);
        match latest.missed_by(now.saturating_add(nanos(wait)), now, self.meter.grace()) {
            Some(reason) => Err(Refusal::new(reason, wait)),
            None => Ok(latest),
        }
    }

    /// Refuses those who wait for what can't come in time any more because of what the server has said.
    pub(super) fn heed(&mut self, core: &Core, wakes: &mut Wakes) {
        let now = core.ticker.now();
        // Who is last waits the longest: if it waits no longer for it, nobody does.
        if self.forecast(now, self.asked) > self.meter.forecast(now, self.asked) {
            self.turn_away(core, wakes);
        }
    }

    /// Refuses those who wait for what can't come in time, or at all, any more.
    pub(super) fn turn_away(&mut self, core: &Core, wakes: &mut Wakes) {
        let (now, largest, before) = (core.ticker.now(), self.meter.largest(), self.head());
        let grace = self.meter.grace();
        let (mut lost, mut ahead) = (Vec::new(), 0);
        for (&place, entry) in &self.places {
            let due = self.forecast(now, ahead + u64::from(entry.cost.get()));
            let refusal = if entry.cost.get() > largest {
                Some(Refusal::too_costly(largest))
            } else {
                let missed = entry.seat.latest.missed_by(due, now, grace);
                let missed = missed.map(|reason| Refusal::new(reason, Duration::from_nanos(due - now)));
                self.meter.closed(entry.cost, now).or(missed)
            };
            match refusal {
                Some(refusal) => lost.push((place, refusal)),
                None => ahead += u64::from(entry.cost.get()),
            }
        }
        for (place, refusal) in lost {
            self.refusals.insert(place, core.refuse(refusal));
            if let Some(entry) = self.remove(place) {
                entry.seat.set(State::Refused);
                wakes.call.push(entry.waker);
            }
        }
        if self.head() != before {
            self.wake_head(wakes);
        }
    }

    /// Gives a place up; the next head is woken to arm its timer.
    pub(super) fn leave(&mut self, place: u64, wakes: &mut Wakes) {
        let before = self.head();
        self.refusals.remove(&place);
        wakes.drop.extend(self.remove(place).map(|entry| entry.waker));
        if self.head() != before {
            self.wake_head(wakes);
        }
    }

    pub(super) fn insert(&mut self, place: u64, entry: Place) {
        self.asked += u64::from(entry.cost.get());
        self.places.insert(place, entry);
    }

    pub(super) fn new_place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }

    pub(super) fn keep_waker(&mut self, place: u64, waker: &Waker, wakes: &mut Wakes) {
        if let Some(entry) = self.places.get_mut(&place).filter(|entry| !entry.waker.will_wake(waker)) {
            wakes.drop.push(std::mem::replace(&mut entry.waker, waker.clone()));
        }
    }

    /// When the last of `total` permits can be granted, taken in turn.
    pub(super) fn forecast(&self, now: u64, total: u64) -> u64 {
        self.says.forecast(&self.meter, now, total)
    }

    /// When the head looks again, whose permits are `due`: then, or a little later together with others where the
    /// line is long. Not so late that anybody who is served with it would be too late.
    pub(super) fn gather(&self, now: u64, due: u64) -> u64 {
        let Some((_, cost)) = self.head() else { return due };
        let cost = u64::from(cost.get());
        if self.asked <= cost || self.says.any() {
            return due;
        }
        let (next, last) = (self.forecast(now, cost + 1), self.forecast(now, self.asked));
        let until = due.saturating_add(TOGETHER.min((last - now) / PART));
        let most = due.saturating_add(next.saturating_sub(due).saturating_mul(MOST_TOGETHER));
        let bounds = self.places.values().take(MOST_TOGETHER as usize).map(|entry| entry.seat.latest.last(0));
        let until = bounds.map(|latest| latest.saturating_sub(TICK)).fold(until.min(most), u64::min);
        self.meter.gather(cost, due, next, until.max(due))
    }

    /// What is waited for.
    #[cfg(feature = "redis")]
    pub(super) fn demand(&self) -> Demand {
        let grace = self.meter.grace();
        Demand {
            permits: self.asked,
            head: self.head().map(|(_, cost)| cost),
            last: self.places.values().map(|entry| entry.seat.latest.last(grace)).min(),
        }
    }

    pub(super) fn is_head(&self, place: u64) -> bool {
        self.places.keys().next() == Some(&place)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn wake_head(&self, wakes: &mut Wakes) {
        wakes.call.extend(self.places.first_key_value().map(|(_, head)| head.waker.clone()));
    }

    fn head(&self) -> Option<(u64, NonZeroU32)> {
        self.places.first_key_value().map(|(&place, entry)| (place, entry.cost))
    }

    fn take(&mut self, core: &Core, cost: NonZeroU32, now: u64) -> bool {
        let permits = u64::from(cost.get());
        let heard = self.says.any() && self.says.tidy(now);
        let allowed = !heard || self.says.earliest(now, permits) <= now;
        let taken = allowed && self.meter.take(cost, now);
        if taken {
            self.says.spend(permits);
            core.tally().fetch_add(permits, Ordering::AcqRel);
        }
        taken
    }

    fn remove(&mut self, place: u64) -> Option<Place> {
        let entry = self.places.remove(&place)?;
        self.asked -= u64::from(entry.cost.get());
        Some(entry)
    }
}
