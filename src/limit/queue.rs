//! The line before a limiter: first come, first served, one armed timer, two wake-ups a grant at most.
//!
//! Only the head of the line holds a timer. When it fires, the head takes permits for itself and for all behind
//! it who can go by now, wakes those, and wakes the new head to arm the next timer. Who finds its place gone
//! from the line has been granted its permit. Nothing is spawned: the line runs in the tasks that wait in it.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::{Ask, Reason, Refusal};
use crate::clock::{self, Instant};

/// The arithmetic of a limiter, in nanoseconds since the queue's origin.
pub(super) trait Meter {
    /// Spends a permit now, or says when one comes free.
    fn take(&self) -> Result<(), u64>;

    /// When the request with `ahead` others before it can go, nobody going before `start`; `due` is what `take`
    /// answered last, if that was a no. May be too early, never too late.
    fn forecast(&self, start: u64, due: Option<u64>, ahead: u64) -> u64;
}

pub(super) struct Queue<M> {
    origin: Instant,
    meter: M,
    /// Zero when there is no pause.
    paused_until: AtomicU64,
    /// The length of the line, for those who want to know without its lock.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

/// Ordered by arrival. A tree and not a ring: whoever leaves from the middle leaves no hole behind.
#[derive(Default)]
struct Line {
    places: BTreeMap<u64, Waker>,
    next_place: u64,
    /// What the meter answered last, if that was a no.
    due: Option<u64>,
}

/// What a visit to the line came to.
enum Visit {
    Granted,
    Refused(Refusal),
    Head { due: Instant },
    Behind,
}

/// Wakers to call when the lock is given back: a waker may run anything.
#[derive(Default)]
struct Wakes(Vec<Waker>);

impl Wakes {
    fn call(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

impl<M: Meter> Queue<M> {
    pub(super) fn new(origin: Instant, meter: M) -> Self {
        Self {
            origin,
            meter,
            paused_until: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            line: Mutex::default(),
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn pause_until(&self, until: Instant) {
        let until = nanos(until.saturating_duration_since(self.origin));
        // The head finds the longer pause when its timer fires; it need not be woken for it.
        self.paused_until.fetch_max(until, Ordering::AcqRel);
    }

    /// The path of a request that need not wait: two loads and the meter.
    fn take_at_once(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0 && self.permit().is_ok()
    }

    /// Spends a permit now, or says when to ask again and whether it was the meter that said so.
    fn permit(&self) -> Result<(), No> {
        let paused_until = self.paused_until.load(Ordering::Acquire);
        if paused_until > 0 && self.now() < paused_until {
            return Err(No::Paused(paused_until));
        }
        self.meter.take().map_err(No::Empty)
    }

    /// Joins the line, unless the request can go now or can't fit.
    fn join(&self, ask: &Ask, waker: &Waker) -> Result<Option<u64>, Refusal> {
        let mut wakes = Wakes::default();
        let mut line = self.line();
        let joined = match self.serve(&mut line, None, &mut wakes) {
            // The line is empty and the meter still has something.
            None => Ok(None),
            Some(_) => self.admit(&line, ask).map(|()| {
                let place = line.next_place;
                line.next_place += 1;
                line.places.insert(place, waker.clone());
                Some(place)
            }),
        };
        self.unlock(line, wakes);
        joined
    }

    /// Looks how the request at `place` stands; the head serves the line on its way.
    fn visit(&self, place: u64, ask: &Ask, waker: &Waker) -> Visit {
        let mut wakes = Wakes::default();
        let mut line = self.line();
        let visit = if line.places.keys().next() == Some(&place) {
            match self.serve(&mut line, Some(place), &mut wakes) {
                Some(due) if line.places.contains_key(&place) => match self.fits(ask, due) {
                    Ok(()) => Visit::Head { due: clock::after(self.origin, Duration::from_nanos(due)) },
                    Err(refusal) => {
                        line.leave(place, &mut wakes);
                        Visit::Refused(refusal)
                    }
                },
                _ => Visit::Granted,
            }
        } else {
            match line.places.get_mut(&place) {
                Some(known) => {
                    known.clone_from(waker);
                    Visit::Behind
                }
                None => Visit::Granted,
            }
        };
        self.unlock(line, wakes);
        visit
    }

    /// Grants to the head of the line for as long as there are permits. Answers when the next may come, or none
    /// when the line is empty and a permit was taken for the visitor, who then stands in no line.
    fn serve(&self, line: &mut Line, visitor: Option<u64>, wakes: &mut Wakes) -> Option<u64> {
        let head = line.places.keys().next().copied();
        let next = loop {
            if line.places.is_empty() && visitor.is_some() {
                break None;
            }
            match self.permit() {
                Ok(()) => {
                    line.due = None;
                    match line.places.pop_first() {
                        Some((place, _)) if Some(place) == visitor => {}
                        Some((_, waker)) => wakes.0.push(waker),
                        None => return None,
                    }
                }
                Err(No::Empty(due)) => {
                    line.due = Some(due);
                    break Some(due);
                }
                Err(No::Paused(until)) => break Some(until),
            }
        };
        // A new head has no timer yet.
        if let Some((place, waker)) = line.places.first_key_value() {
            if Some(*place) != head {
                wakes.0.push(waker.clone());
            }
        }
        next
    }

    /// Whether a newcomer fits behind the line.
    fn admit(&self, line: &Line, ask: &Ask) -> Result<(), Refusal> {
        let ahead = line.places.len();
        let start = self.now().max(self.paused_until.load(Ordering::Acquire));
        let at = self.meter.forecast(start, line.due, ahead as u64);
        if ahead >= ask.max_queue {
            return Err(Refusal::new(Reason::QueueFull, self.wait_until(at)));
        }
        self.fits(ask, at)
    }

    fn fits(&self, ask: &Ask, at: u64) -> Result<(), Refusal> {
        let wait = self.wait_until(at);
        if ask.max_wait.is_some_and(|longest| wait > longest) {
            return Err(Refusal::new(Reason::MaxWait, wait));
        }
        let when = clock::after(self.origin, Duration::from_nanos(at));
        if ask.deadline.is_some_and(|deadline| when > deadline) {
            return Err(Refusal::new(Reason::Deadline, wait));
        }
        Ok(())
    }

    fn wait_until(&self, at: u64) -> Duration {
        Duration::from_nanos(at.saturating_sub(self.now()))
    }

    fn now(&self) -> u64 {
        nanos(clock::now().saturating_duration_since(self.origin))
    }
}

enum No {
    Empty(u64),
    Paused(u64),
}

impl<M> Queue<M> {
    // A panic while the lock was held (a waker's clone) leaves a whole line behind.
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, place: u64) {
        let mut wakes = Wakes::default();
        let mut line = self.line();
        line.leave(place, &mut wakes);
        self.unlock(line, wakes);
    }

    fn unlock(&self, line: MutexGuard<'_, Line>, wakes: Wakes) {
        self.waiting.store(line.places.len(), Ordering::Release);
        drop(line);
        wakes.call();
    }
}

impl Line {
    /// Gives a place up; the next head is woken to arm its timer.
    fn leave(&mut self, place: u64, wakes: &mut Wakes) {
        let was_head = self.places.keys().next() == Some(&place);
        self.places.remove(&place);
        if was_head {
            wakes.0.extend(self.places.first_key_value().map(|(_, waker)| waker.clone()));
        }
    }
}

pin_project! {
    /// One request's wait. Takes its place when it is first polled, gives it up when it is dropped.
    pub(super) struct Ticket<M> {
        queue: Arc<Queue<M>>,
        ask: Ask,
        place: Place,
        #[pin]
        timer: Option<Sleep>,
    }

    impl<M> PinnedDrop for Ticket<M> {
        fn drop(this: Pin<&mut Self>) {
            if let Place::At(place) = this.place {
                this.queue.leave(place);
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// Not polled yet.
    None,
    At(u64),
    /// Granted or refused.
    Left,
}

impl<M: Meter> Ticket<M> {
    pub(super) fn new(queue: Arc<Queue<M>>, ask: Ask) -> Self {
        Self { queue, ask, place: Place::None, timer: None }
    }
}

impl<M: Meter> Future for Ticket<M> {
    type Output = Result<(), Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let outcome = loop {
            match *this.place {
                Place::None if this.queue.take_at_once() => break Ok(()),
                Place::None => match this.queue.join(this.ask, cx.waker()) {
                    Ok(Some(place)) => *this.place = Place::At(place),
                    Ok(None) => break Ok(()),
                    Err(refusal) => break Err(refusal),
                },
                Place::At(place) => match this.queue.visit(place, this.ask, cx.waker()) {
                    Visit::Granted => break Ok(()),
                    Visit::Refused(refusal) => break Err(refusal),
                    Visit::Behind => return Poll::Pending,
                    Visit::Head { due } => {
                        match this.timer.as_mut().as_pin_mut() {
                            Some(timer) if timer.deadline() == due => {}
                            Some(timer) => timer.reset(due),
                            None => this.timer.set(Some(tokio::time::sleep_until(due))),
                        }
                        if let Some(timer) = this.timer.as_mut().as_pin_mut() {
                            ready!(timer.poll(cx));
                        }
                    }
                },
                Place::Left => return Poll::Pending,
            }
        };
        *this.place = Place::Left;
        this.timer.set(None);
        Poll::Ready(outcome)
    }
}

impl<M> fmt::Debug for Ticket<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Saturates after 584 years.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
