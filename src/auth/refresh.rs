mod state;

use std::{
    fmt,
    future::{pending, poll_fn},
    panic::AssertUnwindSafe,
    path::PathBuf,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{runtime::Handle, sync::oneshot};

use self::state::{Done, Held, Outcome, Run, State};
use super::{ApiKey, FreshKey, KeyError, RefreshingKey};
use crate::{
    clock::{self, Instant},
    config::InvalidConfig,
    policy::ExponentialBackoff,
    random::Random,
    telemetry,
};

/// A running refresh, for which a request waits.
pub(super) struct Refresh {
    run: Run,
    /// Resolves when the refresh is lost. Each poll creates it again, because the waiter may have moved from a runtime
    /// that is not driven to another one.
    lost: Option<Timer>,
    refresher: Arc<Refresher>,
}

/// The current key, or, as the error, the refresh for which the request must wait.
pub(super) type Lease = Result<Outcome, Refresh>;

/// A key from a [`RefreshingKey`] or a file, and the state of its refresh.
pub(super) struct Refresher {
    settings: RefreshingKey,
    random: Random,
    state: Mutex<State>,
}

type Timer = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

const NO_TIMER: &str = "the tokio runtime of the key refresh has no timer or was shut down";

impl Future for Refresh {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            let Self { run, lost, refresher } = &mut *self;
            match run.done.poll_unpin(cx) {
                Poll::Ready(Ok(outcome)) => return Poll::Ready(outcome),
                Poll::Ready(Err(_)) => {}
                Poll::Pending => ready!(lost.insert(timer(run.lost_at)).as_mut().poll(cx)),
            }
            // The runtime of the refresh was shut down or is not driven, so this waiter starts the refresh again on its
            // own runtime.
            match refresher.lease() {
                Ok(outcome) => return Poll::Ready(outcome),
                Err(refresh) => *self = refresh,
            }
        }
    }
}

/// Resolves at `time`. Never resolves without a runtime, or if its timer is disabled or was shut down.
fn timer(time: Instant) -> Timer {
    Box::pin(async move {
        let sleep = AssertUnwindSafe(async { tokio::time::sleep_until(time).await });
        if Handle::try_current().is_err() || sleep.catch_unwind().await.is_err() {
            pending().await
        }
    })
}

impl fmt::Debug for Refresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refresh")
    }
}

impl Refresher {
    /// A key is refreshed this long before its expiry, as in the AWS SDKs.
    const AHEAD: Duration = Duration::from_secs(300);
    /// If the server rejects a key that was in use for a long time, the count of consecutive rejections restarts. A
    /// long time is at least this multiple of the longest backoff.
    const WELL_AGED: u32 = 3;
    /// A refresh that has not ended this long after its timeout and after its last poll is lost, because its runtime is
    /// not driven.
    const LOST_AFTER: Duration = Duration::from_secs(1);

    pub(super) fn new(settings: RefreshingKey) -> Self {
        Self { settings, random: Random::from_entropy(), state: Mutex::default() }
    }

    /// Reads the key from a file, and creates a refresher that reads the file again after each interval.
    pub(super) fn file(path: PathBuf, interval: Duration) -> Result<Self, InvalidConfig> {
        let (fresh, now) = (FreshKey::new(ApiKey::from_file(&path)?), clock::now());
        let file = Self::new(RefreshingKey::file(path, interval)?);
        file.hold(&mut file.lock(), fresh, now, now);
        Ok(file)
    }

    pub(super) fn is_file(&self) -> bool {
        self.settings.file_interval.is_some()
    }

