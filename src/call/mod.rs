//! The state of one call: its id, its deadline and its attempts.
//!
//! The layers share a [`CallContext`] through the request's extensions, and each records its part. The caller reads the result
//! as a [`Report`], from the extensions of the response or from the [`Error`](crate::Error).
//!
//! ```
//! use tower_outbound::{Report, call::Outcome};
//!
//! fn log<B>(response: &http::Response<B>) {
//!     let Some(report) = Report::from_response(response) else { return };
//!     for attempt in report.attempts() {
//!         if let Some(Outcome::Answer(status)) = attempt.outcome() {
//!             println!("attempt {} got {status} after {:?}", attempt.number(), attempt.waited());
//!         }
//!     }
//! }
//! # log(&http::Response::new(()));
//! ```

mod attempt;
mod deadline;
mod passage;
mod report;
mod request_head;
mod server_id;
mod shared;

pub use self::attempt::{AttemptReport, DelayReason, Outcome, StopReason};
pub use self::deadline::Deadline;
pub use self::report::Report;
pub use self::request_head::RequestHead;
pub(crate) use self::shared::{Identity, Naming};

use std::{fmt, sync::Arc, time::Duration};

use http::{Extensions, HeaderMap, HeaderValue};

use self::shared::Shared;
use crate::{clock::Instant, secret::Secret};

/// One call while it runs: a handle that the layers share through the request's extensions.
///
/// A layer or service of your own, further in, can read it:
/// `request.extensions().get::<CallContext>()`. A request made of the head of an earlier one must not take it along: its
/// attempts and its deadline would be the earlier call's.
#[derive(Clone)]
pub struct CallContext {
    shared: Arc<Shared>,
}

/// Stands in the extensions of a 401, or of gRPC's `UNAUTHENTICATED`, when the key that it refused is replaced, so that
/// sending the request once more, through whatever limits it, makes sense. Once: whoever does so leaves the next 401 as it is. That one may have the mark,
/// too; the retry layers, however many are stacked, send once more in a [`CallContext`] and not once each.
///
/// The auth layer puts it there and never sends again by itself: it stands inside the limiter, which would not know. The
/// retry layer does, without a back-off. A layer of your own that replaces keys may put it there, too: it says by
/// that that the 401 is the answer to this very request, and not to another one that was sent after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyReplaced;

impl CallContext {
    /// The call that `extensions` belong to; begins one where there is none.
    pub(crate) fn of(extensions: &mut Extensions) -> Self {
        let call = extensions.get::<Self>().cloned().unwrap_or_else(|| Self::begin(extensions, None));
        call.keep_deadline(extensions);
        call
    }

    /// The same, known by this from now on.
    pub(crate) fn identified(extensions: &mut Extensions, identity: Identity) -> Self {
        let call = match extensions.get::<Self>().cloned() {
            Some(call) => {
                call.shared.rename(identity);
                call
            }
            None => Self::begin(extensions, Some(identity)),
        };
        call.keep_deadline(extensions);
        call
    }

    fn begin(extensions: &mut Extensions, identity: Option<Identity>) -> Self {
        let call = Self { shared: Arc::new(Shared::new(identity)) };
        extensions.insert(call.clone());
        call
    }

    fn keep_deadline(&self, extensions: &Extensions) {
        if let Some(Deadline(deadline)) = extensions.get() {
            self.narrow_deadline(*deadline);
        }
    }

    /// The time by which the answer's head must be there, where one was set.
    pub fn deadline(&self) -> Option<Instant> {
        self.shared.deadline()
    }

    /// Returns the name of the called service, if the request id layer has one.
    pub fn service(&self) -> Option<Arc<str>> {
        self.shared.service()
    }

    /// Returns the service's name and the request id for an event. Both are `None` if the call's span is enabled and
    /// shows them.
    pub(crate) fn unshown(&self) -> (Option<Arc<str>>, Option<HeaderValue>) {
        self.shared.identity(|identity| match identity {
            Some(identity) if !identity.in_span => {
                (identity.naming.service.clone(), Some(identity.request_id.clone()))
            }
            _ => (None, None),
        })
    }

