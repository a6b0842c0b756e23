//! The service and the steps of its calls: the wait for a permit, the report of the response, and the response body.

use std::{
    fmt,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, StatusCode, header::CONTENT_LENGTH};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    feedback::ResponseInfo,
    future::ResponseFuture,
    layer::{Options, RateLimitLayer, Settings},
    limiter::{PermitCost, PermitRequest, SelectLimiter},
    permit::{InFlight, Permit},
    settlement::Metering,
    shell::acquire::Acquire,
};
use crate::{
    call::{CallContext, Deadline, Report, RequestHead, StopReason, extension_beside},
    clock,
    error::{BoxError, Error, Refusal, polled_after_completion},
    policy::{dialect::LeavesMember, feedback::Reading},
    telemetry::{self, Waiting},
};

/// The service of [`RateLimitLayer`](super::RateLimitLayer).
///
/// # Errors
///
/// Returns an error with [`Error::is_rate_limited`] if the limiter refused the request. Otherwise returns the inner
/// service's error.
///
/// # Cancellation
///
/// Dropping a queued call spends no permit. Dropping a call between the grant and the call of the inner service wastes
/// its permit.
#[derive(Debug, Clone)]
pub struct RateLimit<S, L> {
    inner: S,
    settings: Arc<Settings<L>>,
}

impl<S, L: SelectLimiter + Clone> Layer<S> for RateLimitLayer<L> {
    type Service = RateLimit<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, settings: Arc::new(self.settings.clone()) }
    }
}

impl<S, L> RateLimit<S, L> {
    inner_service!();
}

impl<S, L, B, R> Service<Request<B>> for RateLimit<S, L>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    L: SelectLimiter,
{
    type Response = Response<InFlightBody<R>>;
    type Error = Error;
    type Future = ResponseFuture<S, L, B>;

    /// Always returns ready. The future of each call waits for the permit and for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request.extensions().get::<CallContext>().cloned();
        ResponseFuture::new(self.inner.clone(), Arc::clone(&self.settings), request, call)
    }
}

impl Options {
    /// Returns the `PermitRequest` of a request: its cost, priority, deadline, maximum wait and maximum queue.
    pub(super) fn permit_request(&self, head: RequestHead<'_>, call: Option<&CallContext>) -> PermitRequest {
        let cost = match &self.cost {
            Some(cost) => cost(head),
            None => extension_beside(call, head.extensions).map_or(NonZeroU32::MIN, |PermitCost(cost)| *cost),
        };
        let priority = match &self.priority {
            Some(priority) => priority(head),
            None => extension_beside(call, head.extensions).copied().unwrap_or_default(),
        };
        let mut request = self.bounds.with_cost(cost).with_priority(priority);
        if let Some(estimate) = &self.estimate {
            request = request.with_amounts(estimate(head));
        } else if let Some(amounts) = extension_beside(call, head.extensions) {
            request = request.with_amounts(*amounts);
        }
        match Deadline::of(call, head.extensions) {
            Some(deadline) => request.with_deadline(deadline),
            None => request,
        }
    }
}

/// The wait for a permit.
pub(super) struct Pending {
    acquire: Acquire,
    /// `None` after the wait.
    waiting: Option<Waiting>,
    /// Keeps the request of an expired permit in flight. `None` if no permit has expired.
    pub(super) expired: Option<InFlight<'static>>,
}

impl Pending {
    pub(super) fn new(
        acquire: Acquire,
        call: Option<&CallContext>,
        expired: Option<InFlight<'static>>,
    ) -> Self {
        Self { acquire, waiting: Some(Waiting::begin(call)), expired }
    }

    pub(super) fn poll(
        &mut self,
        call: Option<&CallContext>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Permit<'static>, Refusal>> {
        let granted = ready!(Pin::new(&mut self.acquire).poll(cx));
        let Some(waiting) = self.waiting.take() else { polled_after_completion() };
        waiting.over(call);
        Poll::Ready(granted)
    }
}

/// What a request determines about its response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// Whether the limiter applies the response's rate-limit headers.
    pub(super) is_trusted: bool,
    /// Whether the request is a `HEAD`, whose response has no body.
    pub(super) is_head: bool,
}

/// Inserts the [`Settlement`] of a request with amounts into its response, and settles it if the head has the amounts.
/// Returns the meter of the body.
#[inline]
pub(super) fn settle<R>(
    permit: &mut Permit<'_>,
    options: &Options,
    response: &mut Response<R>,
) -> Option<Box<Metering>> {
    if permit.has_amounts() || options.actual.is_some() || options.meter.is_some() {
        settle_amounts(permit, options, response)
    } else {
        None
    }
}

#[inline(never)]
fn settle_amounts<R>(
    permit: &mut Permit<'_>,
    options: &Options,
    response: &mut Response<R>,
) -> Option<Box<Metering>> {
    let settlement = permit.settlement()?.clone();
    let (status, headers) = (response.status(), response.headers());
    let read = options.actual.as_ref().and_then(|actual| actual(status, headers));
    let meter = options.meter.as_ref().map(|meter| meter(status, headers));
    read.into_iter().for_each(|amounts| settlement.settle(amounts));
    response.extensions_mut().insert(settlement.clone());
    meter.map(|meter| Box::new(Metering::new(meter, settlement)))
}

