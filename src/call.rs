//! What is known of one call while it runs, and afterwards: its id, its deadline, its attempts.
//!
//! The layers share a [`Call`] through the request's extensions; each adds what it knows. What a caller sees of
//! it is the [`Report`]: in the extensions of the response, and in the [`Error`](crate::Error).
//!
//! ```
//! use tower_outbound::{Report, call::Outcome};
//!
//! fn log<B>(response: &http::Response<B>) {
//!     let Some(report) = Report::of(response) else { return };
//!     for attempt in report.attempts() {
//!         if let Some(Outcome::Answer(status)) = attempt.outcome() {
//!             println!("attempt {} got {status} after {:?}", attempt.number(), attempt.waited());
//!         }
//!     }
//! }
//! # log(&http::Response::new(()));
//! ```

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::clock::{self, Instant};

/// One call while it runs: a handle that the layers share through the request's extensions.
///
/// A layer or service of your own, further in, can read it:
/// `request.extensions().get::<Call>()`. A request made of the head of an earlier one must not take it along: its
/// attempts and its deadline would be the earlier call's.
#[derive(Clone)]
pub struct Call {
    shared: Arc<Shared>,
}

/// What happened in a call: read from `response.extensions().get::<Report>()` or
/// [`Error::report`](crate::Error::report).
///
/// A handle on shared data, so cheap to clone and to keep. Holds no key and no body.
#[derive(Clone)]
pub struct Report {
    shared: Arc<Shared>,
}

struct Shared {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    service: Option<&'static str>,
    request_id: Option<HeaderValue>,
    /// The headers in which the server's id is looked for.
    server_headers: Arc<[HeaderName]>,
    server_request_id: Option<HeaderValue>,
    deadline: Option<Instant>,
    waited: Duration,
    attempts: Vec<Attempt>,
    /// How many of them were handed on to be sent, by whatever layer they were made.
    handed_on: u32,
    /// Whether the one resend for a key that was replaced is used up, by whatever retry layer.
    rekeyed: bool,
    ended: Option<Ended>,
    retry_after: Option<Duration>,
}

/// One attempt of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    number: u32,
    started: Duration,
    waited: Duration,
    ended: Option<Duration>,
    outcome: Option<Outcome>,
    server_request_id: Option<HeaderValue>,
    asked: Option<Duration>,
    delay: Option<(Duration, DelayReason)>,
}

/// The time by which a call must have its answer's head, put into the request's extensions: the rest of the time that
/// the caller has itself, say.
///
/// The layers that keep a deadline take the earliest. Without a [`TimeoutLayer`](crate::timeout::TimeoutLayer) in the
/// stack it bounds the waits, but cuts off no attempt that is under way.
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

impl Deadline {
    /// The earlier of the call's deadline and the one in its extensions.
    pub(crate) fn of(extensions: &Extensions) -> Option<Instant> {
        let call = extensions.get::<Call>().and_then(Call::deadline);
        call.into_iter().chain(extensions.get().map(|Self(deadline)| *deadline)).min()
    }

    /// So long from now on.
    pub fn after(left: Duration) -> Self {
        Self(clock::after(clock::now(), left))
    }
}

/// Why a back-off had its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DelayReason {
    /// The back-off after a failure that passes by itself.
    Transient,
    /// The back-off after a throttling, which is longer.
    Throttled,
    /// The server asked for more than the back-off.
    Asked,
    /// There was none: the server refused the key, another one is there or on its way ([`KeyReplaced`]), and the request is sent once more with that.
    KeyReplaced,
}

impl DelayReason {
    /// The reason in one word, as it stands in the log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Throttled => "throttled",
            Self::Asked => "asked",
            Self::KeyReplaced => "key_replaced",
        }
    }
}

/// Stands in the extensions of a 401, or of gRPC's `UNAUTHENTICATED`, when the key that it refused is replaced, so that
/// sending the request once more, through whatever limits it, makes sense. Once: whoever does so leaves the next 401 as it is. That one may have the mark,
/// too; the retry layers, however many are stacked, send once more in a [`Call`] and not once each.
///
/// The auth layer puts it there and never sends again by itself: it stands inside the limiter, which would not know. The
/// retry layer does, without a back-off. A layer of your own that replaces keys may put it there, too: it says by
/// that that the 401 is the answer to this very request, and not to another one that was sent after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyReplaced;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The server answered with this status.
    Answer(StatusCode),
    /// The attempt's own timeout ran out.
    Timeout,
    /// The limiter refused it; it was not sent.
    Refused,
    /// It failed before anything could reach the server.
    NotSent,
    /// It failed, and the server may have processed it.
    Failed,
}

