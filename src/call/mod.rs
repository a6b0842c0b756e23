//! The state of one call: its id, its deadline and its attempts.
//!
//! The layers share a [`CallContext`] through the request's extensions, and each layer records its part in it. The
//! caller reads the result as a [`Report`], from the extensions of the response or from the [`Error`](crate::Error).
//!
//! ```
//! use tower_outbound::{Report, call::Outcome};
//!
//! fn log<B>(response: &http::Response<B>) {
//!     let Some(report) = Report::from_response(response) else { return };
//!     for attempt in report.attempts() {
//!         if let Some(status) = attempt.outcome.and_then(Outcome::status) {
//!             println!("attempt {} got {status} after {:?}", attempt.number, attempt.queued);
//!         }
//!     }
//! }
//! # log(&http::Response::new(()));
//! ```

mod attempt;
mod head;
mod member;
mod progress;
pub(crate) mod report;
mod state;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue};

use self::attempt::OptionalDuration;
pub use self::attempt::{AttemptReport, ConnectTimes};
pub(crate) use self::head::RecordedHead;
pub use self::head::RequestHead;
pub(crate) use self::member::{Chosen, Member, Needs, delay_of};
pub(crate) use self::progress::Phase;
pub(crate) use self::report::Report;
use self::state::Shared;
pub(crate) use self::state::{AttemptEnd, Identity, Naming};
pub use crate::policy::outcome::{Delivery, Outcome};
pub use crate::policy::retry::{DelayReason, StopReason};
use crate::{
    clock::{self, Instant},
    policy::nanos,
    policy::retry::{Retry, Stop},
    secret::Secret,
};

/// The state of a running call, which the layers share through the request's extensions.
///
/// A custom layer or service reads it with `request.extensions().get::<CallContext>()`.
///
/// # Notes
///
/// Do not copy the context into the request of another call. Its attempts and its deadline belong to one call only.
#[derive(Debug, Clone)]
pub struct CallContext(Report);

/// Marks a 401, or gRPC's `UNAUTHENTICATED`, if the rejected key is being replaced, or if another member of a
/// [`Pool`](crate::stack::Pool) has a key. The marker is in the extensions of the response.
///
/// The auth layer or the route layer inserts the marker, and the retry layer then resends the request once, through the
/// limiter: see [after a 401](crate::retry#after-a-401). A custom layer that replaces keys may also insert the marker,
/// but only into the response to the request that it received itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyReplaced;

/// Returns an extension that the caller or a custom layer may have inserted. `call` is the call in the same extensions.
/// Most requests have no other extension, so the lookup is skipped for them.
pub(crate) fn extension_beside<'a, T>(call: Option<&CallContext>, extensions: &'a Extensions) -> Option<&'a T>
where
    T: Send + Sync + 'static,
{
    if extensions.len() > usize::from(call.is_some()) { extensions.get() } else { None }
}

impl CallContext {
    /// Returns the call to which the request belongs. Starts a new call if the request belongs to no call.
    pub(crate) fn of(extensions: &mut Extensions) -> Self {
        Self::get_or_start(extensions, &mut None)
    }

    /// Returns the call to which the request belongs, or starts a new call. Sets the identity of the call. Also returns
    /// whether the same layer has given the call another id before.
    pub(crate) fn identified(extensions: &mut Extensions, identity: Identity) -> (Self, bool) {
        let mut identity = Some(identity);
        let call = Self::get_or_start(extensions, &mut identity);
        let has_another_id = identity.is_some_and(|new| call.0.shared.state().identify(new));
        (call, has_another_id)
    }

    /// Like [`of`](Self::of). A new call takes `identity`.
    fn get_or_start(extensions: &mut Extensions, identity: &mut Option<Identity>) -> Self {
        let mut shared = || Arc::new(Shared::new(identity.take()));
        let call = extensions.get_or_insert_with(|| Self(Report { shared: shared() })).clone();
        if let Some(Deadline(deadline)) = extension_beside(Some(&call), extensions) {
            call.narrow_deadline(*deadline, DeadlineSetting::Extension);
        }
        call
    }

    /// Returns the name of the called service, if the request id layer was given one.
    pub fn service(&self) -> Option<Arc<str>> {
        self.0.service()
    }

    /// Returns the number of the running attempt, starting at 1, or 0 before the first attempt.
    pub fn attempt(&self) -> u32 {
        self.0.shared.state().attempts.number()
    }

