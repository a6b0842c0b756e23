//! The keys of a refresher, and its running refresh.

use futures_util::{FutureExt, future::Shared};
use tokio::sync::oneshot;

use crate::{
    auth::{ApiKey, KeyError},
    clock::Instant,
};

pub(super) type Outcome = Result<ApiKey, KeyError>;

/// Resolves to the outcome of a refresh, or to an error if the task of the refresh was dropped with its runtime.
pub(super) type Done = Shared<oneshot::Receiver<Outcome>>;

/// A refresh that was started.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) done: Done,
    /// When the refresh is lost, because its runtime is not driven. Each poll of the refresh may delay this time.
    pub(super) lost_at: Instant,
    /// Whether a thread polls the refresh now. It is not lost then, even if its provider blocks the thread.
    pub(super) is_polled: bool,
}

impl Run {
    /// Returns whether the task of the refresh was dropped.
    pub(super) fn is_dropped(&self) -> bool {
        matches!(self.done.clone().now_or_never(), Some(Err(_)))
    }
}

/// The keys and the refresh of a refresher.
#[derive(Default)]
pub(super) struct State {
    pub(super) held: Option<Held>,
    /// The running refresh. If a runtime drops or does not drive the task of this refresh, a waiter or the next request
    /// starts another refresh.
    pub(super) running: Option<Run>,
    /// Whether the server rejected the key after the running refresh had started.
    pub(super) outdated: bool,
    /// The number of consecutive failures.
    pub(super) failures: u32,
    /// The last failure of the provider, and the end of the backoff after that failure.
    pub(super) failed: Option<(KeyError, Instant)>,
    /// The number of keys that the server rejected in a row.
    pub(super) rejections: u32,
}

impl State {
    /// Returns the refresh that `done` belongs to. Returns `None` if it has ended or another one has replaced it.
    pub(super) fn running_mut(&mut self, done: &Done) -> Option<&mut Run> {
        self.running.as_mut().filter(|run| run.done.ptr_eq(done))
    }
}

/// The current key.
pub(super) struct Held {
    pub(super) key: ApiKey,
    pub(super) since: Instant,
    pub(super) expires: Option<Instant>,
    pub(super) refresh_at: Option<Instant>,
    /// A rejection before this time does not start a refresh.
    pub(super) rejectable_at: Instant,
    pub(super) rejected: bool,
}

impl Held {
    pub(super) fn is_valid(&self, now: Instant) -> bool {
        !self.rejected && self.expires.is_none_or(|expires| now < expires)
    }
}