    /// The number of the attempt under way, from 1; 0 before the first.
    pub fn attempt(&self) -> u32 {
        self.shared.state().attempts.last().map_or(0, |attempt| attempt.number)
    }

    /// Counts an attempt that is handed on to be sent, and gives its number and how often the request was handed on
    /// before. Both also hold where it is no layer of ours that sends it again.
    pub(crate) fn hand_on(&self) -> (u32, u32) {
        let mut state = self.shared.state();
        let earlier = state.handed_on;
        state.handed_on = earlier.saturating_add(1);
        let number = state.attempts.last().map_or(0, |attempt| attempt.number);
        (number.max(state.handed_on), earlier)
    }

    /// Whether the request was sent once more because its key was replaced.
    pub(crate) fn is_rekeyed(&self) -> bool {
        self.shared.state().rekeyed
    }

    pub(crate) fn set_rekeyed(&self) {
        self.shared.state().rekeyed = true;
    }

    /// What happened so far. The report goes on following the call.
    pub fn report(&self) -> Report {
        Report { shared: Arc::clone(&self.shared) }
    }

    /// Whether that is this call's.
    pub(crate) fn is_told_by(&self, report: &Report) -> bool {
        Arc::ptr_eq(&self.shared, &report.shared)
    }

    pub(crate) fn started(&self) -> Instant {
        self.shared.started
    }

    /// Sets the deadline, or keeps an earlier one, and gives that.
    pub(crate) fn narrow_deadline(&self, deadline: Instant) -> Option<Instant> {
        self.shared.narrow_deadline(deadline)
    }

    /// Adds a key that an attempt sends, so that no server id in the report contains it.
    pub(crate) fn conceal(&self, key: &Secret) {
        self.shared.state().keys.add(key);
    }

    /// Keeps the id that the server has put into the answer of the call, unless an attempt has seen to it; that of an
    /// earlier answer stays if it has none.
    pub(crate) fn answered(&self, headers: &HeaderMap) {
        let id = self.shared.server_id(headers);
        let mut state = self.shared.state();
        if state.attempts.last().is_none_or(|attempt| attempt.ended.is_none()) {
            state.keep_id(id.as_ref());
        }
    }

    pub(crate) fn add_wait(&self, waited: Duration) {
        let mut state = self.shared.state();
        state.waited = state.waited.saturating_add(waited);
        if let Some(attempt) = state.attempts.last_mut() {
            attempt.waited = attempt.waited.saturating_add(waited);
        }
    }

    /// And gives its number. Where it is `watched`, [`is_held`](Self::is_held) tells of it.
    pub(crate) fn start_attempt(&self, now: Instant, watched: bool) -> u32 {
        let started = now.saturating_duration_since(self.shared.started);
        let number = {
            let mut state = self.shared.state();
            // That of an attempt which was made after all.
            state.retry_after = None;
            state.attempts.start(started)
        };
        self.shared.passage.watch(watched.then_some(number));
        number
    }

    /// Ends the attempt under way, by an answer with these headers or without one.
    pub(crate) fn end_attempt(&self, outcome: Outcome, asked: Option<Duration>, answer: Option<&HeaderMap>) {
        let elapsed = self.shared.started.elapsed();
        let server_request_id = answer.and_then(|headers| self.shared.server_id(headers));
        let mut state = self.shared.state();
        state.keep_id(server_request_id.as_ref());
        if let Some(attempt) = state.attempts.last_mut() {
            attempt.ended = Some(elapsed);
            attempt.outcome = Some(outcome);
            attempt.server_request_id = server_request_id;
            attempt.asked = asked;
        }
    }

    pub(crate) fn set_delay(&self, delay: Duration, reason: DelayReason) {
        if let Some(attempt) = self.shared.state().attempts.last_mut() {
            attempt.delay = Some((delay, reason));
        }
    }

    /// The wait before the attempt that was not made.
    pub(crate) fn set_retry_after(&self, wait: Duration) {
        self.shared.state().retry_after = Some(wait);
    }

    pub(crate) fn end(&self, ended: StopReason) {
        self.shared.end(ended);
    }
}

impl fmt::Debug for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report().fmt_as("CallContext", f)
    }
}