    /// Counts an attempt that is about to be sent. Returns the number of this attempt, and the number of requests that
    /// were sent before it. Both numbers include retries by other crates.
    pub(crate) fn count_sent(&self) -> (u32, u32) {
        let mut state = self.0.shared.state();
        let earlier = state.sent_count;
        state.sent_count = earlier.saturating_add(1);
        (state.attempts.number().max(state.sent_count), earlier)
    }

    /// Records the size of the request's body, if it is known.
    pub(crate) fn set_body_size(&self, bytes: Option<u64>) {
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(u32::MAX);
        self.0.shared.body_size.store(bytes, Ordering::Relaxed);
    }

    /// Returns the size of the request's body. Returns `None` if it is unknown, or 4 GiB or larger.
    fn body_size(&self) -> Option<u64> {
        let bytes = self.0.shared.body_size.load(Ordering::Relaxed);
        (bytes < u32::MAX).then(|| bytes.into())
    }

    /// Records that a layer above the stack has already sent a request that the server may have processed.
    #[cfg(feature = "client")]
    pub(crate) fn set_after_processing(&self) {
        self.0.shared.state().after_processing = true;
    }

    /// Returns the call of a report, for a failure of the response's body.
    pub(crate) fn reported_by(report: &Report) -> Self {
        Self(report.clone())
    }

    /// Returns the idempotency key that a retry layer has generated for this header.
    pub(crate) fn idempotency_key(&self, header: &HeaderName) -> Option<HeaderValue> {
        let state = self.0.shared.state();
        let (name, key) = state.rare.as_deref()?.idempotency_key.as_ref()?;
        (name == header).then(|| key.clone())
    }

    /// Records an idempotency key that a retry layer has generated.
    pub(crate) fn keep_idempotency_key(&self, header: &HeaderName, key: &HeaderValue) {
        self.0.shared.state().rare.get_or_insert_default().idempotency_key =
            Some((header.clone(), key.clone()));
    }

    /// Returns the report of the call, which is updated while the call runs.
    pub fn report(&self) -> Report {
        self.0.clone()
    }

    /// Returns whether `report` belongs to this call.
    pub(crate) fn is_reported_by(&self, report: &Report) -> bool {
        Arc::ptr_eq(&self.0.shared, &report.shared)
    }

    pub(crate) fn started(&self) -> Instant {
        self.0.shared.started
    }

    /// Records a key that an attempt sends. The report then omits the server's request id if the id contains the key.
    pub(crate) fn conceal(&self, key: &Secret, may_expire: bool) {
        self.0.shared.state().keys.add(key, may_expire);
    }

    /// Returns whether a sensitive header contains a key that an auth layer has added, and that may expire.
    pub(crate) fn has_expiring_key(&self, headers: &HeaderMap) -> bool {
        // Locks only for a sensitive header. In the right order of layers, the request has none yet.
        let mut sensitive = headers.values().filter(|value| value.is_sensitive());
        sensitive
            .any(|value| value.to_str().is_ok_and(|value| self.0.shared.state().keys.may_expire_in(value)))
    }

    /// Returns whether a text contains a key that this call has sent.
    pub(crate) fn has_sent(&self, text: &str) -> bool {
        self.0.shared.state().keys.are_in(text)
    }

    /// Records the server's request id from the final response, unless an attempt has already recorded it.
    pub(crate) fn keep_server_id(&self, headers: &HeaderMap) {
        let mut state = self.0.shared.state();
        if state.attempts.last.as_ref().is_none_or(|attempt| attempt.ended.get().is_none()) {
            state.keep_id(headers);
        }
    }

    /// Records that the request waits for its permit.
    pub(crate) fn begin_wait(&self, now: Instant) {
        self.0.shared.state().waits_since = self.0.shared.elapsed_at(now).into();
    }

    /// Records the end of the wait for a permit.
    pub(crate) fn add_wait(&self, waited: Duration) {
        self.0.shared.state().add_wait(waited);
    }

    /// Returns whether the call has waited for a permit, and has no deadline yet.
    pub(crate) fn has_waited_without_deadline(&self) -> bool {
        self.deadline().is_none() && self.0.shared.state().queued.get().is_some()
    }

    /// Records how long an attempt waited for its key or its signature.
    pub(crate) fn add_key_wait(&self, waited: Duration) {
        let elapsed = self.0.shared.started.elapsed();
        if let Some(attempt) = &mut self.0.shared.state().attempts.last {
            // A service that is not cloned may have begun to wait for an earlier request.
            let age = elapsed.saturating_sub(attempt.started.get().unwrap_or_default());
            attempt.key_wait.add(waited.min(age));
        }
    }

