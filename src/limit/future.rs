use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::Limiter;
use crate::{
    call::Call,
    clock::{self, Instant},
    error::{BoxError, Error},
    log,
    policy::feedback,
};

pin_project! {
    /// The future of [`RateLimit`](super::RateLimit): waits for the permit, readies the inner service, calls it.
    pub struct ResponseFuture<S: Service<Request<B>>, L: Limiter, B> {
        #[pin]
        state: State<L::Acquire, S::Future>,
        inner: S,
        limiter: L,
        request: Option<Request<B>>,
        call: Option<Call>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<A, F> {
        // The clock is read only for a request that has to wait.
        Acquiring { #[pin] acquire: A, since: Option<Instant> },
        Readying,
        Calling { #[pin] future: F },
    }
}

impl<S: Service<Request<B>>, L: Limiter, B> ResponseFuture<S, L, B> {
    pub(super) fn new(
        acquire: L::Acquire,
        inner: S,
        limiter: L,
        request: Request<B>,
        call: Option<Call>,
    ) -> Self {
        let state = State::Acquiring { acquire, since: None };
        Self { state, inner, limiter, request: Some(request), call }
    }
}

impl<S, L, B, R> Future for ResponseFuture<S, L, B>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    L: Limiter,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Acquiring { acquire, since } => {
                    let Poll::Ready(outcome) = acquire.poll(cx) else {
                        since.get_or_insert_with(clock::now);
                        return Poll::Pending;
                    };
                    if let Some(since) = since {
                        let waited = since.elapsed();
                        log::waited(waited);
                        if let Some(call) = this.call {
                            call.add_wait(waited);
                        }
                    }
                    outcome.map_err(Error::refused)?;
                    this.state.set(State::Readying);
                }
                StateProj::Readying => {
                    ready!(this.inner.poll_ready(cx)).map_err(Error::from_service)?;
                    let Some(request) = this.request.take() else {
                        // Polled again after it resolved: nothing is left to answer with.
                        return Poll::Pending;
                    };
                    this.state.set(State::Calling { future: this.inner.call(request) });
                }
                StateProj::Calling { future } => {
                    let response = ready!(future.poll(cx)).map_err(Error::from_service)?;
                    if let Some(pause) = pause_asked(&response) {
                        log::paused(pause);
                        this.limiter.pause_until(clock::after(clock::now(), pause));
                    }
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

/// For how long the server wants no further request, from anybody.
fn pause_asked<R>(response: &Response<R>) -> Option<Duration> {
    // On other statuses the header speaks of this one resource: a redirect, a job that is not done yet.
    let throttled =
        matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let asked = throttled.then(|| feedback::retry_after(response.headers(), clock::wall)).flatten()?;
    Some(asked).filter(|asked| !asked.is_zero())
}

impl<S: Service<Request<B>>, L: Limiter, B> fmt::Debug for ResponseFuture<S, L, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Acquiring { .. } => "acquiring",
            State::Readying => "readying",
            State::Calling { .. } => "calling",
        };
        f.debug_struct("rate_limit::ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
