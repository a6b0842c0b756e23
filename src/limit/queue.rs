//! What stands before a limiter's arithmetic: a path without a lock for those who need not wait, and the
//! [line](super::line) for all others.

use std::{
    num::NonZeroU32,
    sync::{Arc, PoisonError},
    task::Waker,
    time::Duration,
};

use super::{
    Ask, Feedback, Reason, Refusal, Snapshot,
    gcra::{Bucket, Word},
    line::{Called, Line, Place, Wakes, guard, latest},
    meter::Meter,
    nanos,
    says::Says,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering},
    ticker::Ticker,
};
use crate::{clock::Instant, policy::Quota};

/// Someone waits, or the server has said something that holds.
const BUSY: u64 = 1 << 63;

/// How much later than it was granted a request may leave without being looked at again: 100 ms, in nanoseconds.
const BREATH: u64 = 100_000_000;

/// What is read without the lock.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) ticker: Ticker,
    /// Its tally: the permits granted, and in the highest bit whether a newcomer has to ask under the lock. One number, so
    /// that who counts itself learns in the same step whether it may go on.
    pub(super) word: Arc<Word>,
}

#[derive(Debug)]
pub(super) struct Queue<M> {
    core: Core,
    /// What may be taken from without the lock, while nobody waits and the server has said nothing.
    shared: Option<Arc<Bucket>>,
    released: AtomicU64,
    line: Mutex<Line<M>>,
}

/// What came of joining the line.
pub(super) enum Joined {
    Granted,
    /// Granted, but its task is to be polled once more before it goes.
    Called(u64),
    Waiting(u64),
}

/// How a request in the line stands.
pub(super) enum Standing {
    Granted,
    Refused(Refusal),
    /// It is the head, and has to come back at this moment.
    Head {
        due: Instant,
    },
    Behind,
}

impl<M: Meter> Queue<M> {
    pub(super) fn new(quotas: &[Quota], ticker: Ticker) -> Self {
        let word = Arc::default();
        let meter = M::new(quotas, &ticker, &word);
        Self {
            shared: meter.shared(),
            core: Core { ticker, word },
            released: AtomicU64::new(0),
            line: Mutex::new(Line::new(meter, quotas)),
        }
    }

    /// Takes the permits now, or says what the wait would be.
    pub(super) fn try_take(&self, ask: &Ask) -> Result<(), Refusal> {
        if self.take_at_once(ask.cost) {
            return Ok(());
        }
        self.locked(|line, wakes| match line.wait(&self.core, ask.cost, wakes) {
            Ok(None) => Ok(()),
            Ok(Some(wait)) => Err(line.refuse(Refusal::new(Reason::MaxWait, wait))),
            Err(refusal) => Err(line.refuse(refusal)),
        })
    }

    /// Takes the permits now, or a place in the line, unless the wait does not fit.
    pub(super) fn join(&self, ask: &Ask, waker: &Waker) -> Result<Joined, Refusal> {
        if self.take_at_once(ask.cost) {
            return Ok(Joined::Granted);
        }
        let waker = waker.clone();
        self.locked(|line, wakes| {
            let wait = line.wait(&self.core, ask.cost, wakes).map_err(|refusal| line.refuse(refusal))?;
            let Some(wait) = wait else {
                if line.called.is_empty() {
                    return Ok(Joined::Granted);
                }
                // Others before it have been granted theirs, and their tasks are on the way. It lets them go
                // first, once, and then finds that it has no place in the line any more.
                wakes.call.push(waker);
                let place = line.new_place();
                let at = self.core.ticker.now();
                line.called.insert(place, Called { at, latest: latest(ask, at, &self.core.ticker) });
                return Ok(Joined::Called(place));
            };
            let latest = line.admit(ask, wait, &self.core.ticker).map_err(|refusal| line.refuse(refusal))?;
            let place = line.new_place();
            line.asked += u64::from(ask.cost.get());
            line.places.insert(place, Place { waker, cost: ask.cost, latest });
            Ok(Joined::Waiting(place))
        })
    }

    /// How the request at `place` stands; the head serves the line on its way.
    pub(super) fn visit(&self, place: u64, cost: NonZeroU32, waker: &Waker) -> Standing {
        self.locked(|line, wakes| {
            let stale = line.called.get(&place).is_some_and(|called| {
                let now = self.core.ticker.now();
                // Tasks are polled a little late at all times; a breath of it is no reason to wait again.
                line.is_stale(now.saturating_sub(called.at).saturating_sub(BREATH), now)
            });
            if stale {
                // Back to its old place, which is before all that came after it.
                let latest = line.called.remove(&place).and_then(|called| called.latest);
                line.asked += u64::from(cost.get());
                line.places.insert(place, Place { waker: waker.clone(), cost, latest });
                self.release(cost);
            }
            if line.places.keys().next() == Some(&place) {
                line.serve(&self.core, Some(place), wakes);
            }
            if let Some(refusal) = line.refusals.remove(&place) {
                return Standing::Refused(refusal);
            }
            let is_head = line.places.keys().next() == Some(&place);
            let Some(entry) = line.places.get_mut(&place) else {
                line.called.remove(&place);
                return Standing::Granted;
            };
            if !entry.waker.will_wake(waker) {
                wakes.drop.push(std::mem::replace(&mut entry.waker, waker.clone()));
            }
            let latest = entry.latest;
            if !is_head {
                return Standing::Behind;
            }
            let now = self.core.ticker.now();
            let permits = u64::from(cost.get());
            let due = line.meter.forecast(line.says.earliest(now, permits), permits);
            match latest {
                Some((latest, reason)) if due > latest => {
                    line.leave(place, wakes);
                    Standing::Refused(line.refuse(Refusal::new(reason, Duration::from_nanos(due - now))))
                }
                _ => Standing::Head { due: self.core.ticker.instant(due) },
            }
        })
    }