    /// Records how long an attempt waited for its connection, and the times of a connection that was opened for it. An
    /// attempt whose connection returned the request waits again. It keeps the times of its connection if no other was
    /// opened.
    #[cfg(feature = "client")]
    pub(crate) fn add_connection(&self, waited: Duration, times: Option<ConnectTimes>) {
        if let Some(attempt) = &mut self.0.shared.state().attempts.last {
            attempt.connection_wait.add(waited);
            attempt.connect = times.map(Box::new).or(attempt.connect.take());
        }
    }

    /// Starts an attempt. If the deadline has passed, returns an error with the time between the start of the call and
    /// its deadline.
    pub(crate) fn start_attempt(&self, now: Instant) -> Result<(), Duration> {
        let started = OptionalDuration::from(self.0.shared.elapsed_at(now));
        if self.0.shared.earliest_deadline.has_passed(started) {
            let limit = self.deadline().map(|deadline| deadline.saturating_duration_since(self.started()));
            return Err(limit.unwrap_or_default());
        }
        let mut state = self.0.shared.state();
        // An earlier run of the stack may have ended the call.
        state.stop_reason = None;
        self.0.shared.has_succeeded.store(false, Ordering::Relaxed);
        // The attempt before may have left both.
        (state.renewal, state.waits_since) = (None, OptionalDuration::NONE);
        if let Some(rare) = state.rare.as_deref_mut() {
            rare.retry_after = OptionalDuration::NONE;
            // The layers of another stack may make this attempt.
            rare.member.iter_mut().for_each(|member| member.alternative = None);
        }
        self.0.shared.reset_phase();
        state.attempts.start(started);
        Ok(())
    }

    /// Ends the running attempt. `failure` is its cause if no response arrived, `requested` is the delay that the
    /// server requested, and `headers` are the response headers. Returns the number of the attempt.
    pub(crate) fn end_attempt(
        &self,
        outcome: Outcome,
        failure: Option<&'static str>,
        requested: Option<Duration>,
        headers: Option<&HeaderMap>,
    ) -> u32 {
        let elapsed = self.0.shared.started.elapsed();
        let phase = self.phase();
        let mut state = self.0.shared.state();
        let server_request_id = headers.and_then(|headers| state.keep_id(headers));
        if let Some(attempt) = &mut state.attempts.last {
            attempt.ended = elapsed.into();
            if let Phase::Sent(since_start) = phase {
                attempt.sent = since_start.into();
            }
            attempt.outcome = Some(outcome);
            attempt.failure = failure;
            attempt.server_request_id = server_request_id;
            attempt.requested_delay = requested.into();
        }
        state.attempts.number()
    }

    /// Records that another attempt follows. `key_replaced` is `true` if the next attempt differs only in its key.
    pub(crate) fn retry(&self, retry: &Retry, key_replaced: bool) {
        let mut state = self.0.shared.state();
        self.0.shared.has_succeeded.store(false, Ordering::Relaxed);
        state.key_replaced |= key_replaced;
        // An earlier run of the stack may have ended the call, if the response's body broke after that.
        state.stop_reason = None;
        state.rare.as_deref_mut().into_iter().for_each(|rare| rare.expired = OptionalDuration::NONE);
        if let Some(attempt) = &mut state.attempts.last {
            attempt.delay = retry.delay.into();
            attempt.delay_reason = Some(retry.reason);
        }
    }

    /// Returns whether a retry layer has retried the call with a new key.
    pub(crate) fn is_key_replaced(&self) -> bool {
        self.0.shared.state().key_replaced
    }

    /// Records why the call makes no further attempt.
    pub(crate) fn end(&self, stop: impl Into<Stop>) {
        let Stop { reason, retry_after, is_permanent } = stop.into();
        self.0.shared.has_succeeded.store(reason == StopReason::Success, Ordering::Relaxed);
        if reason == StopReason::Success && retry_after.is_none() {
            return;
        }
        let mut state = self.0.shared.state();
        if reason == StopReason::Deadline {
            let elapsed = self.0.shared.started.elapsed();
            state.rare.get_or_insert_default().expired = elapsed.into();
            // The request may be dropped in the limiter's queue.
            if let Some(since) = state.waits_since.get() {
                state.add_wait(elapsed.saturating_sub(since));
            }
        }
        (state.stop_reason, state.is_permanent) = (Some(reason), is_permanent);
        retry_after
            .into_iter()
            .for_each(|delay| state.rare.get_or_insert_default().retry_after = delay.into());
    }
}

