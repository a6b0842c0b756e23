//! What stands before a limiter's arithmetic: a [path without a lock](super::core) for those who need not wait, and
//! the [line](super::line) for all others.

use std::{
    num::NonZeroU32,
    sync::{Arc, PoisonError},
    task::Waker,
    time::Duration,
};

use super::{
    Feedback, PermitRequest, Reason, Refusal, Snapshot,
    core::{AtOnce, BUSY, Core, HEARD},
    line::{Line, Place, Wakes, slack},
    meter::Meter,
    nanos,
    seat::{Latest, Seat, State},
    sync::{Mutex, MutexGuard, Ordering},
    ticker::Ticker,
};
use crate::{clock::Instant, policy::Quota};

/// Who was called longer ago than this, 100 ms in nanoseconds, and has not come, is waited for no longer.
const PATIENCE: u64 = 100_000_000;

#[derive(Debug)]
pub(crate) struct Queue<M> {
    core: Core,
    /// Made when somebody has to ask it: most keys of a [`Keyed`](super::Keyed) never do.
    line: Mutex<Option<Box<Line<M>>>>,
}

/// What came of joining the line.
pub(super) enum Joined {
    Granted,
    /// At this place. Who is granted already has a task before it that is to be polled first.
    Seated {
        place: u64,
        seat: Arc<Seat>,
    },
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

fn too_late() -> Refusal {
    Refusal::new(Reason::Deadline, Duration::ZERO)
}

impl<M: Meter> Queue<M> {
    pub(super) fn new(quotas: &[Quota], ticker: Ticker) -> Self {
        let shared = M::shared(quotas);
        let line = shared.is_none().then(|| Box::new(Line::new(M::new(quotas, None), quotas)));
        Self { core: Core::new(ticker, shared, slack(quotas)), line: Mutex::new(line) }
    }

    /// Of a meter that is filled from outside, by [`tend`](Self::tend).
    #[cfg(feature = "redis")]
    pub(crate) fn of(meter: M, quotas: &[Quota]) -> Self {
        let line = Some(Box::new(Line::new(meter, quotas)));
        Self { core: Core::new(Ticker::tokio(), None, slack(quotas)), line: Mutex::new(line) }
    }

    /// Looks at the meter, with what is waited for and the time in nanoseconds since the queue's origin.
    #[cfg(feature = "redis")]
    pub(crate) fn look<T>(&self, work: impl FnOnce(&mut M, super::Demand, u64) -> T) -> T {
        self.locked(|line, _| {
            let demand = line.demand();
            work(&mut line.meter, demand, self.core.ticker.now())
        })
    }

    /// Changes the meter from outside, and sees to those who wait.
    #[cfg(feature = "redis")]
    pub(crate) fn tend<T>(&self, work: impl FnOnce(&mut M, u64) -> T) -> T {
        self.locked(|line, wakes| {
            let now = self.core.ticker.now();
            let outcome = work(&mut line.meter, now);
            // Before the others are served: whose time is over gets nothing.
            let (demand, lost) = (line.demand(), line.meter.store() != Some(super::Store::Shared));
            let late =
                demand.last.is_some_and(|last| line.forecast(now, demand.permits) > last || last <= now);
            if lost || late {
                line.turn_away(&self.core, wakes);
            }
            line.serve(&self.core, None, wakes);
            // The head's timer was set by what the meter was before.
            line.wake_head(wakes);
            outcome
        })
    }

    /// Nanoseconds since the queue's origin.
    #[cfg(feature = "redis")]
    pub(crate) fn now(&self) -> u64 {
        self.core.ticker.now()
    }

    /// A moment on the queue's clock.
    #[cfg(feature = "redis")]
    pub(crate) fn instant(&self, at: u64) -> Instant {
        self.core.ticker.instant(at)
    }

    /// Permits that the server may not have counted in what it says is left.
    #[cfg(feature = "redis")]
    pub(crate) fn uncounted(&self) -> u64 {
        self.locked(|line, _| {
            self.core.in_flight().saturating_add(line.abandoned.permits(self.core.ticker.now()))
        })
    }

    /// Takes the permits now, or says what the wait would be.
    pub(super) fn try_take(&self, ask: &PermitRequest) -> Result<(), Refusal> {
        let outcome = match self.core.take_at_once(ask) {
            AtOnce::Granted => return Ok(()),
            AtOnce::NotBefore { now, due } => Ok(Some(Duration::from_nanos(due.saturating_sub(now)))),
            AtOnce::AskTheLine => {
                self.locked(|line, wakes| line.wait(&self.core, ask.cost, self.core.ticker.now(), wakes))
            }
            AtOnce::TooLate => Err(too_late()),
        };
        match outcome {
            Ok(None) => Ok(()),
            Ok(Some(wait)) => Err(self.core.refuse(Refusal::new(Reason::MaxWait, wait))),
            Err(refusal) => Err(self.core.refuse(refusal)),
        }
    }

