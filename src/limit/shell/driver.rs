//! The clock of a limiter, the wakers of the callers in its queue, and the driver, which wakes them in time.

#[cfg(feature = "quanta")]
use std::sync::OnceLock;
use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    time::{Sleep, sleep_until},
};

use super::Shared;
use crate::{
    clock::{self, Instant},
    limit::core::Ticket,
    policy::nanos,
};

/// A limiter's clock, which counts nanoseconds since the limiter was created.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    origin: Instant,
    #[cfg(feature = "quanta")]
    quanta: Option<(&'static quanta::Clock, u64)>,
    /// The next reading, if the readings of a model all differ.
    #[cfg(outbound_loom)]
    pub(super) next: Option<Arc<loom::sync::atomic::AtomicU64>>,
}

impl Clock {
    pub(crate) fn tokio() -> Self {
        Self {
            origin: clock::now(),
            #[cfg(feature = "quanta")]
            quanta: None,
            #[cfg(outbound_loom)]
            next: None,
        }
    }

    #[cfg(feature = "quanta")]
    pub(crate) fn quanta() -> Self {
        // All limiters share one clock, because creating a clock takes tens of microseconds on a virtual machine.
        static CLOCK: OnceLock<quanta::Clock> = OnceLock::new();
        let clock = CLOCK.get_or_init(quanta::Clock::new);
        let start = clock.raw();
        Self { quanta: Some((clock, start)), ..Self::tokio() }
    }

    pub(crate) fn has_same_source(&self, other: &Self) -> bool {
        #[cfg(feature = "quanta")]
        if self.quanta.is_some() != other.quanta.is_some() {
            return false;
        }
        let _ = other;
        true
    }

    /// Returns by how much a reading of the clock may be earlier than a previous one of another thread. Quanta's clock
    /// was up to 715 ns earlier.
    pub(crate) fn skew(&self) -> u64 {
        #[cfg(feature = "quanta")]
        if self.quanta.is_some() {
            return 1_024;
        }
        0
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        #[cfg(outbound_loom)]
        if let Some(next) = &self.next {
            return next.fetch_add(1, loom::sync::atomic::Ordering::AcqRel);
        }
        #[cfg(feature = "quanta")]
        if let Some((clock, start)) = &self.quanta {
            return clock.delta_as_nanos(*start, clock.raw());
        }
        nanos(clock::now().saturating_duration_since(self.origin))
    }

    /// Converts a time of this clock to an `Instant` of tokio's timers.
    pub(crate) fn timer(&self, at: u64) -> Instant {
        let exact = self.origin.checked_add(Duration::from_nanos(at));
        #[cfg(feature = "quanta")]
        let exact = exact.filter(|_| self.quanta.is_none());
        // `clock::after` limits the wait, so it counts from the present. Counted from the origin, a limited time could
        // lie in the past, and its timer would wake a waiter without end.
        let wait = || Duration::from_nanos(at.saturating_sub(self.now()));
        exact.unwrap_or_else(|| clock::after(clock::now(), wait()))
    }

    /// Converts an `Instant` of tokio's clock to a time of this clock.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        #[cfg(feature = "quanta")]
        if self.quanta.is_some() {
            return self.now().saturating_add(nanos(instant.saturating_duration_since(clock::now())));
        }
        nanos(instant.saturating_duration_since(self.origin))
    }

    /// Converts a past time of this clock to an `Instant`, without reading a clock.
    /// [`since_origin`](Self::since_origin) is its exact inverse.
    #[inline]
    pub(crate) fn stamp(&self, at: u64) -> Instant {
        self.origin.checked_add(Duration::from_nanos(at)).unwrap_or(self.origin)
    }

    pub(crate) fn since_origin(&self, stamp: Instant) -> u64 {
        nanos(stamp.saturating_duration_since(self.origin))
    }
}

/// A task that sleeps until the next permits are due and grants them. Each runtime on which requests wait runs one,
/// because a blocked runtime must not delay the requests of another. It does not keep the limiter alive, and ends when
/// nobody waits.
struct Driver {
    limiter: Weak<Shared>,
    runtime: Id,
    sleep: Pin<Box<Sleep>>,
}

