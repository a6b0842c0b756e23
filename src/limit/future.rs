use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    limiter::SelectLimiter,
    permit::{Permit, ResponseInfo},
    permit_request::PermitRequest,
    queue::acquire::Acquire,
    settings::Settings,
};
use crate::{
    call::{CallContext, RequestHead},
    clock,
    error::{BoxError, Error, polled_after_completion, take_once},
    headers::fields,
    telemetry::{self, Waiting},
};

pin_project! {
    /// The future of [`RateLimit`](super::RateLimit): waits for the permit and the inner service, then calls the
    /// service.
    pub struct ResponseFuture<S: Service<Request<B>>, L, B> {
        #[pin]
        state: State<L, Request<B>, S::Future>,
        inner: S,
        call: Option<CallContext>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<L, Q, F> {
        // `request` is `None` after an error. The request is not moved before the inner service is called.
        Before { settings: Arc<Settings<L>>, bounds: PermitRequest, request: Option<Q>, step: Step },
        // `trusted` is `true` if the limiter applies the response's rate-limit headers. `permit` is `None` after the
        // future has completed.
        Calling { #[pin] future: F, permit: Option<Permit<'static>>, trusted: bool },
    }
}

enum Step {
    // The limiter is called at the first poll. The clock is read only for a request that has to wait. While the request
    // waits, `fields` contains its headers, because a `HeaderMap` of six fields takes 656 bytes.
    Acquiring { acquire: Option<Acquire>, waiting: Option<Waiting>, fields: Option<Box<[u8]>>, renewed: bool },
    // The permit is granted, but the inner service was not ready.
    Readying { permit: Option<Permit<'static>> },
}

impl Step {
    fn acquiring(renewed: bool) -> Self {
        Self::Acquiring { acquire: None, waiting: None, fields: None, renewed }
    }
}

impl<S: Service<Request<B>>, L, B> ResponseFuture<S, L, B> {
    pub(super) fn new(
        inner: S,
        settings: Arc<Settings<L>>,
        bounds: PermitRequest,
        request: Request<B>,
        call: Option<CallContext>,
    ) -> Self {
        let state = State::Before { settings, bounds, request: Some(request), step: Step::acquiring(false) };
        Self { state, inner, call }
    }
}

impl<S, L, B, R> Future for ResponseFuture<S, L, B>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    L: SelectLimiter,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call.as_ref();
        loop {
            let (settings, bounds, request, step) = match this.state.as_mut().project() {
                StateProj::Before { settings, bounds, request, step } => (settings, bounds, request, step),
                StateProj::Calling { future, permit, trusted } => {
                    if permit.is_none() {
                        polled_after_completion();
                    }
                    let outcome = ready!(future.poll(cx)).map_err(Error::from_service);
                    // Without a response, the permit is dropped, which counts its request as unconfirmed.
                    if let (Some(permit), Ok(response)) = (permit.take(), &outcome) {
                        complete(permit, *trusted, call, response);
                    }
                    return Poll::Ready(outcome);
                }
            };
            let Some(unsent) = request.as_mut() else { polled_after_completion() };
            // `waited` is `true` if the inner service was not ready after the grant. Otherwise, the request is sent at
            // the time of the grant, and the clock is not read again.
            let (mut permit, waited) = match step {
                Step::Acquiring { acquire, waiting, fields, renewed } => {
                    let (limiter, head) = (&settings.limiter, RequestHead::of(unsent));
                    let immediate =
                        if acquire.is_none() { limiter.try_acquire_for(head, bounds) } else { None };
                    let outcome = match immediate {
                        Some(outcome) => outcome,
                        None => {
                            let acquire = acquire.get_or_insert_with(|| limiter.acquire_for(head, bounds));
                            let Poll::Ready(outcome) = Pin::new(acquire).poll(cx) else {
                                if waiting.is_none() {
                                    *waiting = Some(Waiting::begin(call));
                                    *fields = fields::encode(unsent.headers());
                                    if fields.is_some() {
                                        *unsent.headers_mut() = HeaderMap::new();
                                    }
                                }
                                return Poll::Pending;
                            };
                            outcome
                        }
                    };
                    if let Some(waiting) = waiting.take() {
                        let waited = waiting.over(call);
                        if let Some(call) = call {
                            call.add_wait(waited);
                        }
                    }
                    match outcome {
                        Ok(permit) => {
                            if let Some(fields) = fields.take() {
                                *unsent.headers_mut() = fields::decode(&fields);
                            }
                            // A renewed permit replaces an expired one. The metrics have already counted its request.
                            if !*renewed {
                                telemetry::granted(call);
                            }
                            (permit, false)
                        }
                        Err(refusal) => {
                            *request = None;
                            telemetry::refused(call, &refusal);
                            return Poll::Ready(Err(Error::refused(refusal)));
                        }
                    }
                }
                Step::Readying { permit } => {
                    let Some(permit) = permit.take() else { polled_after_completion() };
                    (permit, true)
                }
            };
            let Poll::Ready(ready) = this.inner.poll_ready(cx) else {
                *step = Step::Readying { permit: Some(permit) };
                return Poll::Pending;
            };
            if let Err(error) = ready {
                *request = None;
                return Poll::Ready(Err(Error::from_readiness(error)));
            }
            if waited && permit.is_expired() {
                // The permit has expired unused. The request keeps the ready inner service while it waits for another
                // permit, because the service might not be ready again by then.
                *bounds = bounds.admitted();
                *step = Step::acquiring(true);
                continue;
            }
            let trusted =
                settings.feedback_from.as_ref().is_none_or(|trusts| trusts(RequestHead::of(unsent)));
            permit.mark_sent(if waited { clock::now() } else { permit.granted_at() });
            let future = this.inner.call(take_once(request));
            this.state.set(State::Calling { future, permit: Some(permit), trusted });
        }
    }
}

/// Reports the response to the limiter.
#[inline]
fn complete<R>(permit: Permit<'_>, trusted: bool, call: Option<&CallContext>, response: &Response<R>) {
    if !trusted {
        return permit.release();
    }
    let info = ResponseInfo::new(response.status(), response.headers());
    if let Some(pause) = info.requested_pause() {
        telemetry::paused(call, pause);
    }
    if let Some(learned) = permit.complete_and_learn(&info) {
        telemetry::learned(call, learned.rate(), learned.source.as_str());
    }
}

impl<S: Service<Request<B>>, L, B> fmt::Debug for ResponseFuture<S, L, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Before { step: Step::Readying { .. }, .. } => "readying",
            State::Before { .. } => "acquiring",
            State::Calling { permit: Some(_), .. } => "calling",
            State::Calling { .. } => "completed",
        };
        f.debug_struct("rate_limit::ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