    /// Gives the place up, and with it the permits if they were granted meanwhile.
    pub(super) fn leave(&self, place: u64, cost: NonZeroU32) {
        let waiting = self.locked(|line, wakes| {
            let waiting = line.leave(place, wakes);
            line.called.remove(&place);
            waiting
        });
        if !waiting {
            self.release(cost);
        }
    }

    pub(super) fn pause_until(&self, until: Instant) {
        self.locked(|line, wakes| {
            if line.says.pause(self.core.ticker.at(until)) {
                line.turn_away(self.core.ticker.now(), wakes);
            }
        });
    }

    pub(super) fn observe(&self, feedback: &Feedback) {
        self.locked(|line, wakes| {
            // From here on everybody asks under the lock, and who got through before is counted as in flight.
            self.core.word.tally.fetch_or(BUSY, Ordering::AcqRel);
            line.busy = true;
            let (now, in_flight) = (self.core.ticker.now(), self.in_flight());
            if line.says.hear(feedback, now, in_flight) {
                line.turn_away(now, wakes);
            }
        });
    }

    pub(super) fn release(&self, cost: NonZeroU32) {
        self.released.fetch_add(u64::from(cost.get()), Ordering::AcqRel);
    }

    pub(super) fn change(&self, quotas: &[Quota]) {
        self.locked(|line, wakes| {
            line.meter.change(quotas, &self.core.ticker);
            line.guard = guard(quotas);
            line.turn_away(self.core.ticker.now(), wakes);
            // The head's timer was set by the old quota.
            line.wake_head(wakes);
        });
    }

    /// Forgets what the server has said.
    pub(super) fn resume(&self) {
        self.locked(|line, wakes| {
            line.says = Says::default();
            line.wake_head(wakes);
        });
    }

    pub(super) fn is_stale(&self, held: Duration) -> bool {
        self.locked(|line, _| line.is_stale(nanos(held), self.core.ticker.now()))
    }

    pub(super) fn empty(&self) {
        self.locked(|line, _| line.meter.empty(self.core.ticker.now()));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.locked(|line, _| {
            let now = self.core.ticker.now();
            line.meter.is_whole(now) && line.places.is_empty() && !line.says.tidy(now)
        })
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.locked(|line, _| {
            let now = self.core.ticker.now();
            let left = line.says.left(now).map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX));
            let paused_until = line.says.paused_until(now);
            Snapshot {
                available: if paused_until.is_some() { 0 } else { line.meter.available(now).min(left) },
                queued: line.places.len(),
                paused_until: paused_until.map(|until| self.core.ticker.instant(until)),
                granted: self.granted(),
                refused: line.refused,
                in_flight: self.in_flight(),
            }
        })
    }

    fn in_flight(&self) -> u64 {
        // What is released was granted before: read in this order the difference is never too small.
        let released = self.released.load(Ordering::Acquire);
        self.granted().saturating_sub(released)
    }

    fn granted(&self) -> u64 {
        self.core.word.tally.load(Ordering::Acquire) & !BUSY
    }

    /// The path of a request that need not wait: counted first, so that whoever hears the server meanwhile
    /// either is seen here or sees this one.
    fn take_at_once(&self, cost: NonZeroU32) -> bool {
        let Some(bucket) = self.shared.as_ref().filter(|bucket| cost.get() <= bucket.burst()) else {
            return false;
        };
        let permits = u64::from(cost.get());
        let before = self.core.word.tally.fetch_add(permits, Ordering::AcqRel);
        let taken = before & BUSY == 0 && bucket.take(cost).is_ok();
        if !taken {
            self.core.word.tally.fetch_sub(permits, Ordering::AcqRel);
        }
        taken
    }

    fn line(&self) -> MutexGuard<'_, Line<M>> {
        // A panic while the lock was held (a waker's clone) leaves a whole line behind.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked<T>(&self, work: impl FnOnce(&mut Line<M>, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let mut line = self.line();
        let outcome = work(&mut line, &mut wakes);
        let holds = line.says.any() && line.says.tidy(self.core.ticker.now());
        let busy = holds || !line.called.is_empty() || !line.places.is_empty();
        if busy != line.busy {
            line.busy = busy;
            match busy {
                true => self.core.word.tally.fetch_or(BUSY, Ordering::AcqRel),
                false => self.core.word.tally.fetch_and(!BUSY, Ordering::AcqRel),
            };
        }
        drop(line);
        wakes.call.into_iter().for_each(Waker::wake);
        outcome
    }
}
