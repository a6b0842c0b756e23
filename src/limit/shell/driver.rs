//! The driver: a task that sleeps until the next permits are due and grants them. Each runtime on which requests wait
//! runs one, because a blocked runtime must not delay the requests of another.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use tokio::{
    runtime::{Handle, Id},
    time::{Sleep, sleep_until},
};

use super::{
    Shared,
    waiting::{Timer, Wakes},
};
use crate::clock;

/// The task. It does not keep the limiter alive, and ends when nobody waits.
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
            // A waiter whose store has no forecast fetches its permits when a limit of the server ends.
            if let Some(ticket) = state.core.unserved(now).filter(|_| this.sleep.is_elapsed()) {
                wakes.extend(state.waiting().wakers.take(ticket));
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