/// Starts the driver of the current runtime, unless it runs.
///
/// # Panics
///
/// Panics without a tokio runtime, or if its timer is disabled.
pub(super) fn start(limiter: &Arc<Shared>) {
    let runtime = Handle::current();
    let sleep = Box::pin(sleep_until(clock::now()));
    let mut guard = limiter.lock();
    let Some(state) = guard.as_deref_mut() else { return };
    if state.has_driver() {
        return;
    }
    state.waiting().timers.push(Timer::new(runtime.id()));
    drop(guard);
    runtime.spawn(Driver { limiter: Arc::downgrade(limiter), runtime: runtime.id(), sleep });
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(limiter) = this.limiter.upgrade() else { return Poll::Ready(()) };
        loop {
            let mut guard = limiter.lock();
            let (state, now) = limiter.enter(&mut guard, None);
            state.core.advance(now);
            let wake = state.core.next_wake(now);
            let mut wakes = Wakes::default();
            // A waiter whose store has no forecast fetches its permits each second, and when a server limit ends. If it
            // was not polled since it was last woken, another one does.
            if let Some(ticket) = state.core.unserved(now).filter(|_| this.sleep.is_elapsed()) {
                let wakers = &mut state.waiting().wakers;
                wakes.extend(wakers.take(ticket).or_else(|| wakers.0.iter_mut().find_map(Option::take)));
            }
            let timers = &mut state.waiting().timers;
            match wake {
                Some(at) => {
                    for timer in timers {
                        match timer.runtime == this.runtime {
                            true => timer.set(at, cx.waker()),
                            false => wakes.extend(timer.hurry(at)),
                        }
                    }
                }
                None => timers.retain(|timer| timer.runtime != this.runtime),
            }
            limiter.unlock(guard, false);
            wakes.wake();
            let Some(wake) = wake else {
                // Another driver of this runtime may have started, and keeps its timer.
                this.limiter = Weak::new();
                return Poll::Ready(());
            };
            this.sleep.as_mut().reset(limiter.setup.clock.timer(wake));
            ready!(this.sleep.as_mut().poll(cx));
        }
    }
}

impl Drop for Driver {
    /// A runtime that shuts down drops its driver. Requests on other runtimes have their own.
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.upgrade() {
            let mut guard = limiter.lock();
            if let Some(state) = guard.as_deref_mut() {
                state.waiting().timers.retain(|timer| timer.runtime != self.runtime);
            }
        }
    }
}

/// The wakers of the callers in the queue, and the timers of the drivers.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) wakers: Wakers,
    pub(super) timers: Vec<Timer>,
}

impl Waiting {
    /// Returns whether the current runtime has a driver. Outside a runtime, any driver suffices.
    pub(super) fn has_driver(&self) -> bool {
        match Handle::try_current() {
            Ok(handle) => self.timers.iter().any(|timer| timer.runtime == handle.id()),
            Err(_) => !self.timers.is_empty(),
        }
    }
}

/// The timer of a driver.
#[derive(Debug)]
pub(super) struct Timer {
    runtime: Id,
    /// `None` until the driver is first polled, and after it was woken.
    waker: Option<Waker>,
    /// The time for which the timer is set.
    at: u64,
}

impl Timer {
    fn new(runtime: Id) -> Self {
        Self { runtime, waker: None, at: 0 }
    }

    fn set(&mut self, at: u64, waker: &Waker) {
        (self.waker, self.at) = (Some(waker.clone()), at);
    }

    /// Returns the driver's waker if its timer is later than `wake`.
    pub(super) fn hurry(&mut self, wake: u64) -> Option<Waker> {
        if wake < self.at { self.waker.take() } else { None }
    }
}

/// The wakers by the slots of the tickets.
#[derive(Debug, Default)]
pub(super) struct Wakers(Vec<Option<Waker>>);

impl Wakers {
    /// Stores the waker of a queued request. Returns the waker that it replaces, so that it is dropped without the
    /// lock.
    pub(super) fn keep(&mut self, ticket: Ticket, waker: &Waker) -> Option<Waker> {
        let slot = ticket.slot();
        if self.0.len() <= slot {
            self.0.resize(slot + 1, None);
        }
        let known = self.0.get_mut(slot)?;
        if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        known.replace(waker.clone())
    }

    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Waker> {
        self.0.get_mut(ticket.slot())?.take()
    }

    /// Frees the memory of a queue that has become empty.
    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

/// The room for further wakers, so that a group of waiters takes one allocation.
const ROOM: usize = 32;

/// Wakers that are woken after the lock is released. A single one takes no allocation.
#[derive(Default)]
pub(super) struct Wakes {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakes {
    pub(super) fn extend(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        for waker in wakers {
            match self.first {
                None => self.first = Some(waker),
                Some(_) => {
                    if self.more.is_empty() {
                        self.more.reserve(ROOM);
                    }
                    self.more.push(waker);
                }
            }
        }
    }

    #[inline]
    pub(super) fn wake(self) {
        self.first.into_iter().chain(self.more).for_each(Waker::wake);
    }
}
