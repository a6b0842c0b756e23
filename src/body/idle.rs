use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};

use crate::{
    call::CallContext,
    error::{BoxError, Error, ErrorKind, redact},
};

// tower-http's `TimeoutBody` is not used, because it polls its timer before the body. A reader that is polled late then
// loses a frame that has already arrived. `TimeoutBody` also hides the length and the end of the body, and its error
// does not contain the limit.
pin_project! {
    /// A response body that fails if it stalls for longer than its idle timeout.
    ///
    /// A [`BodyIdleTimeout`](crate::timeout::BodyIdleTimeout) returns responses with this body.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] with [`is_timeout`](Error::is_timeout) if the body stalled. The inner body is then dropped,
    /// which closes its connection or resets its stream. Returns the inner body's own error if that body fails.
    pub struct IdleBody<B> {
        // The inner body. `None` after it stalled.
        #[pin]
        body: Option<B>,
        limit: Option<Duration>,
        // The timer is boxed because most bodies never need one.
        timer: Option<Pin<Box<Sleep>>>,
        // Whether the timer is set for the reader's current wait. The timer of an earlier wait is kept, because
        // cancelling it at each frame costs more. At worst, that timer wakes the reader once too often.
        armed: bool,
        // The call of the response, in which a stall is recorded.
        call: Option<CallContext>,
    }
}

impl<B> IdleBody<B> {
    pub(crate) fn new(body: B, limit: Option<Duration>) -> Self {
        Self { body: Some(body), limit, timer: None, armed: false, call: None }
    }

    pub(crate) fn with_call(self, call: Option<CallContext>) -> Self {
        Self { call, ..self }
    }

    /// Replaces the body and keeps the limit.
    #[cfg(feature = "hyper")]
    pub(crate) fn map<C>(self, change: impl FnOnce(B) -> C) -> IdleBody<C> {
        let Self { body, limit, timer, armed, call } = self;
        IdleBody { body: body.map(change), limit, timer, armed, call }
    }

    #[cfg(feature = "hyper")]
    pub(super) fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    #[cfg(feature = "hyper")]
    pub(super) fn with_limit(self, limit: Option<Duration>) -> Self {
        Self { limit, ..self }
    }

    #[cfg(feature = "client")]
    pub(crate) fn get_ref(&self) -> Option<&B> {
        self.body.as_ref()
    }

    #[cfg(feature = "client")]
    pub(super) fn get_mut(&mut self) -> Option<&mut B> {
        self.body.as_mut()
    }

    pub(super) fn into_parts(self) -> (Option<B>, Option<Duration>, Option<CallContext>) {
        (self.body, self.limit, self.call)
    }
}

impl<B> Body for IdleBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let Some(body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        // Polls the body before the timer. A reader that is polled late therefore still gets a frame that has arrived.
        if let Poll::Ready(frame) = body.poll_frame(cx) {
            *this.armed = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(redact)));
        }
        let Some(limit) = *this.limit else { return Poll::Pending };
        if !*this.armed {
            // If the limit is so long that the clock cannot represent its end, no timer is set.
            let Some(ends) = Instant::now().checked_add(limit) else { return Poll::Pending };
            match this.timer {
                Some(timer) => timer.as_mut().reset(ends),
                None => *this.timer = Some(Box::pin(tokio::time::sleep_until(ends))),
            }
            *this.armed = true;
        }
        if let Some(timer) = this.timer {
            ready!(timer.as_mut().poll(cx));
        }
        match this.call {
            Some(call) => call.end_stalled(limit, || this.body.set(None)),
            None => this.body.set(None),
        }
        Poll::Ready(Some(Err(Error::new(ErrorKind::BodyTimeout, Some(limit), None).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// Shows the idle timeout, but never the content of the body.
impl<B> fmt::Debug for IdleBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleBody")
            .field("limit", &self.limit)
            .field("stalled", &self.body.is_none())
            .finish_non_exhaustive()
    }
}
