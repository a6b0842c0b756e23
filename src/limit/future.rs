use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Method, Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    layer::Settings,
    limiter::SelectLimiter,
    permit::{InFlight, Permit},
    service::{Expected, InFlightBody, Pending, check_auth, check_order, complete, settle},
};
use crate::{
    call::{CallContext, RecordedHead, RequestHead},
    clock,
    error::{BoxError, Error, Refusal, polled_after_completion, take_once},
    telemetry,
};

pin_project! {
    /// The future of [`RateLimit`](super::RateLimit): waits for the permit and the inner service, then calls the
    /// service.
    pub struct ResponseFuture<S: Service<Request<B>>, L, B> {
        #[pin]
        state: State<S, B, S::Future>,
        settings: Arc<Settings<L>>,
        call: Option<CallContext>,
    }

    impl<S: Service<Request<B>>, L, B> PinnedDrop for ResponseFuture<S, L, B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let StateProj::Calling { permit: Some(permit), .. } = this.state.project() {
                if this.call.as_ref().is_some_and(CallContext::is_unsent) {
                    mark_unsent(permit);
                }
            }
        }
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        Before { unsent: Unsent<B>, inner: S },
        // `permit` is `None` while `renewal` waits for another permit, and after the future has completed.
        Calling {
            #[pin]
            future: F,
            permit: Option<Permit<'static>>,
            expected: Expected,
            // Boxed, because few requests wait for a connection until their permit has expired.
            renewal: Option<Box<Pending>>,
        },
    }
}

/// A request that has not been sent.
enum Unsent<B> {
    /// The limiter has not been called, or the request is about to be sent. `None` after an error.
    Whole(Option<Request<B>>),
    /// A recorded head with few fields takes less memory than that of a request.
    Waiting(Option<(RecordedHead, B)>, Wait),
}

/// The event that a request waits for.
enum Wait {
    Permit(Pending),
    /// The permit is granted, but the inner service was not ready.
    Service(Option<Permit<'static>>),
}

impl<B> Unsent<B> {
    const COMPLETED: Self = Self::Whole(None);

    /// Records the head of the request, which then waits for the event `until`.
    fn suspend(&mut self, until: Wait) {
        let recorded = match self {
            Self::Whole(request) => {
                let request = take_once(request);
                (RecordedHead::of(&request), request.into_body())
            }
            Self::Waiting(recorded, _) => take_once(recorded),
        };
        *self = Self::Waiting(Some(recorded), until);
    }

    /// Returns the request as the inner service expects it.
    fn whole(&mut self, call: Option<&CallContext>) -> &mut Option<Request<B>> {
        if let Self::Waiting(recorded, _) = self {
            let (head, body) = take_once(recorded);
            *self = Self::Whole(Some(head.request(call, body)));
        }
        match self {
            Self::Whole(request) => request,
            Self::Waiting(..) => polled_after_completion(),
        }
    }
}

impl<S: Service<Request<B>>, L, B> ResponseFuture<S, L, B> {
    pub(super) fn new(
        inner: S,
        settings: Arc<Settings<L>>,
        request: Request<B>,
        call: Option<CallContext>,
    ) -> Self {
        Self { state: State::Before { inner, unsent: Unsent::Whole(Some(request)) }, settings, call }
    }
}

impl<S, L, B, R> Future for ResponseFuture<S, L, B>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    L: SelectLimiter,
{
    type Output = Result<Response<InFlightBody<R>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (call, settings) = (this.call.as_ref(), &**this.settings);
        let mut expired: Option<InFlight<'static>> = None;
        loop {
            let (inner, unsent) = match this.state.as_mut().project() {
                StateProj::Before { unsent, inner } => (inner, unsent),
                StateProj::Calling { mut future, permit, expected, renewal } => {
                    if permit.is_none() && renewal.is_none() {
                        polled_after_completion();
                    }
                    let outcome = loop {
                        if let Poll::Ready(Err(refusal)) = poll_renewal(permit, renewal, call, cx) {
                            break Err(refused(settings, call, refusal));
                        }
                        // Also polled during the renewal, because the attempt timeout watches the deadline.
                        match future.as_mut().poll(cx) {
                            Poll::Ready(outcome) => break outcome.map_err(Error::from_service),
                            Poll::Pending if renewal.is_some() => return Poll::Pending,
                            Poll::Pending => {
                                let Some(head) = call.and_then(|call| call.renewal(cx)) else {
                                    return Poll::Pending;
                                };
                                *renewal = renew(permit, settings, &head, call);
                            }
                        }
                    };
                    *renewal = None;
                    check_order(&settings.options, &outcome);
                    // Without a response, the permit is dropped, which counts its request as unconfirmed.
                    let permit = permit.take();
                    return Poll::Ready(match outcome {
                        Ok(mut response) => {
                            let (in_flight, metering) = match permit {
                                Some(mut permit) => {
                                    let metering = settle(&mut permit, &settings.options, &mut response);
                                    (
                                        complete(permit, *expected, &settings.options, call, &mut response),
                                        metering,
                                    )
                                }
                                None => (InFlight::none(), None),
                            };
                            Ok(response.map(|body| InFlightBody::new(body, in_flight, metering)))
                        }
                        Err(error) => {
                            if let Some(mut permit) = permit.filter(|_| error.proves_not_sent()) {
                                mark_unsent(&mut permit);
                            }
                            Err(error)
                        }
                    });
                }
            };
            // The permit, and whether the inner service was not ready after the grant.
            let (granted, waited) = match unsent {
                Unsent::Whole(request) => {
                    let Some(request) = request else { polled_after_completion() };
                    let head = RequestHead::of(request);
                    let mut permit_request = settings.options.permit_request(head, call);
                    if let Some(expired) = &expired {
                        permit_request = permit_request.renewed(expired.is_counted());
                    }
                    let mut acquire = settings.limiter.acquire_for(head, &permit_request);
                    let Poll::Ready(granted) = Pin::new(&mut acquire).poll(cx) else {
                        if expired.is_none() {
                            check_auth(&settings.options, head, call);
                        }
                        // The clock is read only for a request that has to wait.
                        let pending = Pending::new(acquire, call, expired.take());
                        unsent.suspend(Wait::Permit(pending));
                        return Poll::Pending;
                    };
                    (granted, false)
                }
                Unsent::Waiting(_, Wait::Permit(pending)) => {
                    let granted = ready!(pending.poll(call, cx));
                    expired = pending.expired.take();
                    (granted, false)
                }
                Unsent::Waiting(_, Wait::Service(permit)) => {
                    let Some(permit) = permit.take() else { polled_after_completion() };
                    (Ok(permit), true)
                }
            };
            let mut permit = match granted {
                Ok(permit) => permit,
                Err(refusal) => {
                    *unsent = Unsent::COMPLETED;
                    return Poll::Ready(Err(refused(settings, call, refusal)));
                }
            };
            // A renewed permit replaces an expired one. The metrics have already counted its request.
            let is_renewed = expired.take().map(|expired| expired.hand_over(&permit)).is_some();
            if !waited && !is_renewed {
                telemetry::granted(call);
            }
            let Poll::Ready(ready) = inner.poll_ready(cx) else {
                unsent.suspend(Wait::Service(Some(permit)));
                return Poll::Pending;
            };
            if let Err(error) = ready {
                *unsent = Unsent::COMPLETED;
                return Poll::Ready(Err(Error::from_readiness(error)));
            }
            let request = unsent.whole(call);
            if waited && permit.is_expired() {
                // The permit has expired unused. The request keeps the ready inner service while it waits for another
                // permit, because the service might not be ready again by then.
                expired = Some(InFlight::of_expired(permit));
                continue;
            }
            let Some(head) = request.as_ref().map(RequestHead::of) else { polled_after_completion() };
            let is_trusted = settings.options.feedback_from.as_ref().is_none_or(|trusts| trusts(head));
            let expected = Expected { is_trusted, is_head: head.method == Method::HEAD };
            // Without a wait for the service, the request is sent at the time of the grant, and the clock is not read
            // again.
            permit.mark_sent(if waited { clock::now() } else { permit.granted_at() });
            let future = inner.call(take_once(request));
            this.state.set(State::Calling { future, permit: Some(permit), expected, renewal: None });
        }
    }
}

