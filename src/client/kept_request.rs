//! The call of a client, and the request that the client keeps for a retry.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, response};
use pin_project_lite::pin_project;

use crate::{
    body::{Body, BrokenBody, BrokenResponse},
    call::{CallContext, RecordedHead, Report},
    error::{BoxError, Error, polled_after_completion},
    request_id::RequestId,
};

pub(super) type BoxFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// The request of a call. The client keeps it until the body of the response was read.
pub(super) struct KeptRequest {
    head: RecordedHead,
    /// `None` if the body is not in memory. The request is then not retried.
    body: Option<Bytes>,
}

impl KeptRequest {
    pub(super) fn of(request: &Request<Body>) -> Self {
        Self { head: RecordedHead::of(request), body: request.body().in_memory() }
    }

    /// Returns the request for another run of the stack. The retry layer either sends it, as the next attempt of the same
    /// call, or returns the error of the body.
    fn retry(&self, response: response::Parts, error: BoxError) -> Result<Request<Body>, Error> {
        let error = Error::of_body(error);
        let Some(report) = Report::from_extensions(&response.extensions) else { return Err(error) };
        let (call, id) = (CallContext::reported_by(report), report.request_id());
        let mut request = self.head.request(Some(&call), self.body.clone().unwrap_or_default().into());
        let broken = BrokenResponse { head: response, is_replayable: self.body.is_some() };
        let extensions = request.extensions_mut();
        extensions.insert(BrokenBody::new(broken, error));
        id.map(|id| extensions.insert(RequestId(id)));
        Ok(request)
    }
}

/// A call whose service has an erased type.
pub(super) trait Call: Future<Output = Result<Response<Body>, Error>> + Send {
    fn boxed(self: Pin<Box<Self>>) -> BoxFuture;

    /// Returns the request for another run of the stack, after the body of the response broke.
    fn retry(&self, response: response::Parts, error: BoxError) -> Result<Request<Body>, Error>;
}

pin_project! {
    /// The request is stored in the box of the future, so that it needs no allocation.
    pub(super) struct StackCall<F> {
        // `None` after completion.
        #[pin]
        future: Option<F>,
        request: Option<KeptRequest>,
    }
}

impl<F> StackCall<F> {
    #[inline]
    pub(super) fn new(future: F, request: Option<KeptRequest>) -> Self {
        Self { future: Some(future), request }
    }
}

impl<F: Future> Future for StackCall<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else { polled_after_completion() };
        let result = ready!(future.poll(cx));
        this.future.set(None);
        Poll::Ready(result)
    }
}

impl<F> Call for StackCall<F>
where
    F: Future<Output = Result<Response<Body>, Error>> + Send + 'static,
{
    fn boxed(self: Pin<Box<Self>>) -> BoxFuture {
        self
    }

    fn retry(&self, response: response::Parts, error: BoxError) -> Result<Request<Body>, Error> {
        match &self.request {
            Some(request) => request.retry(response, error),
            None => Err(Error::of_body(error)),
        }
    }
}
