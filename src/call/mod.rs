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

mod attempt;
mod report;

pub use self::attempt::{Attempt, DelayReason, Ended, Outcome};
pub use self::report::Report;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue};

use self::attempt::Attempts;
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

struct Shared {
    started: Instant,
    /// In nanoseconds from the start, and before it, too. Every layer reads it, so it has no lock.
    deadline: AtomicI64,
    state: Mutex<State>,
}

/// No deadline: three centuries, while [`clock::after`] gives one at the most.
const NEVER: i64 = i64::MAX;

#[derive(Default)]
struct State {
    service: Option<&'static str>,
    request_id: Option<HeaderValue>,
    /// The headers in which the server's id is looked for.
    server_headers: Arc<[HeaderName]>,
    server_request_id: Option<HeaderValue>,
    waited: Duration,
    attempts: Attempts,
    /// How many of them were handed on to be sent, by whatever layer they were made.
    handed_on: u32,
    /// Whether the one resend for a key that was replaced is used up, by whatever retry layer.
    rekeyed: bool,
    ended: Option<Ended>,
    retry_after: Option<Duration>,
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
    pub(crate) fn of(call: Option<&Call>, extensions: &Extensions) -> Option<Instant> {
        let own = extensions.get().map(|Self(deadline)| *deadline);
        call.and_then(Call::deadline).into_iter().chain(own).min()
    }

    /// So long from now on.
    pub fn after(left: Duration) -> Self {
        Self(clock::after(clock::now(), left))
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

impl Call {
    /// The call that `extensions` belong to; begins one where there is none.
    pub(crate) fn of(extensions: &mut Extensions) -> Self {
        let call = extensions.get::<Self>().cloned().unwrap_or_else(|| {
            let shared =
                Shared { started: clock::now(), deadline: AtomicI64::new(NEVER), state: Mutex::default() };
            let call = Self { shared: Arc::new(shared) };
            extensions.insert(call.clone());
            call
        });
        if let Some(Deadline(deadline)) = extensions.get() {
            call.narrow_deadline(*deadline);
        }
        call
    }

    /// The time by which the answer's head must be there, where one was set.
    pub fn deadline(&self) -> Option<Instant> {
        self.shared.deadline()
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

    /// Whether that is this call's.
    pub(crate) fn is_told_by(&self, report: &Report) -> bool {
        Arc::ptr_eq(&self.shared, &report.shared)
    }

    pub(crate) fn started(&self) -> Instant {
        self.shared.started
    }

    /// Sets the deadline, or keeps an earlier one, and gives that.
    pub(crate) fn narrow_deadline(&self, deadline: Instant) -> Option<Instant> {
        let offset = self.shared.offset(deadline);
        let earlier = self.shared.deadline.fetch_min(offset, Ordering::AcqRel);
        if earlier < offset { self.shared.deadline() } else { None }
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

    /// Marks what the server gives as its own id and is none, by `is_secret`: no report keeps it then.
    pub(crate) fn hide_ids(&self, headers: &mut HeaderMap, is_secret: impl Fn(&HeaderValue) -> bool) {
        for name in &*self.shared.state().server_headers {
            if let Some(id) = headers.get_mut(name).filter(|id| is_secret(id)) {
                id.set_sensitive(true);
            }
        }
    }

    /// Keeps the id that the server has put into the answer of the call, unless an attempt has seen to it; that of an
    /// earlier answer stays if it has none.
    pub(crate) fn answered(&self, headers: &HeaderMap) {
        let mut state = self.shared.state();
        if state.attempts.last().is_none_or(|attempt| attempt.ended.is_none()) {
            state.keep_id(headers);
        }
    }

    pub(crate) fn add_wait(&self, waited: Duration) {
        let mut state = self.shared.state();
        state.waited = state.waited.saturating_add(waited);
        if let Some(attempt) = state.attempts.last_mut() {
            attempt.waited = attempt.waited.saturating_add(waited);
        }
    }

    pub(crate) fn start_attempt(&self, now: Instant) {
        let started = now.saturating_duration_since(self.shared.started);
        self.shared.state().attempts.start(started);
    }

    /// Ends the attempt under way, by an answer with these headers or without one.
    pub(crate) fn end_attempt(&self, outcome: Outcome, asked: Option<Duration>, answer: Option<&HeaderMap>) {
        let elapsed = self.shared.started.elapsed();
        let mut state = self.shared.state();
        let server_request_id = answer.and_then(|headers| state.keep_id(headers));
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

    pub(crate) fn end(&self, ended: Ended) {
        self.shared.state().ended = Some(ended);
    }
}

impl Shared {
    // A panic while the lock was held leaves plain values behind, all of them usable.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In nanoseconds from the start.
    fn offset(&self, moment: Instant) -> i64 {
        let nanos = |length: Duration| i64::try_from(length.as_nanos()).unwrap_or(NEVER);
        match moment.checked_duration_since(self.started) {
            Some(after) => nanos(after),
            None => -nanos(self.started.saturating_duration_since(moment)),
        }
    }

    fn deadline(&self) -> Option<Instant> {
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
    /// The first id that the server has put into an answer. One that is marked sensitive is none: it repeats the key. A
    /// copy, for a value of a head's is a part of all the bytes that came with it.
    fn keep_id(&mut self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut ids = self.server_headers.iter().filter_map(|name| headers.get(name));
        let id = ids.find(|id| !id.is_sensitive() && id.len() <= Report::MAX_SERVER_REQUEST_ID);
        let id = id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok());
        if id.is_some() {
            self.server_request_id.clone_from(&id);
        }
        id
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report().fmt_as("Call", f)
    }
}
