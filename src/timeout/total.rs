//! The timeout of a whole call.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    call::{CallContext, DeadlineSetting, RequestTimeout, StopReason, extension_beside},
    clock::{self, Instant},
    config::InvalidConfig,
    error::{BoxError, Error, ErrorKind, MaybeRejected},
    telemetry::{self, OrderWarning},
};

/// Limits the time of a call up to the response headers. Sets one deadline for all inner layers, unless the call
/// already has an earlier deadline.
///
/// The time counts from the start of the call, which may be in an outer layer such as
/// [`RequestIdLayer`](crate::request_id::RequestIdLayer). The
/// [timeout of a client's request](crate::guide::timeouts#time-limits-of-one-call) replaces the limit.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::timeout::TotalTimeoutLayer;
///
/// // Place this layer outside the retry layer.
/// let total = TotalTimeoutLayer::new(Duration::from_secs(60))?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[derive(Debug, Clone)]
pub struct TotalTimeoutLayer {
    limit: Duration,
    order_warning: Arc<OrderWarning>,
    /// Whether the timeout belongs to a stack. It then sets no timer while the attempt timeout of the stack waits. Any
    /// other total timeout always sets one, because an inner layer might drop an attempt without waking the task.
    is_in_stack: bool,
}

impl TotalTimeoutLayer {
    /// Creates the layer. A call may take at most `limit`.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is zero.
    pub fn new(limit: Duration) -> Result<Self, InvalidConfig> {
        let limit = checked_limit("total timeout", limit)?;
        Ok(Self { limit, order_warning: Arc::default(), is_in_stack: false })
    }

    /// Declares that this is the timeout of a stack, which also has an attempt timeout.
    pub(crate) fn in_stack(self) -> Self {
        Self { is_in_stack: true, ..self }
    }
}

impl<S> Layer<S> for TotalTimeoutLayer {
    type Service = TotalTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TotalTimeout { inner, layer: self.clone() }
    }
}

/// The service of [`TotalTimeoutLayer`].
///
/// # Errors
///
/// Returns an error with [`Error::is_deadline`] if the call took too long. Otherwise returns the inner service's error.
#[derive(Debug, Clone)]
pub struct TotalTimeout<S> {
    inner: S,
    layer: TotalTimeoutLayer,
}

impl<S> TotalTimeout<S> {
    inner_service!();
}

impl<S, B, R> Service<Request<B>> for TotalTimeout<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = TotalTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_readiness)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let call = CallContext::of(request.extensions_mut());
        if !self.layer.is_in_stack && call.has_waited_without_deadline() {
            telemetry::total_timeout_inside_limit(&call, &self.layer.order_warning);
        }
        let requested: Option<&RequestTimeout> = extension_beside(Some(&call), request.extensions());
        match requested {
            Some((deadline, setting)) => call.narrow_deadline(*deadline, *setting),
            None => call.limit_time(self.layer.limit, DeadlineSetting::TotalTimeout),
        }
        let is_in_stack = self.layer.is_in_stack;
        // In a stack, the retry layer reads the clock and rejects an expired call.
        let deadline = if is_in_stack { None } else { call.deadline() };
        if let Some(deadline) = deadline.filter(|deadline| clock::now() > *deadline) {
            let future = MaybeRejected::rejected(deadline_exceeded(&call, deadline).not_sent());
            return TotalTimeoutFuture { future, call, is_in_stack, timer: None };
        }
        let future = MaybeRejected::Calling { future: self.inner.call(request) };
        TotalTimeoutFuture { future, call, is_in_stack, timer: None }
    }
}

pin_project! {
    /// The future of [`TotalTimeout`].
    #[derive(Debug)]
    pub struct TotalTimeoutFuture<F> {
        #[pin]
        future: MaybeRejected<F>,
        call: CallContext,
        is_in_stack: bool,
        // Created only if the call has to wait. Boxed, because a timer is large, and a stack rarely needs this one.
        timer: Option<Pin<Box<Sleep>>>,
    }
}

impl<F, R, E> Future for TotalTimeoutFuture<F>
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
            // The timer of the stack's attempt timeout ends at the deadline at the latest.
            Poll::Pending if *this.is_in_stack && this.timer.is_none() && this.call.is_timed() => {
                return Poll::Pending;
            }
            Poll::Pending => {
                let Some(deadline) = this.call.deadline() else { return Poll::Pending };
                ready!(poll_timer(this.timer, deadline, cx));
                let error = deadline_exceeded(this.call, deadline);
                this.call.expire();
                this.future.complete();
                Err(error)
            }
        };
        if let Err(error) = &mut result {
            error.add_report(this.call);
        }
        Poll::Ready(result)
    }
}

/// Returns `limit`, or an error if it is zero.
pub(super) fn checked_limit(field: &'static str, limit: Duration) -> Result<Duration, InvalidConfig> {
    if limit.is_zero() {
        return Err(InvalidConfig::new(field, "0ns", "more than zero"));
    }
    Ok(limit)
}

/// Waits until `ends`, which may change. Creates the timer if there is none.
pub(super) fn poll_timer(
    timer: &mut Option<Pin<Box<Sleep>>>,
    ends: Instant,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(ends)));
    if timer.deadline() != ends {
        timer.as_mut().reset(ends);
    }
    timer.as_mut().poll(cx)
}

/// Ends a call at its deadline. Returns the error of the call.
pub(super) fn deadline_exceeded(call: &CallContext, deadline: Instant) -> Error {
    call.end(StopReason::Deadline);
    let limit = deadline.saturating_duration_since(call.started());
    let error = Error::new(ErrorKind::Deadline, Some(limit), None);
    if call.abandon() { error.not_sent() } else { error }
}