/// The time by which the response headers of a call must arrive. The caller inserts it into the request's extensions.
///
/// If there are several deadlines, the layers use the earliest. A deadline never extends the total timeout. A deadline
/// always bounds the wait for the limiter and the delay before a retry. It cancels a running attempt only if the stack
/// contains a [`TotalTimeoutLayer`](crate::timeout::TotalTimeoutLayer) or an
/// [`AttemptTimeoutLayer`](crate::timeout::AttemptTimeoutLayer).
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::call::Deadline;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline::after(Duration::from_secs(3)));
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub Instant);

/// The time limit that the caller of a client has set for a request, as an extension. It replaces the total timeout of
/// the stack.
pub(crate) type RequestTimeout = (Instant, DeadlineSetting);

impl Deadline {
    /// Returns the deadline that is `left` from now.
    pub fn after(left: Duration) -> Self {
        Self(clock::after(clock::now(), left))
    }

    /// Returns the deadline of the call or the deadline in the request's extensions, whichever is earlier.
    pub(crate) fn of(call: Option<&CallContext>, extensions: &Extensions) -> Option<Instant> {
        let own = extension_beside(call, extensions).map(|Self(deadline)| *deadline);
        call.and_then(CallContext::deadline).into_iter().chain(own).min()
    }
}

impl CallContext {
    /// Returns the time by which the response headers must arrive, if the call has a deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.shared.deadline().map(|(deadline, _)| deadline)
    }

    /// Sets the deadline, unless the call has an earlier one.
    pub(crate) fn narrow_deadline(&self, deadline: Instant, setting: DeadlineSetting) {
        self.0.shared.earliest_deadline.narrow(deadline.checked_duration_since(self.started()), setting);
    }

    /// Limits the time from the start of the call, unless the call has an earlier deadline.
    pub(crate) fn limit_time(&self, limit: Duration, setting: DeadlineSetting) {
        self.0.shared.earliest_deadline.narrow(Some(limit), setting);
    }
}

/// The setting that determines the deadline of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadlineSetting {
    Extension = 0,
    RequestTimeout = 1,
    TotalTimeout = 2,
}

/// The earliest deadline of a call. Its two lowest bits are the setting. The other bits are the nanoseconds after the
/// start of the call, plus 1, or 0 for a deadline before the start.
#[derive(Debug)]
struct EarliestDeadline(AtomicU64);

impl EarliestDeadline {
    const NONE: u64 = u64::MAX;
    const BITS: u32 = 2;
    /// About 146 years.
    const LATEST: u64 = (Self::NONE >> Self::BITS) - 1;

    /// `after` is the time from the start of the call to the deadline, or `None` for a deadline before the start.
    fn narrow(&self, after: Option<Duration>, setting: DeadlineSetting) {
        let after = after.map_or(0, |after| nanos(after).saturating_add(1));
        self.0.fetch_min((after.min(Self::LATEST) << Self::BITS) | setting as u64, Ordering::Relaxed);
    }

    /// Returns whether the deadline has passed, this long after the start of the call.
    fn has_passed(&self, elapsed: OptionalDuration) -> bool {
        let stored = self.0.load(Ordering::Relaxed);
        stored != Self::NONE && stored >> Self::BITS <= elapsed.0
    }

    /// Returns the deadline of a call that started at `start`.
    fn get(&self, start: Instant) -> Option<(Instant, DeadlineSetting)> {
        let stored = self.0.load(Ordering::Relaxed);
        let deadline = match stored >> Self::BITS {
            _ if stored == Self::NONE => return None,
            0 => start.checked_sub(Duration::from_nanos(1)).unwrap_or(start),
            after => clock::after(start, Duration::from_nanos(after - 1)),
        };
        let setting = match stored & 3 {
            0 => DeadlineSetting::Extension,
            1 => DeadlineSetting::RequestTimeout,
            _ => DeadlineSetting::TotalTimeout,
        };
        Some((deadline, setting))
    }
}

impl Default for EarliestDeadline {
    fn default() -> Self {
        Self(AtomicU64::new(Self::NONE))
    }
}

#[cfg(test)]
mod tests;
