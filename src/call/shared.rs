//! What the handles on one call share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Ended, Report, attempt::Attempts, passage::Passage};
use crate::clock::{self, Instant};

pub(super) struct Shared {
    pub(super) started: Instant,
    /// In nanoseconds from the start, and before it, too. Every layer reads it, so it has no lock.
    deadline: AtomicI64,
    /// Who it was when it began. It has no lock either, and goes for nothing once it is `renamed`.
    pub(super) identity: Option<Identity>,
    renamed: AtomicBool,
    /// The code of an [`Ended`]; 0 while it runs.
    ended: AtomicU8,
    pub(super) passage: Passage,
    state: Mutex<State>,
}

/// What a call is known by.
pub(crate) struct Identity {
    /// The name of the service that is called.
    pub(crate) service: Option<&'static str>,
    pub(crate) request_id: HeaderValue,
    /// The headers in which the server's id is looked for.
    pub(crate) server_headers: Arc<[HeaderName]>,
}

/// No deadline: three centuries, while [`clock::after`] gives one at the most.
const NEVER: i64 = i64::MAX;

#[derive(Default)]
pub(super) struct State {
    /// That of the last layer that gave it one, where there are several.
    pub(super) identity: Option<Identity>,
    pub(super) server_request_id: Option<HeaderValue>,
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

    /// The first id that the server has put into an answer. One that is marked sensitive is none: it repeats the key. A
    /// copy, for a value of a head's is a part of all the bytes that came with it.
    pub(super) fn server_id(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        self.identity(|identity| {
            let mut ids = identity?.given(headers).filter_map(|name| headers.get(name));
            let id = ids.find(|id| !id.is_sensitive() && id.len() <= Report::MAX_SERVER_REQUEST_ID)?;
            HeaderValue::from_bytes(id.as_bytes()).ok()
        })
    }

    /// Gives it another name.
    pub(super) fn rename(&self, identity: Identity) {
        self.state().identity = Some(identity);
        self.renamed.store(true, Ordering::Release);
    }

    pub(super) fn end(&self, ended: Ended) {
        self.ended.store(ended.code(), Ordering::Release);
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        Ended::of_code(self.ended.load(Ordering::Acquire))
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

impl Identity {
    /// The headers of the server's id, first to last, if any of them is there: one look at each name costs less than each
    /// of ours that is looked up.
    pub(super) fn given(&self, headers: &HeaderMap) -> impl Iterator<Item = &HeaderName> + use<'_> {
        let any = headers.keys().any(|name| self.server_headers.contains(name));
        any.then(|| self.server_headers.iter()).into_iter().flatten()
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
