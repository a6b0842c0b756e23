use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    CurrentKey, KeyError, RefreshingKey,
    key_error::What,
    keys::Lease,
    refresh::{Driver, Fetch, Fetched, Refresh, fetch},
};
use crate::{
    clock::{self, Instant},
    random::Random,
    telemetry,
};

pub(super) type Settled = Result<CurrentKey, KeyError>;

/// A [`RefreshingKey`] in use.
pub(super) struct Provided {
    settings: RefreshingKey,
    random: Random,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    asked: Option<Asked>,
    /// Counts the refreshes; a key's generation is the one that brought it.
    last: u64,
    failures: u32,
    /// The provider is left alone until then.
    not_before: Option<Instant>,
    error: Option<KeyError>,
    /// Keys that the server refused, one after the other.
    refused: u32,
}

/// The key in use.
struct Held {
    key: CurrentKey,
    since: Instant,
    expires: Option<Instant>,
    refresh_at: Option<Instant>,
    /// A refusal by the server before that is not believed.
    refusable_at: Instant,
    refused: bool,
}

/// A refresh that is not over.
struct Asked {
    id: u64,
    fetch: Fetch,
    /// Whether a task drives it; where there was no runtime, the requests do.
    driven: bool,
}

impl Provided {
    /// A key that was good for so many times the longest back-off was refused for a reason of its own.
    const WELL_AGED: u32 = 3;

    pub(super) fn new(settings: RefreshingKey) -> Self {
        Self { settings, random: Random::from_entropy(), state: Mutex::default() }
    }

    /// Nothing can be half done under this lock, so that a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last_error(&self) -> Option<KeyError> {
        self.lock().error.clone()
    }

    #[cfg(feature = "client")]
    pub(super) fn known(&self) -> Option<CurrentKey> {
        self.lock().held.as_ref().map(|held| held.key.clone())
    }

    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        let now = clock::now();
        let mut state = self.lock();
        let valid = state.held.as_ref().filter(|held| held.is_valid(now)).map(|held| held.key.clone());
        let due = state.held.as_ref().is_none_or(|held| held.refresh_at.is_some_and(|at| at <= now));
        match (valid, due) {
            (Some(key), false) => Lease::Ready(key, None),
            (Some(key), true) => Lease::Ready(key, self.refresh(&mut state, now).ok()),
            (None, _) => match self.refresh(&mut state, now) {
                Ok(refresh) => Lease::Wait(refresh),
                Err(error) => Lease::Failed(error),
            },
        }
    }

    /// A share in the refresh under way, or in a new one; an error while the provider is left alone.
    fn refresh(self: &Arc<Self>, state: &mut State, now: Instant) -> Result<Refresh, KeyError> {
        let mut asked = match state.asked.take() {
            Some(asked) => asked,
            None => {
                if let Some(wait) = state.not_before.and_then(|at| at.checked_duration_since(now)) {
                    if !wait.is_zero() {
                        let error = state.error.clone().unwrap_or(KeyError::new(What::Failed));
                        return Err(error.with_retry_in(wait));
                    }
                }
                state.last += 1;
                let fetch = fetch(Arc::clone(&self.settings.provider), now, self.settings.timeout);
                Asked { id: state.last, fetch, driven: false }
            }
        };
        let share = |asked: &Asked| Refresh::new(Arc::clone(self), asked.id, asked.fetch.clone());
        if let (false, Ok(runtime)) = (asked.driven, Handle::try_current()) {
            runtime.spawn(Driver(share(&asked)));
            asked.driven = true;
        }
        let refresh = share(&asked);
        state.asked = Some(asked);
        Ok(refresh)
    }

    /// The refresh `id` has lost its task before its end: whoever comes next begins another one.
    pub(super) fn give_up(&self, id: u64) {
        let asked = self.lock().asked.take_if(|asked| asked.id == id);
        // The provider's future is not ours: outside the lock.
        drop(asked);
    }

    /// The refresh `id` is over. All who waited for it say so; the first of them counts, and all get the same.
    pub(super) fn settle(&self, id: u64, fetched: Fetched) -> Settled {
        let now = clock::now();
        let mut state = self.lock();
        if state.asked.take_if(|asked| asked.id == id).is_none() {
            let wait = state.not_before.and_then(|at| at.checked_duration_since(now));
            return match fetched {
                Ok((key, _)) => Ok(CurrentKey::new(key, id)),
                Err(error) => Err(wait.map_or(error.clone(), |wait| error.with_retry_in(wait))),
            };
        }
        let (settled, kept) = match fetched {
            Ok((key, expires)) => {
                let key = CurrentKey::new(key, id);
                self.hold(&mut state, key.clone(), expires, now);
                (Ok(key), true)
            }
            Err(error) => {
                let wait = self.settings.backoff.delay(state.failures, self.random.next());
                let error = error.with_retry_in(wait);
                state.failures = state.failures.saturating_add(1);
                state.not_before = Some(clock::after(now, wait));
                state.error = Some(error.clone());
                if let Some(held) = &mut state.held {
                    // When there is no other, a refused key is better than none: the server's answer says more.
                    held.refused = false;
                    held.refresh_at = Some(now);
                }
                (Err(error), state.held.as_ref().is_some_and(|held| held.is_valid(now)))
            }
        };
        // A subscriber is not ours: outside the lock.
        drop(state);
        match &settled {
            Ok(_) => telemetry::key_refreshed(),
            Err(error) => telemetry::key_refresh_failed(error, error.retry_in(), kept),
        }
        settled
    }

    fn hold(&self, state: &mut State, key: CurrentKey, expires: Option<(Duration, Instant)>, now: Instant) {
        let rest = state
            .refused
            .checked_sub(1)
            .map_or(Duration::ZERO, |refused| self.settings.backoff.delay(refused, self.random.next()));
        let refresh_at = expires.map(|(lifetime, expires)| {
            expires.checked_sub(self.settings.ahead.min(lifetime / 5)).unwrap_or(now)
        });
        state.failures = 0;
        state.not_before = None;
        state.error = None;
        state.held = Some(Held {
            key,
            since: now,
            expires: expires.map(|(_, expires)| expires),
            refresh_at,
            refusable_at: clock::after(now, rest),
            refused: false,
        });
    }

    /// Whether sending again makes sense: another key is there, or will be asked for.
    pub(super) fn reject(&self, key: &CurrentKey) -> bool {
        let now = clock::now();
        let mut state = self.lock();
        let left_alone = state.not_before.is_some_and(|at| now < at);
        let State { held: Some(held), refused, .. } = &mut *state else { return false };
        // Somebody else was quicker.
        if held.key.generation() != key.generation() || held.refused {
            return true;
        }
        if left_alone || now < held.refusable_at {
            return false;
        }
        let aged = self.settings.backoff.cap().saturating_mul(Self::WELL_AGED);
        if now >= clock::after(held.since, aged) {
            *refused = 0;
        }
        *refused = refused.saturating_add(1);
        held.refused = true;
        drop(state);
        telemetry::key_refused();
        true
    }
}

impl Held {
    fn is_valid(&self, now: Instant) -> bool {
        !self.refused && self.expires.is_none_or(|expires| now < expires)
    }
}