    /// Takes the permits now where that needs no lock, and otherwise leaves all to [`join`](Self::join).
    pub(super) fn take_at_once(&self, ask: &PermitRequest) -> bool {
        self.core.takes_without_the_line(ask)
    }

    /// Takes the permits now, or a place in the line, unless the wait does not fit.
    pub(super) fn join(&self, ask: &PermitRequest, waker: &Waker) -> Result<Joined, Refusal> {
        match self.core.take_at_once(ask) {
            AtOnce::Granted => return Ok(Joined::Granted),
            AtOnce::TooLate => return Err(self.core.refuse(too_late())),
            AtOnce::NotBefore { now, due } => {
                let latest = Latest::of(ask, now, &self.core.ticker);
                if let Some(reason) = latest.missed_by(due, now, 0) {
                    let wait = Duration::from_nanos(due - now);
                    return Err(self.core.refuse(Refusal::new(reason, wait)));
                }
            }
            AtOnce::AskTheLine => {}
        }
        let waker = waker.clone();
        let joined = self.locked(|line, wakes| {
            let now = self.core.ticker.now();
            let Some(wait) = line.wait(&self.core, ask.cost, now, wakes)? else {
                if !self.awaits_called(line) {
                    return Ok(Joined::Granted);
                }
                // Others before it have been granted theirs, and their tasks are on the way. It lets them go
                // first, once.
                wakes.call.push(waker);
                self.core.called.fetch_add(1, Ordering::AcqRel);
                line.called_at = now;
                let seat = Arc::new(Seat::new(Latest::of(ask, now, &self.core.ticker)));
                seat.set(State::Granted(now));
                return Ok(Joined::Seated { place: line.new_place(), seat });
            };
            let latest = line.admit(ask, wait, now, &self.core.ticker)?;
            let (place, seat) = (line.new_place(), Arc::new(Seat::new(latest)));
            line.insert(place, Place { waker, cost: ask.cost, seat: Arc::clone(&seat) });
            Ok(Joined::Seated { place, seat })
        });
        joined.map_err(|refusal| self.core.refuse(refusal))
    }

    /// How the request at `place` stands; the head serves the line on its way.
    pub(super) fn visit(&self, place: u64, seat: &Arc<Seat>, cost: NonZeroU32, waker: &Waker) -> Standing {
        if let State::Granted(at) = seat.state() {
            if self.core.may_go(at) {
                self.arrive();
                return Standing::Granted;
            }
        }
        self.locked(|line, wakes| {
            let now = self.core.ticker.now();
            match seat.state() {
                State::Refused => {
                    // Put there in the same breath as the state.
                    let refusal = line.refusals.remove(&place);
                    return Standing::Refused(refusal.unwrap_or(Refusal::new(Reason::MaxWait, None)));
                }
                State::Granted(at) => {
                    self.core.called.fetch_sub(1, Ordering::AcqRel);
                    if !self.is_stale_in(line, now.saturating_sub(at), now) {
                        return Standing::Granted;
                    }
                    // Back to its old place, which is before all that came after it.
                    seat.set(State::Waiting);
                    self.core.release(cost);
                    line.insert(place, Place { waker: waker.clone(), cost, seat: Arc::clone(seat) });
                }
                State::Waiting => line.keep_waker(place, waker, wakes),
            }
            if !line.is_head(place) {
                return Standing::Behind;
            }
            line.serve(&self.core, Some(place), wakes);
            if !line.is_head(place) {
                return Standing::Granted;
            }
            let (due, grace) = (line.forecast(now, u64::from(cost.get())), line.meter.grace());
            match seat.latest.missed_by(due, now, grace) {
                Some(reason) => {
                    line.leave(place, wakes);
                    let refusal = Refusal::new(reason, Duration::from_nanos(due - now));
                    Standing::Refused(self.core.refuse(refusal))
                }
                None => {
                    let look = line.meter.look_again(line.gather(now, due), now);
                    Standing::Head { due: self.core.ticker.instant(look.min(seat.latest.last(grace))) }
                }
            }
        })
    }

    /// Gives the place up, and with it the permits if they were granted meanwhile.
    pub(super) fn leave(&self, place: u64, seat: &Seat, cost: NonZeroU32) {
        let granted = self.locked(|line, wakes| {
            line.leave(place, wakes);
            let granted = matches!(seat.state(), State::Granted(_));
            if granted {
                self.core.called.fetch_sub(1, Ordering::AcqRel);
            }
            granted
        });
        if granted {
            self.core.release(cost);
        }
    }

    pub(crate) fn pause_until(&self, until: Instant) {
        self.locked(|line, wakes| {
            if line.says.pause(self.core.ticker.at(until), self.core.ticker.now()) {
                line.heed(&self.core, wakes);
            }
        });
    }

