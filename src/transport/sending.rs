//! The future of one request.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Extensions, Request, Response};
use pin_project_lite::pin_project;

use super::{
    lease::{Lease, Sent, Waiting},
    pool::{Host, Lookup},
    request_body::RequestBody,
};
use crate::{
    body::Body,
    call::{CallContext, Phase},
    clock::{self, Instant},
    error::{Error, take_once},
};

pin_project! {
    /// Waits for a connection, and sends a request on it.
    ///
    /// Written by hand, because an `async` block would store the request three times, 760 bytes in all. The client boxes
    /// this future, and a smaller box costs less.
    pub(super) struct Sending<B: RequestBody, F, S> {
        // The error is `None` after it was returned.
        host: Result<Arc<Host<B>>, Option<Error>>,
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
        Finding { request: Option<Request<B>>, is_returned: bool },
        Waiting { request: Option<Request<B>>, waiting: Waiting<B> },
        // The request has waited for this connection, or in a connection that returned it. Its permit may have expired.
        Renewing { request: Option<Request<B>>, lease: Option<Lease<B>> },
        // `emptied` is the map of the request's extensions, without a value.
        Sent { #[pin] response: F, lease: Option<Lease<B>>, emptied: Extensions },
    }
}

impl<B, F, S> Sending<B, F, S>
where
    B: RequestBody,
    S: FnMut(&mut Lease<B>, Request<B>, Option<CallContext>, Instant) -> F,
{
    pub(super) fn new(host: Result<Arc<Host<B>>, Error>, request: Request<B>, send: S) -> Self {
        let call = request.extensions().get::<CallContext>().cloned();
        let stage = Stage::Finding { request: Some(request), is_returned: false };
        let host = host.map_err(Some);
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
        let host = match this.host {
            Ok(host) => &*host,
            Err(error) => return Poll::Ready(Err(take_once(error))),
        };
        loop {
            // A connection for the request, and the time.
            let (mut request, mut lease, now) = match this.stage.as_mut().project() {
                StageProj::Finding { request, is_returned } => {
                    let now = clock::now();
                    match host.find(now, call) {
                        Lookup::Found(connection) => {
                            let lease = Lease::new(host, connection);
                            if *is_returned {
                                let (request, lease) = (request.take(), Some(lease));
                                this.stage.set(Stage::Renewing { request, lease });
                                continue;
                            }
                            (take_once(request), lease, now)
                        }
                        Lookup::Wait(granted) => {
                            let (request, waiting) = (request.take(), Waiting::new(host, granted, now));
                            this.stage.set(Stage::Waiting { request, waiting });
                            continue;
                        }
                    }
                }
                StageProj::Waiting { request, waiting } => {
                    let granted = ready!(Pin::new(&mut *waiting).poll(cx));
                    if let Some(call) = call {
                        let times = granted.as_ref().ok().and_then(|(_, times)| *times);
                        call.add_connection(waiting.since.elapsed(), times);
                        // The attempt timeout no longer counts the time as that of a connection.
                        call.enter(Phase::Waiting);
                    }
                    let (request, lease) = match granted {
                        Ok((lease, _)) => (request.take(), Some(lease)),
                        Err(error) => return Poll::Ready(Err(Error::from_service(error))),
                    };
                    this.stage.set(Stage::Renewing { request, lease });
                    continue;
                }
                StageProj::Renewing { request, lease } => {
                    if let (Some(call), Some(request)) = (call, &request) {
                        ready!(call.poll_renewed(request, cx));
                    }
                    (take_once(request), take_once(lease), clock::now())
                }
                StageProj::Sent { response, lease, emptied } => {
                    let mut sent = ready!(response.poll(cx));
                    let mut lease = take_once(lease);
                    lease.responded(&sent);
                    // The layers add values to the extensions of a response, and need no new map for them.
                    if let Ok(response) = &mut sent {
                        if response.extensions().is_empty() {
                            *response.extensions_mut() = mem::take(emptied);
                        }
                    }
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
                    if !lease.is_reused() && mem::replace(this.returned_by_new, true) {
                        return Poll::Ready(Err(Error::returned(error.into_error())));
                    }
                    if let Some(call) = call {
                        call.returned();
                    }
                    this.stage.set(Stage::Finding { request: Some(returned), is_returned: true });
                    // The rate limit layer watches only a request that it has seen unsent and pending.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            if let Err(error) = host.target.write_head(&mut request, lease.is_http2()) {
                return Poll::Ready(Err(error));
            }
            if let Some(call) = call {
                call.sent(now);
            }
            // hyper reads extensions of other layers, but not the call.
            let has_others = request.extensions().len() > usize::from(call.is_some());
            let mut emptied =
                if has_others { Extensions::new() } else { mem::take(request.extensions_mut()) };
            emptied.clear();
            let response = (this.send)(&mut lease, request, call.cloned(), now);
            this.stage.set(Stage::Sent { response, lease: Some(lease), emptied });
        }
    }
}