/// Emits an event, once for each layer, if one permit was used for several attempts. Only an inner retry layer has
/// already ended the call and inserted its report.
#[inline]
pub(super) fn check_order<R>(options: &Options, outcome: &Result<Response<R>, Error>) {
    let report = match outcome {
        Ok(response) => Report::from_response(response),
        Err(error) => error.report().filter(|report| {
            // A timeout that is inside the retry layer also ends the call.
            report.stop_reason().is_some_and(|reason| reason != StopReason::Deadline)
        }),
    };
    if let Some(report) = report.filter(|report| report.attempt_count() > 1) {
        telemetry::retry_inside_limit(report, &options.order_warning);
    }
}

/// Called before a request waits for its permit. Emits an event, once for each layer, if a key may expire during the
/// wait.
#[inline(never)]
pub(super) fn check_auth(options: &Options, head: RequestHead<'_>, call: Option<&CallContext>) {
    if let Some(call) = call.filter(|call| call.has_expiring_key(head.headers)) {
        telemetry::limit_inside_auth(call, &options.auth_warning);
    }
}

/// Reports the response to the limiter. The request stays in flight until its body ends, unless it ends with the head.
#[inline]
pub(super) fn complete<'a, R>(
    mut permit: Permit<'a>,
    expected: Expected,
    options: &Options,
    call: Option<&CallContext>,
    response: &mut Response<R>,
) -> InFlight<'a> {
    let mut may_be_marked = true;
    if expected.is_trusted {
        let reading = Reading::of(&options.dialect, response, clock::wall);
        may_be_marked = reading.has_limits();
        if may_be_marked || !permit.end_ordinary() {
            report(&mut permit, &ResponseInfo::of_call(reading, call), call);
        }
    } else {
        permit.report_unrelated();
    }
    if may_be_marked {
        // The mark is for this limiter only, and not for one of an outer layer.
        response.extensions_mut().remove::<LeavesMember>();
    }
    if options.in_flight_until_head
        || permit.counts_in_flight() && (expected.is_head || has_no_body(response))
    {
        permit.release();
        return InFlight::none();
    }
    InFlight::new(permit)
}

#[inline(never)]
fn report(permit: &mut Permit<'_>, info: &ResponseInfo<'_>, call: Option<&CallContext>) {
    let effect = permit.report(info);
    if let Some(pause) = effect.pause.or(info.requested_pause()) {
        telemetry::paused(call, pause, effect.probe_after, None);
    } else if let Some((quota, pause)) = info.rejecting_quota() {
        telemetry::paused(call, pause, None, Some(quota));
    }
    if let Some(learned) = effect.learned {
        telemetry::learned(call, learned.rate(), learned.source.as_str());
    }
}

/// Returns whether the head of a response shows that it has no body.
fn has_no_body<R>(response: &Response<R>) -> bool {
    matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || response.headers().get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() == b"0")
        // gRPC's Trailers-Only
        || response.headers().contains_key("grpc-status")
}

pin_project! {
    /// The response body of a [`RateLimit`](super::RateLimit). Its request counts as
    /// [in flight](super::LocalLimiter::with_max_in_flight) until the body has ended.
    ///
    /// # Cancellation
    ///
    /// Dropping the body before its end counts the request as cancelled: see
    /// [`with_hold_after_cancel`](super::LocalLimiter::with_hold_after_cancel).
    ///
    /// # Notes
    ///
    /// - The caller must poll the body once, even if its [`is_end_stream`](Body::is_end_stream) is `true`, unless the
    ///   head shows that the response has no body. Otherwise the request stays in flight. An HTTP/2 response may end
    ///   with its head without `content-length: 0`. A [`Client`](crate::Client) polls the body itself.
    /// - The response to a `HEAD` has no body.
    pub struct InFlightBody<B> {
        #[pin]
        body: B,
        in_flight: InFlight<'static>,
        metering: Option<Box<Metering>>,
    }
}

impl<B> InFlightBody<B> {
    pub(super) fn new(body: B, in_flight: InFlight<'static>, metering: Option<Box<Metering>>) -> Self {
        Self { body, in_flight, metering }
    }

    /// Returns a reference to the inner body.
    pub fn get_ref(&self) -> &B {
        &self.body
    }

    /// Returns the inner body. Its request is no longer in flight, and its
    /// [meter](super::RateLimitLayer::with_meter) reads no more data.
    pub fn into_inner(self) -> B {
        self.in_flight.end();
        self.body
    }

    /// Returns whether the limiter needs to see the body.
    #[cfg(feature = "client")]
    pub(crate) fn is_watched(&self) -> bool {
        self.in_flight.is_counted() || self.metering.is_some()
    }
}

impl<B: Body> Body for InFlightBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let mut body = this.body;
        let frame = ready!(body.as_mut().poll_frame(cx));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let (Some(metering), Some(data)) = (&mut *this.metering, data) {
            metering.read(data);
        }
        if this.in_flight.is_counted() || this.metering.is_some() {
            let is_last = |frame: &Frame<_>| frame.is_trailers() || body.is_end_stream();
            match &frame {
                Some(Err(_)) => *this.in_flight = InFlight::none(),
                Some(Ok(frame)) if !is_last(frame) => {}
                _ => {
                    std::mem::replace(this.in_flight, InFlight::none()).end();
                    this.metering.iter_mut().for_each(|metering| metering.end());
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Shows whether the limiter counts the request, but never the content of the body.
impl<B> fmt::Debug for InFlightBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightBody").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}
