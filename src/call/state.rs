//! The state of a call, which its layers, its report and its log events share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};

use super::{
    AttemptReport, CallContext, DeadlineSetting, EarliestDeadline, Member, RecordedHead, StopReason,
    attempt::{Attempts, OptionalDuration},
};
use crate::{
    clock::{self, Instant},
    secret::Secret,
};

/// The state of a call.
///
/// - The start never changes. The deadline can only become earlier, and needs no lock. The extension
///   [`Deadline`](super::Deadline), the timeout of the request and the total timeout set it, and the earliest applies.
/// - Each layer records its part by a method of [`CallContext`]. A new attempt also resets what the rate limit layer,
///   the transport and the pool have recorded for the attempt before.
/// - The chosen member of a pool is also in the extensions of the request, where the auth layer reads it. The call knows
///   only the member that was chosen last, and several attempts may run at once.
/// - A call of a stack with one attempt, no wait and a ready key takes the lock three times without a subscriber: at the
///   start and the end of the attempt, and for the key. Log events, metrics, retries and waits take it more often.
pub(super) struct Shared {
    pub(super) started: Instant,
    pub(super) earliest_deadline: EarliestDeadline,
    /// How the attempt timeout watches the running attempt.
    pub(super) watch: AtomicU8,
    /// The number of the latest attempt: of those that the attempt timeout has watched, and of those that follow an
    /// abandoned one.
    pub(super) watched: AtomicU32,
    /// The transport's progress with the running attempt.
    pub(super) phase: AtomicU64,
    /// When an attempt last took a frame of the request's body, or when a response body began to stall, in nanoseconds
    /// after the start of the call.
    pub(super) body_progress: AtomicU64,
    /// The size of the request's body in bytes, or `u32::MAX` if it is larger or unknown.
    pub(super) body_size: AtomicU32,
    /// Whether the spans of the attempts have the level INFO.
    has_info_spans: AtomicBool,
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

/// The HTTP version of an attempt's response, or the name of its error.
pub(crate) type AttemptEnd = Result<Version, &'static str>;

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
    /// Contains the HTTP version of the last attempt's response if the event of the call shows that attempt, which then
    /// has no event of its own.
    deferred: Option<Option<Version>>,
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
    /// Whether the call ended with a permanent response.
    pub(super) is_permanent: bool,
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

/// How far a renewal has got. The rate limit layer and the transport below it share this state through the call,
/// because the transport cannot acquire a permit itself.
pub(super) enum Renewal {
    /// The rate limit layer has seen that its request waits for a connection.
    Watched(Waker),
    /// The transport has a connection. It waits until the rate limit layer has checked the permit.
    Wanted(Box<RecordedHead>, Waker),
    /// The rate limit layer checks the permit, or waits for another one.
    Checking(Waker),
    Renewed,
}

impl Shared {
    /// Creates the state of a call that starts now.
    pub(super) fn new(identity: Option<Identity>) -> Self {
        Self {
            started: clock::now(),
            earliest_deadline: EarliestDeadline::default(),
            watch: AtomicU8::default(),
            watched: AtomicU32::default(),
            phase: AtomicU64::default(),
            body_progress: AtomicU64::default(),
            body_size: AtomicU32::new(u32::MAX),
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
        let id = candidates(headers, names).find(|id| !self.keys.are_in(id))?;
        Some(Arc::clone(self.server_request_id.insert(id.into())))
    }
}

/// The maximum length of an id. Known services send up to 100 characters.
const MAX_LENGTH: usize = 128;

/// A text may end with the beginning of a key. This beginning is redacted if it has at least this many bytes.
#[cfg(feature = "client")]
const SHORTEST_BEGINNING: usize = 4;

/// Returns the values of the headers `names`, except those that cannot be an id. An id has at most [`MAX_LENGTH`]
/// characters, all of them visible ASCII.
fn candidates<'a>(headers: &'a HeaderMap, names: &'a [HeaderName]) -> impl Iterator<Item = &'a str> {
    // One iteration over the header names of the response costs less than a lookup for each known name.
    let any = headers.keys().any(|name| names.contains(name));
    let values = any.then(|| names.iter().filter_map(|name| headers.get(name))).into_iter().flatten();
    let is_id = |id: &&str| id.len() <= MAX_LENGTH && id.bytes().all(|byte| byte.is_ascii_graphic());
    values.filter_map(|value| value.to_str().ok()).filter(is_id)
}

/// The two latest keys that a call has sent: the key that a 401 rejected, and its replacement. Each with whether it may
/// expire or be replaced.
#[derive(Debug, Default)]
pub(super) struct SentKeys([Option<(Secret, bool)>; 2]);

impl SentKeys {
    pub(super) fn add(&mut self, key: &Secret, may_expire: bool) {
        if self.0[0].as_ref().is_none_or(|(latest, _)| latest != key) {
            self.0.swap(0, 1);
            self.0[0] = Some((key.clone(), may_expire));
        }
    }

    /// Returns whether `id` contains one of the keys.
    pub(super) fn are_in(&self, id: &str) -> bool {
        self.0.iter().flatten().any(|(key, _)| key.is_in(id))
    }

