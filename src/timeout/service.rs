use std::task::{Context, Poll};

use http::{Extensions, Request, Response};
use tower_service::Service;

use super::{
    ResponseFuture,
    future::{Expiry, Watched},
    limit::{Limit, Position},
};
use crate::{
    call::{CallContext, Deadline, RequestTimeout, extension_beside},
    clock,
    error::{BoxError, Error, ErrorKind, LeakedOnPanic, MaybeRejected},
};

/// The service of [`TimeoutLayer`](super::TimeoutLayer).
///
/// # Errors
///
/// Returns an error with [`Error::is_timeout`] if the call or attempt took too long. Otherwise returns the inner
/// service's error.
#[derive(Debug, Clone)]
pub struct Timeout<S> {
    inner: S,
    limit: Limit,
}

impl<S> Timeout<S> {
    pub(super) fn new(inner: S, limit: Limit) -> Self {
        Self { inner, limit }
    }

    inner_service!();
}

impl<S, B, R> Service<Request<B>> for Timeout<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request.extensions().get::<CallContext>();
        if self.limit.kind == ErrorKind::Deadline && call.is_none() {
            return self.call(CallContext::started_with(request));
        }
        let (expiry, expired) = self.expiry(call, request.extensions());
        if expired {
            return ResponseFuture::rejected(expiry);
        }
        self.call_until(expiry, request)
    }
}

impl<S> Timeout<S> {
    #[inline(never)]
    fn call_until<B>(&mut self, expiry: Expiry, request: Request<B>) -> ResponseFuture<S::Future>
    where
        S: Service<Request<B>>,
    {
        if self.limit.kind != ErrorKind::Deadline {
            // The transport may be inside. If it panics, the call with its keys must not leak.
            let future = MaybeRejected::Calling { future: self.inner.call(request) };
            return ResponseFuture { future, expiry };
        }
        let expiry = LeakedOnPanic::new(expiry);
        ResponseFuture {
            future: MaybeRejected::Calling { future: self.inner.call(request) },
            expiry: LeakedOnPanic::into_inner(expiry),
        }
    }

    /// Returns when the request expires, and whether it has already expired.
    fn expiry(&self, call: Option<&CallContext>, extensions: &Extensions) -> (Expiry, bool) {
        let is_attempt = self.limit.kind != ErrorKind::Deadline;
        // In a stack, the retry layer inside the total timeout reads the clock and rejects an expired call.
        let now = (self.limit.position != Position::StackTotal).then(clock::now);
        let (start, deadline) = match call {
            Some(call) if !is_attempt => {
                if let Some(given) = Deadline::in_extensions(Some(call), extensions) {
                    call.narrow_deadline(given, "deadline");
                }
                let (own, setting) = match extension_beside(Some(call), extensions) {
                    Some(RequestTimeout(own)) => (*own, "timeout of the request"),
                    // The time limit of a call begins when the call starts.
                    None => (clock::after(call.started(), self.limit.duration()), "total timeout"),
                };
                (call.started(), Some(call.narrow_deadline(own, setting)))
            }
            _ => (now.unwrap_or_else(clock::now), Deadline::of(call, extensions)),
        };
        let watched = call.map(|call| Watched::new(call, is_attempt));
        let expiry = Expiry { limit: self.limit, start, deadline, call: watched, timer: None };
        let is_over = now.zip(expiry.ends().1).is_some_and(|(now, ends)| now > ends);
        (expiry, is_over)
    }
}
