//! What the handles on one call share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    StopReason,
    attempt::Attempts,
    passage::Passage,
    server_id::{self, SentKeys},
};
use crate::clock::{self, Instant};

pub(super) struct Shared {
    pub(super) started: Instant,
    /// In nanoseconds from the start, and before it, too. Every layer reads it, so it has no lock.
    deadline: AtomicI64,
    /// The first identity, without a lock. Once the call is `renamed`, the one in `state` is valid.
    pub(super) identity: Option<Identity>,
    renamed: AtomicBool,
    /// The code of an [`StopReason`]; 0 while it runs.
    ended: AtomicU8,
    pub(super) passage: Passage,
    state: Mutex<State>,
}

/// The names of a call in logs, spans, metrics and reports.
pub(crate) struct Identity {
    pub(crate) naming: Arc<Naming>,
    pub(crate) request_id: HeaderValue,
    /// Whether the call's span is enabled, so that its events need not repeat the name and the id.
    pub(crate) in_span: bool,
}

/// The part of an [`Identity`] that all calls of a layer share.
#[derive(Debug, Clone)]
pub(crate) struct Naming {
    /// The name of the called service.
    pub(crate) service: Option<Arc<str>>,
    /// The headers that may have the server's id.
    pub(crate) server_headers: Vec<HeaderName>,
}

/// No deadline: three centuries, while [`clock::after`] gives one at the most.
const NEVER: i64 = i64::MAX;

#[derive(Default)]
pub(super) struct State {
    /// The identity from the innermost layer, if more than one set it.
    pub(super) identity: Option<Identity>,
    pub(super) server_request_id: Option<HeaderValue>,
    pub(super) keys: SentKeys,
    pub(super) waited: Duration,
    pub(super) attempts: Attempts,
    /// How many of them were handed on to be sent, by whatever layer they were made.
    pub(super) handed_on: u32,
    /// Whether the one resend for a key that was replaced is used up, by whatever retry layer.
    pub(super) rekeyed: bool,
    pub(super) retry_after: Option<Duration>,
}

impl Shared {
    /// Of a call that begins now.
    pub(super) fn new(identity: Option<Identity>) -> Self {
        Self {
            started: clock::now(),
            deadline: AtomicI64::new(NEVER),
            identity,
            renamed: AtomicBool::new(false),
            ended: AtomicU8::new(0),
            passage: Passage::default(),
            state: Mutex::default(),
        }
    }

    // A panic while the lock was held leaves plain values behind, all of them usable.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn identity<T>(&self, read: impl FnOnce(Option<&Identity>) -> T) -> T {
        match self.renamed.load(Ordering::Acquire) {
            false => read(self.identity.as_ref()),
            true => read(self.state().identity.as_ref()),
        }
    }

    pub(super) fn service(&self) -> Option<Arc<str>> {
        self.identity(|identity| identity?.naming.service.clone())
    }

    /// Returns the first server id of a response that may be kept.
    pub(super) fn server_id(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let naming = self.identity(|identity| Some(Arc::clone(&identity?.naming)))?;
        server_id::candidates(headers, &naming.server_headers).find_map(|id| self.state().keys.check(id))
    }

    /// Replaces the identity.
    pub(super) fn rename(&self, identity: Identity) {
        self.state().identity = Some(identity);
        self.renamed.store(true, Ordering::Release);
    }

    pub(super) fn end(&self, ended: StopReason) {
        self.ended.store(ended.code(), Ordering::Release);
    }

    pub(super) fn ended(&self) -> Option<StopReason> {
        StopReason::of_code(self.ended.load(Ordering::Acquire))
    }

    /// Sets the deadline, or keeps an earlier one, and gives that.
    pub(super) fn narrow_deadline(&self, deadline: Instant) -> Option<Instant> {
        let offset = self.offset(deadline);
        let earlier = self.deadline.fetch_min(offset, Ordering::AcqRel);
        if earlier < offset { self.deadline() } else { None }
    }

    /// In nanoseconds from the start.
    fn offset(&self, moment: Instant) -> i64 {
        let nanos = |length: Duration| i64::try_from(length.as_nanos()).unwrap_or(NEVER);
        match moment.checked_duration_since(self.started) {
            Some(after) => nanos(after),
            None => -nanos(self.started.saturating_duration_since(moment)),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let offset = self.deadline.load(Ordering::Acquire);
        let length = Duration::from_nanos(offset.unsigned_abs());
        match offset {
            NEVER => None,
            // What the clock can't hold lies further back than it goes.
            ..0 => Some(self.started.checked_sub(length).unwrap_or(self.started)),
            _ => Some(clock::after(self.started, length)),
        }
    }
}

impl State {
    /// Keeps the server's id; that of an earlier answer stays where there is none.
    pub(super) fn keep_id(&mut self, id: Option<&HeaderValue>) {
        if let Some(id) = id {
            self.server_request_id = Some(id.clone());
        }
    }
}
