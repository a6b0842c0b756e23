//! The state of a call, which its layers and its report share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    DeadlineSetting, Member, StopReason,
    attempt::{Attempts, OptionalDuration},
    deadline::EarliestDeadline,
    renewal::Renewal,
    server_id::{self, SentKeys},
};
use crate::clock::{self, Instant};

pub(super) struct Shared {
    pub(super) started: Instant,
    pub(super) earliest_deadline: EarliestDeadline,
    /// How the attempt timeout watches the running attempt.
    pub(super) watch: AtomicU8,
    /// The transport's progress with the running attempt.
    pub(super) phase: AtomicU64,
    /// When an attempt last took a frame of the request's body, or when a response body began to stall, in nanoseconds
    /// after the start of the call.
    pub(super) body_progress: AtomicU64,
    /// Whether the spans of the attempts have the level INFO.
    pub(super) has_info_spans: AtomicBool,
    /// Whether the call ended with `StopReason::Success`.
    pub(super) has_succeeded: AtomicBool,
    state: Mutex<State>,
}

/// The names that identify a call in logs, spans, metrics and reports.
pub(crate) struct Identity {
    pub(crate) naming: Arc<Naming>,
    pub(crate) request_id: HeaderValue,
    /// Whether the call's span is enabled. If it is, log events inside the span need not repeat the name and the id.
    pub(crate) in_span: bool,
    /// Whether the event of the call also shows its only attempt.
    pub(crate) shows_attempt: bool,
}

/// The part of an [`Identity`] that is the same for all calls of a layer.
#[derive(Debug, Clone)]
pub(crate) struct Naming {
    /// The name of the called service.
    pub(crate) service: Option<Arc<str>>,
    /// The response headers that may contain the server's request id.
    pub(crate) server_headers: Vec<HeaderName>,
}

#[derive(Default)]
pub(super) struct State {
    /// The identity of the call. If several layers set an identity, the identity of the innermost layer applies.
    pub(super) identity: Option<Identity>,
    pub(super) server_request_id: Option<Arc<str>>,
    pub(super) keys: SentKeys,
    pub(super) queued: OptionalDuration,
    /// When the request began to wait for its permit, after the start of the call. `None` if it does not wait.
    pub(super) waits_since: OptionalDuration,
    pub(super) attempts: Attempts,
    /// Whether the event of the call shows the last attempt, which has no event of its own.
    pub(super) deferred: bool,
    /// The number of attempts that reached an attempt span layer, including attempts by retry layers of other crates.
    pub(super) sent_count: u32,
    /// Whether a layer above the stack has already sent a request that the server may have processed.
    pub(super) after_processing: bool,
    /// Whether a retry layer has retried the call with a new key.
    pub(super) key_replaced: bool,
    /// Boxed, because few requests wait for a connection.
    pub(super) renewal: Option<Box<Renewal>>,
    /// Why the call ended without a success.
    pub(super) stop_reason: Option<StopReason>,
    /// Boxed, because most calls never set any of it.
    pub(super) rare: Option<Box<Rare>>,
}

/// The part of the state that few calls have.
#[derive(Default)]
pub(super) struct Rare {
    /// The latest generated idempotency key and its header.
    pub(super) idempotency_key: Option<(HeaderName, HeaderValue)>,
    /// `None` unless a pool has chosen a member. Boxed, because most calls have no pool.
    pub(super) member: Option<Box<Member>>,
    pub(super) retry_after: OptionalDuration,
    /// When the deadline ended the call, after the start of the call.
    pub(super) expired: OptionalDuration,
}

impl Shared {
    /// Creates the state of a call that starts now.
    pub(super) fn new(identity: Option<Identity>) -> Self {
        Self {
            started: clock::now(),
            earliest_deadline: EarliestDeadline::default(),
            watch: AtomicU8::default(),
            phase: AtomicU64::default(),
            body_progress: AtomicU64::default(),
            has_info_spans: AtomicBool::new(false),
            has_succeeded: AtomicBool::new(false),
            state: Mutex::new(State { identity, ..State::default() }),
        }
    }

    /// Returns the deadline, and the setting that determines it.
    pub(super) fn deadline(&self) -> Option<(Instant, DeadlineSetting)> {
        self.earliest_deadline.get(self.started)
    }

    /// Returns the time since the start of the call.
    pub(super) fn elapsed_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    // Ignores the poisoning of the lock, because a panic while the lock is held leaves the values valid.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn expired(&self) -> OptionalDuration {
        self.rare.as_deref().map_or(OptionalDuration::NONE, |rare| rare.expired)
    }

    /// Sets the identity of the call. Returns whether the same layer has set another id before.
    pub(super) fn identify(&mut self, new: Identity) -> bool {
        let differs = |it: &Identity| Arc::ptr_eq(&it.naming, &new.naming) && it.request_id != new.request_id;
        let has_another_id = self.identity.as_ref().is_some_and(differs);
        self.identity = Some(new);
        has_another_id
    }

    /// Adds the time of a wait for a permit to the call and to its running attempt.
    pub(super) fn add_wait(&mut self, waited: Duration) {
        self.waits_since = OptionalDuration::NONE;
        self.queued.add(waited);
        if let Some(attempt) = &mut self.attempts.last {
            attempt.queued.add(waited);
        }
    }

    /// Records and returns the first acceptable request id that the server sent with a response. If the response has
    /// none, the id of an earlier response is kept. The id is a copy, because the header value would keep the buffer of
    /// all response headers in memory.
    pub(super) fn keep_id(&mut self, headers: &HeaderMap) -> Option<Arc<str>> {
        let names = &self.identity.as_ref()?.naming.server_headers;
        let id = server_id::candidates(headers, names).find(|id| !self.keys.are_in(id))?;
        Some(Arc::clone(self.server_request_id.insert(id.into())))
    }
}