/// Records that the request was not sent: it is no longer in flight, and its amounts are available again.
fn mark_unsent(permit: &mut Permit<'_>) {
    if permit.counts_in_flight() || permit.has_amounts() {
        permit.mark_unsent();
    }
}

fn refused<L>(settings: &Settings<L>, call: Option<&CallContext>, refusal: Refusal) -> Error {
    telemetry::refused(call, &refusal, &settings.options.refusal_warning);
    Error::refused(refusal)
}

/// Checks the permit of a request that has waited for a connection. Begins to acquire another one if it has expired,
/// because the request would otherwise leave in another window than its permit.
#[inline(never)]
fn renew<L: SelectLimiter>(
    permit: &mut Option<Permit<'static>>,
    settings: &Settings<L>,
    head: &RecordedHead,
    call: Option<&CallContext>,
) -> Option<Box<Pending>> {
    let Some(mut expired) = permit.take_if(|permit| permit.is_expired()) else {
        call.inspect(|call| call.renewed());
        return None;
    };
    let head = head.request(call, ());
    let head = RequestHead::of(&head);
    // The inner layers may have changed what selects the limiter, so its issuer renews the permit.
    let request = settings.options.permit_request(head, call).renewed(expired.counts_in_flight());
    let acquire = expired.renew(request);
    let acquire = acquire.unwrap_or_else(|request| settings.limiter.acquire_for(head, &request));
    Some(Box::new(Pending::new(acquire, call, Some(InFlight::new(expired)))))
}

/// Waits for the other permit, and lets the transport send the request.
fn poll_renewal(
    permit: &mut Option<Permit<'static>>,
    renewal: &mut Option<Box<Pending>>,
    call: Option<&CallContext>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Refusal>> {
    let Some(pending) = renewal else { return Poll::Ready(Ok(())) };
    let granted = ready!(pending.poll(call, cx));
    let expired = renewal.take().and_then(|pending| pending.expired);
    // A refused request must not be sent, even by a transport in a task of its own.
    if granted.is_ok() || !call.is_some_and(CallContext::abandon) {
        call.inspect(|call| call.renewed());
    }
    let mut granted = granted?;
    expired.into_iter().for_each(|expired| expired.hand_over(&granted));
    granted.mark_sent(granted.granted_at());
    *permit = Some(granted);
    Poll::Ready(Ok(()))
}

impl<S: Service<Request<B>>, L, B> fmt::Debug for ResponseFuture<S, L, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Before { unsent: Unsent::Waiting(_, Wait::Service(_)), .. } => "readying",
            State::Before { unsent: Unsent::Whole(None), .. }
            | State::Calling { permit: None, renewal: None, .. } => "completed",
            State::Before { .. } => "acquiring",
            State::Calling { .. } => "calling",
        };
        f.debug_struct("rate_limit::ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
