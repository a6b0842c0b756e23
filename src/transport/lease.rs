//! The use of a connection for one request.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{
    TryFutureExt,
    future::{Either, pending},
};
use http::{Request, Response};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use tokio::sync::oneshot;

use super::{
    connection::{Connection, Http1, Http2, RequestBody},
    pool::{Granted, Host},
    upload::{Stream, Upload, UploadBody},
};
use crate::{
    body::{Body, ConnectionBody},
    call::{CallContext, ConnectTimes},
    clock::{self, Instant},
    error::ConnectError,
};

/// How long the rest of an HTTP/1.1 request may stall after the end of its response. Then the connection is closed. It
/// is the default of the attempt timeout, because a socket with full buffers accepts data only every few seconds if the
/// server reads slowly.
const LONGEST_STALL: Duration = Duration::from_secs(10);

/// How long the rest of a request is sent after an error response. The server may not want it (RFC 9112 §9.5).
const REST_AFTER_ERROR: Duration = Duration::from_secs(1);

/// The response headers, or an error with the request if hyper has not begun to send it.
pub(super) type Sent<B> = Result<Response<Incoming>, (hyper::Error, Option<Request<B>>)>;

/// The wait for a connection. If it is cancelled, a connection that was already granted goes back to the pool.
pub(super) struct Waiting<B: RequestBody> {
    host: Arc<Host<B>>,
    granted: oneshot::Receiver<Granted<B>>,
    /// `None` once the call has recorded the wait.
    call: Option<CallContext>,
    since: Instant,
}

impl<B: RequestBody> Waiting<B> {
    pub(super) fn new(
        host: &Arc<Host<B>>,
        granted: oneshot::Receiver<Granted<B>>,
        call: Option<CallContext>,
        since: Instant,
    ) -> Self {
        Self { host: Arc::clone(host), granted, call, since }
    }

    /// Records the time of the wait in the call.
    fn record(&mut self, times: Option<ConnectTimes>) {
        if let Some(call) = self.call.take() {
            call.add_connection(self.since.elapsed(), times);
        }
    }
}

impl<B: RequestBody> Future for Waiting<B> {
    type Output = Result<Lease<B>, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The pool sends a result to each waiter that it removes.
        let granted = ready!(Pin::new(&mut self.granted).poll(cx))
            .unwrap_or_else(|lost| Err(ConnectError::new(crate::error::ConnectPhase::Connect, lost)));
        self.record(granted.as_ref().map_or_else(|error| Some(error.times), |(_, times)| *times));
        Poll::Ready(granted.map(|(connection, _)| Lease::new(&self.host, connection)))
    }
}

impl<B: RequestBody> Drop for Waiting<B> {
    fn drop(&mut self) {
        self.record(None);
        self.granted.close();
        if let Ok(Ok((connection, _))) = self.granted.try_recv() {
            drop(Lease::new(&self.host, connection));
        }
    }
}

/// The use of a connection for one request. Dropping it ends the use: the connection goes back to the pool, or is closed
/// if a response is incomplete.
pub(super) struct Lease<B: RequestBody> {
    host: Arc<Host<B>>,
    connection: Option<Connection<B>>,
    call: Option<CallContext>,
    /// The body of the request, if it is not empty and the connection is an HTTP/2 connection.
    upload: Option<Arc<Upload>>,
    /// When the request was handed to the connection. `None` before that, and after its response.
    waiting_since: Option<Instant>,
    /// Whether a response was begun and has not ended.
    is_open: bool,
    /// Whether the status of the response is 4xx or 5xx.
    is_error: bool,
}

impl<B: RequestBody> Lease<B> {
    pub(super) fn new(host: &Arc<Host<B>>, connection: Connection<B>) -> Self {
        let connection = Some(connection);
        Self {
            host: Arc::clone(host),
            connection,
            call: None,
            upload: None,
            waiting_since: None,
            is_open: false,
            is_error: false,
        }
    }

    pub(super) fn is_http2(&self) -> bool {
        matches!(self.connection, Some(Connection::Http2(_)))
    }

    /// Returns whether the connection has already carried a response.
    pub(super) fn is_reused(&self) -> bool {
        match &self.connection {
            Some(Connection::Http1(connection)) => connection.reused,
            Some(Connection::Http2(connection)) => connection.has_response(),
            None => false,
        }
    }

    /// Keeps further requests from the connection, which has ended.
    pub(super) fn retire(&self) {
        if let Some(Connection::Http2(connection)) = &self.connection {
            connection.retire();
        }
    }

