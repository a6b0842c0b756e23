//! The timeout of one attempt.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_service::Service;

use super::total::{checked_limit, deadline_exceeded, poll_timer};
use crate::{
    call::{CallContext, Deadline, Phase, extension_beside},
    clock::{self, Instant},
    config::InvalidConfig,
    error::{BoxError, Error, ErrorKind, MaybeRejected},
};

/// Limits the time of one attempt. An attempt also ends at the deadline of its call.
///
/// Below a [retry](crate::retry) layer, each frame of the request's body restarts the time, so that an upload may take
/// longer while it makes progress. After the end of the body, the time limits the wait for the response headers.
///
/// An [`AttemptTimeoutOverride`] in the extensions of a request replaces the limit for this request.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::timeout::AttemptTimeoutLayer;
///
/// // Place this layer inside the retry layer.
/// let attempt = AttemptTimeoutLayer::new(Duration::from_secs(10))?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct AttemptTimeoutLayer {
    limit: Duration,
    /// Whether the timeout belongs to a stack. Only such a timeout records in the call that its timer is set, because
    /// another task than that of the call might poll the attempt of any other timeout.
    is_in_stack: bool,
}

impl AttemptTimeoutLayer {
    /// Creates the layer. An attempt may take at most `limit`.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is zero.
    pub fn new(limit: Duration) -> Result<Self, InvalidConfig> {
        Ok(Self { limit: checked_limit("attempt timeout", limit)?, is_in_stack: false })
    }

    /// Declares that this is the timeout of a stack, which also has a total timeout.
    pub(crate) fn in_stack(self) -> Self {
        Self { is_in_stack: true, ..self }
    }
}

impl<S> Layer<S> for AttemptTimeoutLayer {
    type Service = AttemptTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AttemptTimeout { inner, layer: *self }
    }
}

/// Replaces the limit of the [`AttemptTimeoutLayer`] for one request. Insert an `AttemptTimeoutOverride` into the
/// request's extensions. It applies to each attempt of the request.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::timeout::AttemptTimeoutOverride;
///
/// let mut request = http::Request::get("https://api.example.com/v1/export").body(())?;
/// // This endpoint is slow.
/// request.extensions_mut().insert(AttemptTimeoutOverride::new(Duration::from_secs(45))?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// See [time limits of one call](crate::guide::timeouts#time-limits-of-one-call).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptTimeoutOverride(Duration);

impl AttemptTimeoutOverride {
    /// Creates the override. Each attempt may take at most `limit`, which may be longer or shorter than the limit of
    /// the layer.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is zero.
    pub fn new(limit: Duration) -> Result<Self, InvalidConfig> {
        Ok(Self(checked_limit("attempt timeout", limit)?))
    }
}

/// The service of [`AttemptTimeoutLayer`].
///
/// # Errors
///
/// Returns an error with [`Error::is_timeout`] if the attempt took too long. Otherwise returns the inner service's
/// error.
#[derive(Debug, Clone)]
pub struct AttemptTimeout<S> {
    inner: S,
    layer: AttemptTimeoutLayer,
}

impl<S> AttemptTimeout<S> {
    inner_service!();
}

impl<S, B, R> Service<Request<B>> for AttemptTimeout<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = AttemptTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_readiness)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request.extensions().get::<CallContext>().cloned();
        let (start, deadline) = (clock::now(), Deadline::of(call.as_ref(), request.extensions()));
        call.iter().for_each(CallContext::begin_watch);
        let own: Option<&AttemptTimeoutOverride> = extension_beside(call.as_ref(), request.extensions());
        let limit = own.map_or(self.layer.limit, |AttemptTimeoutOverride(limit)| *limit);
        let attempt = Attempt { layer: AttemptTimeoutLayer { limit, ..self.layer }, start, deadline, call };
        let future = match deadline.filter(|deadline| start > *deadline) {
            Some(deadline) => MaybeRejected::rejected(attempt.deadline_exceeded(deadline).not_sent()),
            None => MaybeRejected::Calling { future: self.inner.call(request) },
        };
        AttemptTimeoutFuture { future, attempt, timer: None }
    }
}

pin_project! {
    /// The future of [`AttemptTimeout`].
    #[derive(Debug)]
    pub struct AttemptTimeoutFuture<F> {
        #[pin]
        future: MaybeRejected<F>,
        attempt: Attempt,
        // Created only if the attempt has to wait. Boxed, because a timer is large.
        timer: Option<Pin<Box<Sleep>>>,
    }
}

/// Until this value is dropped, the transport records the phase of the attempt in the call.
#[derive(Debug)]
struct Attempt {
    layer: AttemptTimeoutLayer,
    start: Instant,
    deadline: Option<Instant>,
    call: Option<CallContext>,
}

impl Attempt {
    /// Returns when the attempt timeout expires. The time for the response counts from when the request was handed to a
    /// connection, and each frame of the request's body restarts it. Only the deadline limits the wait for a connection
    /// that other requests use. During that wait, returns when the timeout would expire if the request were sent now.
    fn own_end(&self) -> Instant {
        let limit = self.layer.limit;
        let Some(call) = &self.call else { return clock::after(self.start, limit) };
        let start = match call.phase() {
            Phase::Waiting => clock::now(),
            Phase::Sent(since_start) => clock::after(call.started(), since_start),
            Phase::Unknown | Phase::Connecting => self.start,
        };
        clock::after(call.body_progress().max(start), limit)
    }

    /// Waits until the attempt expires. Returns its error.
    ///
    /// The timer is also set while the request waits for its connection, because another task may send the request
    /// without waking this one.
    fn poll_expiry(&self, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> Poll<Error> {
        let own = self.own_end();
        let deadline = self.deadline.filter(|deadline| *deadline <= own);
        if let Some(call) = self.call.as_ref().filter(|_| self.layer.is_in_stack) {
            call.set_timed();
        }
        poll_timer(timer, deadline.unwrap_or(own), cx)
            .map(|()| deadline.map_or_else(|| self.timed_out(), |deadline| self.deadline_exceeded(deadline)))
    }

    fn timed_out(&self) -> Error {
        let limit = self.layer.limit;
        match self.call.as_ref().is_some_and(CallContext::abandon) {
            true => Error::not_connected_within(limit),
            false => Error::new(ErrorKind::AttemptTimeout, Some(limit), None),
        }
    }

    /// Without a call, the time limit in the error counts from the start of the attempt.
    fn deadline_exceeded(&self, deadline: Instant) -> Error {
        let limit = deadline.saturating_duration_since(self.start);
        let without_call = || Error::new(ErrorKind::Deadline, Some(limit), None);
        self.call.as_ref().map_or_else(without_call, |call| deadline_exceeded(call, deadline))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.call.iter().for_each(CallContext::end_watch);
    }
}

impl<F, R, E> Future for AttemptTimeoutFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // Polls the inner future before the timer, so that an available response is returned even if the task is polled
        // late.
        let mut result = match this.future.as_mut().poll(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => {
                let error = ready!(this.attempt.poll_expiry(this.timer, cx));
                this.attempt.call.as_ref().inspect(|call| call.expire());
                this.future.complete();
                Err(error)
            }
        };
        if let (Err(error), Some(call)) = (&mut result, this.attempt.call.as_ref()) {
            error.add_report(call);
        }
        Poll::Ready(result)
    }
}