    pub(crate) fn observe(&self, feedback: &Feedback) {
        self.locked(|line, wakes| {
            // From here on everybody asks under the lock, and who got through before is counted as in flight.
            self.core.tally().fetch_or(BUSY, Ordering::AcqRel);
            line.flags |= BUSY;
            let now = self.core.ticker.now();
            let uncounted = self.core.in_flight().saturating_add(line.abandoned.permits(now));
            if line.says.hear(feedback, now, uncounted) {
                line.heed(&self.core, wakes);
            }
        });
    }

    /// See [`Limiter::release`](super::Limiter::release).
    pub(crate) fn release(&self, cost: NonZeroU32) {
        self.core.release(cost);
    }

    /// Like [`release`](Self::release), but the server may count it later than it gives its next answer.
    pub(crate) fn abandon(&self, cost: NonZeroU32) {
        self.locked(|line, _| line.abandoned.add(u64::from(cost.get()), self.core.ticker.now()));
        self.core.release(cost);
    }

    pub(super) fn change(&self, quotas: &[Quota]) {
        self.locked(|line, wakes| {
            line.meter.change(quotas, self.core.ticker.now());
            self.core.slack.store(slack(quotas), Ordering::Release);
            line.says.set_metered(!quotas.is_empty());
            line.turn_away(&self.core, wakes);
            // The head's timer was set by the old quota.
            line.wake_head(wakes);
        });
    }

    /// Forgets what the server has said.
    pub(crate) fn resume(&self) {
        self.locked(|line, wakes| {
            line.says.forget();
            line.wake_head(wakes);
        });
    }

    pub(crate) fn is_stale(&self, held: Duration) -> bool {
        self.locked(|line, _| self.is_stale_in(line, nanos(held), self.core.ticker.now()))
    }

    /// Whether permits that were granted `held` ago are worth nothing any more: what leaves later than it was
    /// counted would fall into another window, or into a pause, or a time of which the server said that nothing is left.
    fn is_stale_in(&self, line: &Line<M>, held: u64, now: u64) -> bool {
        held > self.core.slack.load(Ordering::Acquire) || line.says.is_shut(now)
    }

    /// Whether some were called and are on their way.
    fn awaits_called(&self, line: &Line<M>) -> bool {
        self.core.called.load(Ordering::Acquire) > 0
            && self.core.ticker.now().saturating_sub(line.called_at) <= PATIENCE
    }

    pub(super) fn empty(&self) {
        self.locked(|line, _| line.meter.empty(self.core.ticker.now()));
    }

    pub(super) fn is_idle(&self) -> bool {
        if let Some(bucket) = self.core.shared.as_ref().filter(|_| self.line().is_none()) {
            return bucket.is_full(self.core.ticker.now());
        }
        self.locked(|line, _| {
            let now = self.core.ticker.now();
            let owes = !line.meter.is_whole(now) || line.says.tidy(now) || line.abandoned.permits(now) > 0;
            !owes && line.is_empty()
        })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.locked(|line, _| {
            let now = self.core.ticker.now();
            let left = line.says.left(now).map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX));
            let paused_until = line.says.paused_until(now);
            Snapshot {
                store: line.meter.store(),
                available: if paused_until.is_some() { 0 } else { line.meter.available(now).min(left) },
                queued: line.len(),
                paused_until: paused_until.map(|until| self.core.ticker.instant(until)),
                granted: self.core.granted(),
                refused: self.core.refused(),
                in_flight: self.core.in_flight(),
            }
        })
    }

    /// Whether a newcomer may go without the lock.
    #[cfg(all(test, outbound_loom))]
    pub(super) fn is_open(&self) -> bool {
        self.core.tally().load(Ordering::Acquire) & BUSY == 0
    }

    /// A task that was called is there. The last one opens the way for newcomers again.
    fn arrive(&self) {
        if self.core.called.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.locked(|_, _| ());
        }
    }

    fn line(&self) -> MutexGuard<'_, Option<Box<Line<M>>>> {
        // A panic while the lock was held (a waker's clone) leaves a whole line behind.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_line(&self) -> Box<Line<M>> {
        let quota = self.core.shared.as_ref().map(|bucket| bucket.quota());
        Box::new(Line::new(M::new(quota.as_slice(), self.core.shared.clone()), quota.as_slice()))
    }

    fn locked<T>(&self, work: impl FnOnce(&mut Line<M>, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let mut guard = self.line();
        let line = guard.get_or_insert_with(|| self.make_line());
        let outcome = work(line, &mut wakes);
        let heard = line.says.any() && line.says.tidy(self.core.ticker.now());
        let busy = heard || !line.is_empty() || self.awaits_called(line);
        let flags = if busy { BUSY } else { 0 } | if heard { HEARD } else { 0 };
        if flags != line.flags {
            // Both bits change under the lock alone.
            self.core.tally().fetch_xor(flags ^ line.flags, Ordering::AcqRel);
            line.flags = flags;
        }
        drop(guard);
        wakes.call.into_iter().for_each(Waker::wake);
        outcome
    }
}