    /// Hands the request to the connection. The future waits for the response headers.
    pub(super) fn send(
        &mut self,
        request: Request<B>,
        call: Option<CallContext>,
        now: Instant,
    ) -> impl Future<Output = Sent<B>> + Send + use<B> {
        self.waiting_since = Some(now);
        self.call = call;
        match &mut self.connection {
            Some(Connection::Http1(connection)) => {
                let sent = connection.sender.try_send_request(request);
                Either::Left(sent.map_err(|mut error| {
                    let returned = error.take_message();
                    (error.into_error(), returned)
                }))
            }
            Some(Connection::Http2(connection)) => {
                if !request.body().is_end_stream() {
                    let (host, connection) = (Arc::clone(&self.host), Arc::clone(connection));
                    self.upload = Some(Upload::new(Stream { host, connection }));
                }
                let upload = self.upload.clone();
                let request = request.map(|body| UploadBody { body, upload });
                // A clone, because only the type of the sender needs `&mut`.
                let sent = connection.sender.clone().try_send_request(request);
                Either::Right(Either::Left(sent.map_err(|mut error| {
                    let returned = error.take_message();
                    (error.into_error(), returned.map(|request| request.map(|upload| upload.body)))
                })))
            }
            // The connection is taken only when the lease is dropped.
            None => Either::Right(Either::Right(pending())),
        }
    }

    /// Records the end of the wait for the response headers.
    pub(super) fn responded(&mut self, sent: &Sent<B>) {
        match (&mut self.connection, sent) {
            (Some(Connection::Http1(connection)), Ok(response)) => {
                connection.read_keep_alive(response.headers());
            }
            (Some(Connection::Http2(connection)), Ok(_)) => connection.received_response(),
            _ => {}
        }
        self.waiting_since = None;
        self.is_open = sent.is_ok();
        let status = sent.as_ref().ok().map(Response::status);
        self.is_error = status.is_some_and(|status| status.is_client_error() || status.is_server_error());
    }

    /// Returns the body of the response. If the body has not ended, it holds the connection until its end.
    pub(super) fn attach(mut self, body: Incoming) -> Body {
        let mut body = ConnectionBody::from(body);
        let complete = match &self.connection {
            // A response without a body has ended, even if its connection is not ready.
            Some(Connection::Http1(connection))
                if connection.sender.is_ready() || HttpBody::is_end_stream(&body) =>
            {
                self.is_open = false;
                return Body::of_connection(body);
            }
            Some(Connection::Http1(_)) => None,
            _ => body.read_ahead(),
        };
        self.is_open = complete.is_none();
        match complete {
            Some(bytes) => bytes.into(),
            None => Body::of_connection(body.with_lease(Box::new(self))),
        }
    }

    /// Returns an HTTP/1.1 connection to the pool, as soon as it can carry another request.
    fn give_back(&self, mut connection: Http1<B>) {
        if connection.is_ready() {
            return self.host.give_back(connection);
        }
        if connection.sender.is_closed() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return connection.driver.abort() };
        let (host, is_error) = (Arc::clone(&self.host), self.is_error);
        let limit = if is_error { REST_AFTER_ERROR } else { LONGEST_STALL };
        runtime.spawn(async move {
            connection.unsent.take_progress();
            let ready = loop {
                match tokio::time::timeout(limit, connection.ready()).await {
                    Ok(ready) => break ready,
                    Err(_) if !is_error && connection.unsent.take_progress() => {}
                    // hyper does not close the connection before it has sent the rest.
                    Err(_) => return connection.driver.abort(),
                }
            };
            if ready.is_ok() {
                host.give_back(connection);
            }
        });
    }

    /// Keeps further requests from a connection on which an attempt or a body timed out. The path may drop all packets.
    fn suspect(&self, connection: &Http2<B>, since: Instant) {
        let middle = since + clock::now().saturating_duration_since(since) / 2;
        if !connection.has_response_since(middle) {
            connection.retire();
        }
    }

    /// Returns the call if a timeout ends the attempt, or the body of its response.
    fn expired_call(&self) -> Option<&CallContext> {
        self.call.as_ref().filter(|call| call.is_expired())
    }
}

impl<B: RequestBody> crate::body::Lease for Lease<B> {
    fn received(&self) {
        if let Some(Connection::Http2(connection)) = &self.connection {
            connection.received_response();
        }
    }

    fn end(mut self: Box<Self>) {
        self.is_open = false;
    }
}

impl<B: RequestBody> Drop for Lease<B> {
    fn drop(&mut self) {
        let waited = self.expired_call().and_then(|call| match self.is_open {
            true => Some(call.body_progress()),
            false => self.waiting_since,
        });
        let is_complete = self.waiting_since.is_none() && !self.is_open;
        match self.connection.take() {
            Some(Connection::Http1(connection)) => {
                if let Some(since) = waited {
                    self.host.close_idle_since(since);
                }
                if is_complete {
                    self.give_back(connection);
                } else {
                    // If only its sender is dropped, hyper first sends the rest of the request.
                    connection.driver.abort();
                }
            }
            Some(Connection::Http2(connection)) => {
                if let Some(since) = waited {
                    self.suspect(&connection, since);
                }
                match self.upload.take() {
                    // The server does not want the rest of the body, or the caller does not want the response. Flow
                    // control may block the rest, which then blocks the bodies of other requests.
                    Some(upload) if self.is_error || !is_complete => {
                        if Arc::strong_count(&upload) > 1 {
                            connection.retire();
                        }
                        upload.cancel();
                    }
                    Some(_) => {}
                    None => self.host.end_stream(&connection),
                }
            }
            None => {}
        }
    }
}