/// Why a call made no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The answer is a success.
    Success,
    /// Another attempt would not help: a status such as 404, a refusal, a credential that can't be sent.
    NotRetryable,
    /// Another attempt might help, but the server may have processed the request and its method is not
    /// idempotent.
    NotIdempotent,
    /// The body was over the replay limit, or had not been read whole when the attempt failed.
    NotReplayable,
    /// `max_attempts` attempts were made, or the schedule has no further back-off.
    Exhausted,
    /// The next attempt could not have started within the deadline.
    Deadline,
    /// The server asked for a longer pause than the layer's `max_retry_after`.
    AskedTooLong,
    /// The layer's budget of retries was used up: too many calls have failed lately.
    Budget,
}

impl Ended {
    /// The reason in one word, as it stands in the log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::NotRetryable => "not_retryable",
            Self::NotIdempotent => "not_idempotent",
            Self::NotReplayable => "not_replayable",
            Self::Exhausted => "exhausted",
            Self::Deadline => "deadline",
            Self::AskedTooLong => "asked_too_long",
            Self::Budget => "budget",
        }
    }
}

impl Call {
    /// The call that `extensions` belong to; begins one where there is none.
    pub(crate) fn of(extensions: &mut Extensions) -> Self {
        let deadline = extensions.get().map(|Deadline(deadline)| *deadline);
        if let Some(call) = extensions.get::<Self>() {
            if let Some(deadline) = deadline {
                call.narrow_deadline(deadline);
            }
            return call.clone();
        }
        let state = State { deadline, ..State::default() };
        let shared = Shared { started: clock::now(), state: Mutex::new(state) };
        let call = Self { shared: Arc::new(shared) };
        extensions.insert(call.clone());
        call
    }

    /// The time by which the answer's head must be there, where one was set.
    pub fn deadline(&self) -> Option<Instant> {
        self.shared.state().deadline
    }

    /// The name of the service that is called, where the request id layer was given one.
    pub fn service(&self) -> Option<&'static str> {
        self.shared.state().service
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

    pub(crate) fn started(&self) -> Instant {
        self.shared.started
    }

