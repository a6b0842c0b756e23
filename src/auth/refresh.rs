use std::{
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{FutureExt, future::Shared};
use http::HeaderMap;

use super::{
    ApiKey, CurrentKey, FreshKey, KeyError, KeyProvider, KeySource, Pattern,
    key_error::What,
    provided::{Provided, Settled},
};
use crate::{
    call::CallContext,
    clock::{self, Instant},
    telemetry,
};

/// One question to the provider, shared by its task and all who wait for the answer.
pub(super) type Fetch = Shared<Pin<Box<dyn Future<Output = Fetched> + Send>>>;

/// The key, and its lifetime with the moment when that is over.
pub(super) type Fetched = Result<(ApiKey, Option<(Duration, Instant)>), KeyError>;

pub(super) fn fetch(provider: Arc<dyn KeyProvider>, started: Instant, limit: Duration) -> Fetch {
    let fetch = async move {
        telemetry::key_refresh_begins();
        // The provider is called at the first poll: under no lock, and where its panic is caught, or that of a timer
        // whose runtime is gone.
        let asked = AssertUnwindSafe(async { tokio::time::timeout(limit, provider.fetch()).await });
        let FreshKey { key, lifetime } = match asked.catch_unwind().await {
            Ok(Ok(fetched)) => fetched.map_err(|error| KeyError::caused(What::Failed, error))?,
            Ok(Err(_)) => return Err(KeyError::new(What::TimedOut(limit))),
            // What it panicked with may hold anything.
            Err(_) => return Err(KeyError::new(What::Panicked)),
        };
        let expires = lifetime.map(|lifetime| (lifetime, clock::after(started, lifetime)));
        match expires.is_some_and(|(_, expires)| expires <= clock::now()) {
            true => Err(KeyError::new(What::Expired)),
            false => Ok((key, expires)),
        }
    };
    fetch.boxed().shared()
}

/// A share in the refresh under way.
pub(super) struct Refresh {
    provided: Arc<Provided>,
    id: u64,
    /// None when it is over.
    fetch: Option<Fetch>,
}

impl Refresh {
    pub(super) fn new(provided: Arc<Provided>, id: u64, fetch: Fetch) -> Self {
        Self { provided, id, fetch: Some(fetch) }
    }

    /// Pending for ever once it has told its end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Settled> {
        let Some(fetch) = &mut self.fetch else { return Poll::Pending };
        let fetched = ready!(fetch.poll_unpin(cx));
        self.fetch = None;
        Poll::Ready(self.provided.settle(self.id, fetched))
    }
}

/// Drives a refresh to its end, in a task, whatever becomes of the requests that wait for it. Given up when its runtime
/// goes away before that.
pub(super) struct Driver(pub(super) Refresh);

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx).map(drop)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.0.fetch.is_some() {
            self.0.provided.give_up(self.0.id);
        }
    }
}

impl fmt::Debug for Refresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refresh").field("over", &self.fetch.is_none()).finish_non_exhaustive()
    }
}

/// A request that is under way with a key, which may change.
#[derive(Debug)]
pub(super) struct Watch {
    keys: KeySource,
    /// None for the one that never changes.
    key: Option<CurrentKey>,
    call: Option<CallContext>,
    ahead: Option<Refresh>,
}

impl Watch {
    pub(super) fn new(
        keys: KeySource,
        call: Option<CallContext>,
        key: Option<CurrentKey>,
        ahead: Option<Refresh>,
    ) -> Self {
        Self { keys, call, key, ahead }
    }

    /// Takes the refresh a step further; what came of it is for the next request.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if self.ahead.as_mut().is_some_and(|ahead| ahead.poll(cx).is_ready()) {
            self.ahead = None;
        }
    }

    /// Marks what the server gives as its own id and is the key, in whatever writing: no report keeps it then.
    pub(super) fn hide_ids(&self, headers: &mut HeaderMap) {
        let key = self.key.as_ref().or(self.keys.fixed()).map(|key| key.key().expose());
        let (Some(call), Some(key)) = (&self.call, key) else { return };
        call.hide_ids(headers, |id| {
            // No writing of a key is shorter than the key: most ids are not looked at any further.
            id.len() >= key.len() && {
                let text = String::from_utf8_lossy(id.as_bytes());
                Pattern::of(key).any(|pattern| pattern.find(&text, 0, false).is_some())
            }
        });
    }

    /// Whether there may be another key.
    pub(super) fn changes(&self) -> bool {
        self.key.is_some()
    }

    /// The server has refused the key.
    pub(super) fn reject(&self) -> bool {
        self.key.as_ref().is_some_and(|key| self.keys.reject(key))
    }
}