    // Ignores the poisoning of the lock, because a panic while the lock is held leaves the values usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last_error(&self) -> Option<KeyError> {
        self.lock().failed.as_ref().map(|(error, _)| error.clone())
    }

    /// Returns whether no key is valid, and the last refresh failed.
    pub(super) fn has_failed(&self) -> bool {
        let state = self.lock();
        state.failed.is_some() && !state.held.as_ref().is_some_and(|held| held.is_valid(clock::now()))
    }

    /// Returns whether `key` is the current key. Returns `None` if no key is valid.
    pub(super) fn holds(&self, key: &ApiKey) -> Option<bool> {
        let state = self.lock();
        let held = state.held.as_ref().filter(|held| held.is_valid(clock::now()))?;
        Some(held.key == *key)
    }

    /// Returns the delays after failures. `None` for a file.
    pub(super) fn backoff(&self) -> Option<ExponentialBackoff> {
        (!self.is_file()).then_some(self.settings.backoff)
    }

    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        let now = clock::now();
        let state = self.lock();
        let key = match state.held.as_ref().filter(|held| held.is_valid(now)) {
            Some(held) if held.refresh_at.is_none_or(|at| now < at) => {
                return Ok(Ok(held.key.clone()));
            }
            held => held.map(|held| held.key.clone()),
        };
        // No request waits while the key is valid, so the refresh of a closure begins in its task: its spans are then not
        // part of the request's span.
        let lease = self.join(state, now, key.is_none() || self.is_file());
        match key {
            None => lease,
            // A file is read immediately, so this request already uses its new key.
            Some(key) => Ok(lease.ok().and_then(Result::ok).map_or(Ok(key), Ok)),
        }
    }

    /// Joins the running refresh, or starts one, immediately or in its task. Returns an error during the backoff after a
    /// failure.
    fn join(self: &Arc<Self>, mut state: MutexGuard<'_, State>, now: Instant, immediately: bool) -> Lease {
        if let Some(run) = state.running.as_mut().filter(|run| run.is_polled) {
            run.lost_at = run.lost_at.max(clock::after(now, Self::LOST_AFTER));
        }
        if let Some(run) = state.running.as_ref().filter(|run| now < run.lost_at && !run.is_dropped()) {
            return Err(Refresh { run: run.clone(), lost: None, refresher: Arc::clone(self) });
        }
        if let Some((error, until)) = state.failed.as_ref().filter(|(_, until)| now < *until) {
            return Ok(Err(error.clone().with_retry_in(until.saturating_duration_since(now))));
        }
        let runtime = match Handle::try_current() {
            // A file needs no task, because the first poll of the refresh reads the file.
            Err(error) if !self.is_file() => return Ok(Err(KeyError::of_provider(error.into()))),
            runtime => runtime,
        };
        let (sender, done) = oneshot::channel();
        let started = Run { done: done.shared(), lost_at: self.lost_at(now), is_polled: false };
        state.running = Some(started.clone());
        state.outdated = false;
        drop(state);
        let mut run = Box::pin(Arc::clone(self).run(started.done.clone()));
        match (immediately.then(|| run.as_mut().now_or_never()).flatten(), runtime) {
            (Some(Some(outcome)), _) => {
                drop(sender.send(outcome.clone()));
                return Ok(outcome);
            }
            (None, Ok(runtime)) => {
                // The task owns the sender, so that waiters notice if the runtime drops the task.
                drop(runtime.spawn(async { run.await.map(|outcome| sender.send(outcome)) }));
                // If the runtime was shut down, another refresh would also be dropped.
                if started.is_dropped() {
                    return Ok(Err(KeyError::new(NO_TIMER)));
                }
            }
            _ => {}
        }
        Err(Refresh { run: started, lost: None, refresher: Arc::clone(self) })
    }

    /// Runs the refresh. Returns `None` if another refresh has replaced it.
    async fn run(self: Arc<Self>, done: Done) -> Option<Outcome> {
        loop {
            let started = clock::now();
            let mut lost_at = self.lost_at(started);
            // The timeout counts from here, because the first poll of the task may be late.
            self.lock().running_mut(&done)?.lost_at = lost_at;
            let mut fetch = pin!(self.fetch(started));
            let fetched = poll_fn(|cx| {
                let is_late = clock::now() >= lost_at;
                if let Some(run) = self.lock().running_mut(&done) {
                    run.is_polled = true;
                }
                let fetched = fetch.as_mut().poll(cx);
                // A refresh whose provider blocks the thread is not lost.
                lost_at = lost_at.max(clock::after(clock::now(), Self::LOST_AFTER));
                if let Some(run) = self.lock().running_mut(&done) {
                    (run.lost_at, run.is_polled) = (lost_at, false);
                }
                fetched.map(|fetched| (fetched, is_late))
            });
            let (fetched, is_late) = fetched.await;
            // The fetch may have failed because its runtime was not driven, so it starts again without a backoff, unless
            // the provider requests a delay.
            if is_late && fetched.as_ref().is_err_and(|error| error.retry_in().is_none()) {
                continue;
            }
            if let Some(settled) = self.settle(&done, started, fetched) {
                return Some(settled);
            }
        }
    }

    /// Returns when a refresh that starts now is lost.
    fn lost_at(&self, now: Instant) -> Instant {
        // A file needs no runtime.
        let limit = if self.is_file() { Duration::MAX } else { self.settings.timeout };
        clock::after(now, limit.saturating_add(Self::LOST_AFTER))
    }

    async fn fetch(&self, started: Instant) -> Result<FreshKey, KeyError> {
        let RefreshingKey { provider, timeout: limit, .. } = &self.settings;
        if self.is_file() {
            return provider().await.map_err(KeyError::of_provider);
        }
        telemetry::key_refresh_begins();
        let provided = AssertUnwindSafe(async { provider().await }).catch_unwind();
        // The timer panics if its runtime has no timer or was shut down.
        let fetch = AssertUnwindSafe(async { tokio::time::timeout(*limit, provided).await });
        let fresh = match fetch.catch_unwind().await {
            Ok(Ok(Ok(fetched))) => fetched.map_err(KeyError::of_provider)?,
            // Omits the payload of the panic, because it may contain the key.
            Ok(Ok(Err(_))) => return Err(KeyError::new("the key provider panicked")),
            Ok(Err(_)) => {
                return Err(KeyError::new(format!("the key provider gave no key within {limit:?}")));
            }
            Err(_) => return Err(KeyError::new(NO_TIMER)),
        };
        match fresh.lifetime.is_some_and(|lifetime| clock::after(started, lifetime) <= clock::now()) {
            true => Err(KeyError::new("the key provider gave a key that has expired")),
            false => Ok(fresh),
        }
    }

    /// Stores the result of the refresh. Returns `None` if the key must be fetched again, or if another refresh has
    /// replaced this one and this result does not count.
    fn settle(&self, done: &Done, started: Instant, fetched: Result<FreshKey, KeyError>) -> Option<Outcome> {
        let now = clock::now();
        let mut guard = self.lock();
        let state = &mut *guard;
        let held = state.held.as_ref();
        let is_held = fetched.as_ref().is_ok_and(|fresh| held.is_some_and(|held| held.key == fresh.key));
        // The key of a replaced refresh counts if no other key was stored since its start.
        let counts = fetched.is_ok() && !is_held && held.is_none_or(|held| held.since <= started);
        if state.running_mut(done).is_none() && !counts {
            return None;
        }
        // The server rejected this key during the refresh. The source may contain a new key by now, so the key is
        // fetched again. There is no third fetch, because `reject` ignores a rejected key until a refresh stores it
        // again.
        if state.outdated && is_held {
            state.outdated = false;
            return None;
        }
        state.running = None;
        // Releases the lock before the log event, because the event runs code of the subscriber.
        match fetched {
            Ok(fresh) => {
                let key = fresh.key.clone();
                self.hold(state, fresh, started, now);
                drop(guard);
                match self.is_file() {
                    false => telemetry::key_refreshed(),
                    true if is_held => {}
                    true => telemetry::key_changed(),
                }
                Some(Ok(key))
            }
            Err(error) => {
                let wait = self.settings.backoff.delay(state.failures, self.random.next());
                let wait = wait.max(error.retry_in().unwrap_or_default());
                let error = error.with_retry_in(wait);
                // A file is read often, so only the first of several consecutive failures is logged.
                let is_logged = !self.is_file() || state.failures == 0;
                state.failures = state.failures.saturating_add(1);
                state.failed = Some((error.clone(), clock::after(now, wait)));
                if let Some(held) = &mut state.held {
                    // Without a new key, requests send the rejected key again, so that their callers receive the
                    // server's 401.
                    held.rejected = false;
                    held.refresh_at = Some(now);
                }
                let kept = state.held.as_ref().is_some_and(|held| held.is_valid(now));
                drop(guard);
                if is_logged {
                    telemetry::key_refresh_failed(&error, error.retry_in(), kept);
                }
                Some(Err(error))
            }
        }
    }

    fn hold(&self, state: &mut State, fresh: FreshKey, started: Instant, now: Instant) {
        let rest = match state.rejections.checked_sub(1) {
            Some(rejections) => self.settings.backoff.delay(rejections, self.random.next()),
            None => Duration::ZERO,
        };
        // If the refresh returned the current key, and the server has not rejected it, `since` and `rejectable_at` do
        // not change.
        let same = state.held.as_ref().filter(|held| !held.rejected && held.key == fresh.key);
        let (since, rejectable_at) =
            same.map_or_else(|| (now, clock::after(now, rest)), |held| (held.since, held.rejectable_at));
        let lifetime = fresh.lifetime;
        let early = lifetime.map(|lifetime| lifetime - Self::AHEAD.min(lifetime / 5));
        let young = self.settings.file_interval.or(early);
        state.failures = 0;
        state.failed = None;
        state.held = Some(Held {
            key: fresh.key,
            since,
            expires: lifetime.map(|lifetime| clock::after(started, lifetime)),
            refresh_at: young.map(|young| clock::after(started, young)),
            rejectable_at,
            rejected: false,
        });
    }

    /// Records that the server rejected `key`. Returns whether another key is available or will be fetched.
    pub(super) fn reject(self: &Arc<Self>, key: &ApiKey) -> bool {
        let now = clock::now();
        let mut state = self.lock();
        let backs_off = state.failed.as_ref().is_some_and(|(_, until)| now < *until);
        let State { held: Some(held), rejections, outdated, .. } = &mut *state else { return false };
        // `key` is no longer the current key, or another request has already reported this rejection.
        if held.key != *key || held.rejected {
            return true;
        }
        if backs_off || now < held.rejectable_at {
            return false;
        }
        let aged = self.settings.backoff.cap.saturating_mul(Self::WELL_AGED);
        if now >= clock::after(held.since, aged) {
            *rejections = 0;
        }
        *rejections = rejections.saturating_add(1);
        held.rejected = true;
        *outdated = true;
        drop(state);
        if self.is_file() {
            // Reads the file immediately, unless another request is already reading it.
            if self.lease().is_ok_and(|read| read.map_or(true, |read| read == *key)) {
                return false;
            }
        }
        telemetry::key_rejected();
        true
    }
}

#[cfg(test)]
mod tests;