    /// Returns whether `value` contains a key that may expire.
    pub(super) fn may_expire_in(&self, value: &str) -> bool {
        self.0.iter().flatten().any(|(key, may_expire)| *may_expire && key.is_in(value))
    }

    /// Redacts the keys in `text`, but not their encoded forms. The text may be cut off within a key, so the beginning
    /// of a key is also redacted at the end of the text.
    #[cfg(feature = "client")]
    pub(super) fn redact(&self, text: &str) -> String {
        let mut keys: Vec<_> = self.0.iter().flatten().map(|(key, _)| key.expose()).collect();
        // Replaces the longer key first, because it may contain the shorter one.
        keys.sort_by_key(|key| std::cmp::Reverse(key.len()));
        keys.into_iter().fold(text.to_owned(), |text, key| {
            let mut text = text.replace(key, "[redacted]");
            // A beginning under `SHORTEST_BEGINNING` bytes is not redacted, because it could be an ordinary word.
            let beginnings = (SHORTEST_BEGINNING..key.len()).rev().filter_map(|length| key.get(..length));
            if let Some(beginning) = beginnings.into_iter().find(|beginning| text.ends_with(beginning)) {
                text.truncate(text.len() - beginning.len());
                text.push_str("[redacted]");
            }
            text
        })
    }
}

/// The state that the event of a call shows.
pub(crate) struct CallSummary {
    pub(crate) has_service: bool,
    /// The service's name and the request id. Both are `None` if the call's span already contains them.
    pub(crate) service: Option<Arc<str>>,
    pub(crate) request_id: Option<HeaderValue>,
    pub(crate) attempts: usize,
    /// The member and the URI of the last attempt that a pool passed to a member.
    pub(crate) routed: Option<(usize, Uri)>,
    pub(crate) queued: Duration,
    /// Whether the call ended with a permanent response.
    pub(crate) is_permanent: bool,
    pub(crate) server_request_id: Option<Arc<str>>,
    /// The attempt whose times the event shows.
    pub(crate) attempt: Option<AttemptReport>,
    /// Whether the event shows the other facts of this attempt too.
    pub(crate) shows_attempt: bool,
}

/// The time outside the limiter's queue from which on the event of a call shows the times of its only attempt. A faster
/// call needs no explanation.
const SLOW: Duration = Duration::from_millis(100);

impl CallContext {
    /// Returns the service's name and the request id for a log event. Both are `None` if the call's span already
    /// contains them.
    pub(crate) fn names_for_event(&self) -> (Option<Arc<str>>, Option<HeaderValue>) {
        match &self.0.shared.state().identity {
            Some(identity) if !identity.in_span => {
                (identity.naming.service.clone(), Some(identity.request_id.clone()))
            }
            _ => (None, None),
        }
    }

    /// Returns whether the event of the call shows its last attempt. `only` is `true` if the call makes no other
    /// attempt.
    pub(crate) fn defer_attempt(&self, end: AttemptEnd, only: bool) -> bool {
        let mut state = self.0.shared.state();
        let is_shown = only && state.identity.as_ref().is_some_and(|identity| identity.shows_attempt);
        state.deferred = is_shown.then_some(end.ok());
        is_shown
    }

    /// Returns the end of the last attempt, if an event has yet to show it.
    pub(crate) fn take_deferred(&self) -> Option<AttemptEnd> {
        let mut state = self.0.shared.state();
        let version = state.deferred.take()?;
        version.map(Ok).or_else(|| Some(Err(state.attempts.last.as_ref()?.failure?)))
    }

    /// Returns the state that the event of the call shows. `in_span` is `true` if its span contains the identity.
    /// `elapsed` is the time since the start of the call.
    pub(crate) fn summary(&self, in_span: bool, elapsed: Duration) -> CallSummary {
        let mut state = self.0.shared.state();
        let shows_attempt = state.deferred.take().is_some();
        let queued = state.queued.get().unwrap_or_default();
        let attempts = state.attempts.iter().count();
        let is_slow = attempts == 1 && elapsed.saturating_sub(queued) >= SLOW;
        let identity = state.identity.as_ref();
        let outside = identity.filter(|_| !in_span);
        let member = state.rare.as_deref().and_then(|rare| rare.member.as_ref());
        CallSummary {
            has_service: identity.is_some_and(|identity| identity.naming.service.is_some()),
            service: outside.and_then(|identity| identity.naming.service.clone()),
            request_id: outside.map(|identity| identity.request_id.clone()),
            attempts,
            routed: member.and_then(|member| member.routed.clone()),
            queued,
            is_permanent: state.is_permanent,
            server_request_id: state.server_request_id.clone(),
            attempt: (shows_attempt || is_slow).then(|| state.attempts.last_report()).flatten(),
            shows_attempt,
        }
    }

    /// Raises the spans of the call's attempts to INFO.
    pub(crate) fn raise_spans(&self) {
        self.0.shared.has_info_spans.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_info_spans(&self) -> bool {
        self.0.shared.has_info_spans.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
