//! The future of one request.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use hyper::{body::Incoming, client::conn::TrySendError};
use pin_project_lite::pin_project;

use super::{
    lease::{Lease, Waiting},
    pool::{Host, Lookup},
    request_body::RequestBody,
};
use crate::{
    body::Body,
    call::CallContext,
    clock::{self, Instant},
    error::{Error, polled_after_completion, take_once},
};

pin_project! {
    /// Waits for a connection, and sends a request on it.
    ///
    /// Written by hand, because an `async` block would store the request three times, 760 bytes in all. The client boxes
    /// this future, and a smaller box costs less.
    pub(super) struct Sending<B: RequestBody, F, S> {
        host: Option<Arc<Host<B>>>,
        call: Option<CallContext>,
        // Hands a request to a connection.
        send: S,
        // Whether a new connection has returned the request.
        returned_by_new: bool,
        #[pin]
        stage: Stage<B, F>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<B: RequestBody, F> {
        Unsent { request: Option<Request<B>>, waiting: Option<Waiting<B>> },
        Sent { #[pin] response: F, lease: Option<Lease<B>> },
        Rejected { error: Option<Error> },
    }
}

/// The response headers, or an error with the request if hyper has not begun to send it.
pub(super) type Sent<B> = Result<Response<Incoming>, TrySendError<Request<B>>>;

impl<B, F, S> Sending<B, F, S>
where
    B: RequestBody,
    S: FnMut(&mut Lease<B>, Request<B>, Option<CallContext>, Instant) -> F,
{
    pub(super) fn new(host: Result<Arc<Host<B>>, Error>, request: Request<B>, send: S) -> Self {
        let call = request.extensions().get::<CallContext>().cloned();
        let (host, stage) = match host {
            Ok(host) => (Some(host), Stage::Unsent { request: Some(request), waiting: None }),
            Err(error) => (None, Stage::Rejected { error: Some(error) }),
        };
        Self { host, call, send, returned_by_new: false, stage }
    }
}

impl<B, F, S> Future for Sending<B, F, S>
where
    B: RequestBody,
    F: Future<Output = Sent<B>>,
    S: FnMut(&mut Lease<B>, Request<B>, Option<CallContext>, Instant) -> F,
{
    type Output = Result<Response<Body>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call.as_ref();
        loop {
            match this.stage.as_mut().project() {
                StageProj::Rejected { error } => return Poll::Ready(Err(take_once(error))),
                StageProj::Unsent { request, waiting } => {
                    let Some(host) = this.host.as_ref() else { polled_after_completion() };
                    let (mut lease, now) = match ready!(lease(host, waiting, call, cx)) {
                        Ok(found) => found,
                        Err(error) => return Poll::Ready(Err(error)),
                    };
                    let mut request = take_once(request);
                    if let Err(error) = host.target.write_head(&mut request, lease.is_http2()) {
                        return Poll::Ready(Err(error));
                    }
                    if let Some(call) = call {
                        call.sent(now);
                    }
                    let response = (this.send)(&mut lease, request, call.cloned(), now);
                    this.stage.set(Stage::Sent { response, lease: Some(lease) });
                }
                StageProj::Sent { response, lease } => {
                    let sent = ready!(response.poll(cx));
                    let mut lease = take_once(lease);
                    lease.responded(&sent);
                    let mut error = match sent {
                        Ok(response) => return Poll::Ready(Ok(response.map(|body| lease.attach(body)))),
                        Err(error) => error,
                    };
                    let Some(returned) = error.take_message() else {
                        return Poll::Ready(Err(Error::from_service(error.into_error())));
                    };
                    // The connection ended before hyper began the request.
                    lease.retire();
                    // A server that closes every new connection must not cause an endless loop.
                    if !lease.is_reused() && std::mem::replace(this.returned_by_new, true) {
                        return Poll::Ready(Err(Error::returned(error.into_error())));
                    }
                    this.stage.set(Stage::Unsent { request: Some(returned), waiting: None });
                }
            }
        }
    }
}

/// Takes a connection, and returns the time. Nothing of the request has been sent before this returns.
fn lease<B: RequestBody>(
    host: &Arc<Host<B>>,
    waiting: &mut Option<Waiting<B>>,
    call: Option<&CallContext>,
    cx: &mut Context<'_>,
) -> Poll<Result<(Lease<B>, Instant), Error>> {
    let waiting = match waiting {
        Some(waiting) => waiting,
        None => {
            let now = clock::now();
            match host.find(now, call) {
                Lookup::Found(connection) => return Poll::Ready(Ok((Lease::new(host, connection), now))),
                Lookup::Wait(granted) => waiting.insert(Waiting::new(host, granted, now)),
            }
        }
    };
    let granted = ready!(Pin::new(&mut *waiting).poll(cx));
    let now = clock::now();
    if let Some(call) = call {
        let times = granted.as_ref().ok().and_then(|(_, times)| *times);
        call.add_connection(now.saturating_duration_since(waiting.since), times);
    }
    Poll::Ready(granted.map(|(lease, _)| (lease, now)).map_err(Error::from_service))
}