    /// Sets the deadline, or keeps an earlier one.
    pub(crate) fn narrow_deadline(&self, deadline: Instant) {
        let mut state = self.shared.state();
        state.deadline = Some(state.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Whom it goes to, the call's id, and where the server's own ids are to be looked for.
    pub(crate) fn identify(
        &self,
        service: Option<&'static str>,
        id: HeaderValue,
        server_headers: &Arc<[HeaderName]>,
    ) {
        let mut state = self.shared.state();
        state.service = service;
        state.request_id = Some(id);
        state.server_headers = Arc::clone(server_headers);
    }

    /// Where the server's own ids are looked for.
    pub(crate) fn server_headers(&self) -> Arc<[HeaderName]> {
        Arc::clone(&self.shared.state().server_headers)
    }

    /// Keeps the id that the server has put into an answer; that of an earlier answer stays if it has none. One that is
    /// marked sensitive is none: it repeats the key.
    pub(crate) fn answered(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut state = self.shared.state();
        let mut ids = state.server_headers.iter().filter_map(|name| headers.get(name));
        let id = ids.find(|id| !id.is_sensitive()).cloned();
        if id.is_some() {
            state.server_request_id.clone_from(&id);
        }
        id
    }

    pub(crate) fn add_wait(&self, waited: Duration) {
        let mut state = self.shared.state();
        state.waited = state.waited.saturating_add(waited);
        if let Some(attempt) = state.attempts.last_mut() {
            attempt.waited = attempt.waited.saturating_add(waited);
        }
    }

    pub(crate) fn start_attempt(&self) {
        let started = self.shared.started.elapsed();
        let attempts = &mut self.shared.state().attempts;
        let number = attempts.last().map_or(1, |last| last.number.saturating_add(1));
        attempts.push(Attempt {
            number,
            started,
            waited: Duration::ZERO,
            ended: None,
            outcome: None,
            server_request_id: None,
            asked: None,
            delay: None,
        });
    }

    /// Ends the attempt under way, by an answer with these headers or without one, and returns it.
    pub(crate) fn end_attempt(
        &self,
        outcome: Outcome,
        asked: Option<Duration>,
        answer: Option<&HeaderMap>,
    ) -> Option<Attempt> {
        let server_request_id = answer.and_then(|headers| self.answered(headers));
        let elapsed = self.shared.started.elapsed();
        let mut state = self.shared.state();
        let attempt = state.attempts.last_mut()?;
        attempt.ended = Some(elapsed);
        attempt.outcome = Some(outcome);
        attempt.server_request_id = server_request_id;
        attempt.asked = asked;
        Some(attempt.clone())
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

    pub(crate) fn end(&self, ended: Ended) {
        self.shared.state().ended = Some(ended);
    }
}

impl Report {
    /// The report in an answer; none when no layer that keeps one was in the stack. For an error it is
    /// [`Error::report`](crate::Error::report).
    pub fn of<B>(response: &Response<B>) -> Option<&Self> {
        response.extensions().get()
    }

    /// The name of the service that was called, where the request id layer was given one.
    pub fn service(&self) -> Option<&'static str> {
        self.shared.state().service
    }

    /// The id of the call, as it was sent in the request id header.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.shared.state().request_id.clone()
    }

    /// The id that the server gave its last answer that had one, from the first of the known headers. A header that
    /// repeats the key that was sent, or that is marked sensitive, is none of them.
    pub fn server_request_id(&self) -> Option<HeaderValue> {
        self.shared.state().server_request_id.clone()
    }

    /// The time by which the call was to be over, and how long after its start that is.
    #[cfg(feature = "json")]
    pub(crate) fn deadline(&self) -> Option<(Instant, Duration)> {
        let deadline = self.shared.state().deadline?;
        Some((deadline, deadline.saturating_duration_since(self.shared.started)))
    }

    /// The attempts made, first to last. Empty when no retry layer is in the stack.
    pub fn attempts(&self) -> Vec<Attempt> {
        self.shared.state().attempts.clone()
    }

    /// How many attempts were made.
    pub fn attempt_count(&self) -> usize {
        self.shared.state().attempts.len()
    }

    /// The time that all attempts together waited for the limiter.
    pub fn waited(&self) -> Duration {
        self.shared.state().waited
    }

    /// How long the wait before the next attempt would have been, where it was too long: for the deadline, or longer
    /// than the server may ask. Counted from the end of the last attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        self.shared.state().retry_after
    }

    /// Why no further attempt was made; none while the call runs, and when it was cut off.
    pub fn ended(&self) -> Option<Ended> {
        self.shared.state().ended
    }
}

impl Attempt {
    /// Its number, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// When it started, counted from the start of the call.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// When it ended, counted from the start of the call; none when it was cut off.
    pub fn ended(&self) -> Option<Duration> {
        self.ended
    }

    /// How long it waited for the limiter.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How it ended; none when it was cut off.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// The id that the server gave its answer.
    pub fn server_request_id(&self) -> Option<&HeaderValue> {
        self.server_request_id.as_ref()
    }

    /// The pause that the server asked for in its answer.
    pub fn asked(&self) -> Option<Duration> {
        self.asked
    }

    /// The back-off before the next attempt; none when there was no next one.
    pub fn delay(&self) -> Option<Duration> {
        self.delay.map(|(delay, _)| delay)
    }

    /// Why that back-off had its length.
    pub fn delay_reason(&self) -> Option<DelayReason> {
        self.delay.map(|(_, reason)| reason)
    }
}

impl Shared {
    // A panic while the lock was held leaves plain values behind, all of them usable.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report().fmt_as("Call", f)
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Report", f)
    }
}

impl Report {
    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_struct(name)
            .field("service", &state.service)
            .field("request_id", &state.request_id)
            .field("server_request_id", &state.server_request_id)
            .field("waited", &state.waited)
            .field("attempts", &state.attempts)
            .field("ended", &state.ended)
            .finish()
    }
}
