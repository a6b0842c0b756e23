use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, StatusCode, Version, header::CONTENT_LENGTH, response};

use super::{
    error::{Kind, ResponseError},
    excerpt::{EXCERPT_TIME, beginning, excerpt},
    outer_call::OuterCall,
    service::Client,
    settings::{BoxFuture, Settings},
};
use crate::{
    body::{Body, BodyTooLarge, BrokenBody, BrokenResponse},
    call::{CallContext, RecordedHead, Report},
    clock,
    error::{BoxError, Error, ErrorKind, polled_after_completion, take_once},
    limit::Settlement,
    request_id::RequestId,
};

/// The response to a call of a [`Client`](crate::Client). It may have any status.
///
/// ```no_run
/// # async fn call(client: tower_outbound::Client) -> Result<(), tower_outbound::client::ResponseError> {
/// let response = client.get("/orders").await?;
/// if let Some(report) = response.report() {
///     println!("{}: {report}", response.status());
/// }
/// let text = response.error_for_status().await?.text().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Reading the body
///
/// [`text`](Self::text), [`bytes`](Self::bytes) and `json` (with the feature `json`) read the whole body. They return a
/// [`ResponseError`] if
///
/// - the body fails, for example because the connection breaks, and no [retry](#retries) succeeds;
/// - the body has more than [`MAX_BODY`](Self::MAX_BODY) bytes;
/// - the deadline of the call passes before the end of the body. The deadline is the [timeout of the
///   request](super::RequestBuilder::timeout), otherwise the total timeout of the client. If an outer layer has made or
///   stored the response, the total timeout counts from the start of the read. A call without a deadline is bounded
///   only by [`with_body_idle_timeout`](crate::stack::StackBuilder::with_body_idle_timeout).
///
/// [`into_body`](Self::into_body) returns the body as a stream, without these limits and without retries.
///
/// # Retries
///
/// `text`, `bytes` and `json` retry an idempotent request if the body of its 2xx response breaks or stalls: see [broken
/// response bodies](crate::retry#broken-response-bodies). They return the body of the later response, whose headers may
/// differ from [`headers`](Self::headers). The response keeps the body of the request in memory for these retries.
///
/// [Outer layers](crate::stack::StackBuilder::with_outer_layer) see neither these retries nor the later response. The
/// methods do not retry if an outer layer
///
/// - has sent several requests, as after a redirect;
/// - has removed the extensions of the request or of the response;
/// - has wrapped or replaced the body of the response, as a cache or tower-http's `Trace` does;
/// - has returned a stored response. The deadline of the call that it was stored from does not limit its body.
///
/// # Cancellation
///
/// Over HTTP/1.1, the connection is closed if the response, or the future that reads its body, is dropped before the
/// end of the body.
pub struct Response {
    inner: http::Response<Body>,
    sent: Sent,
}

impl Response {
    /// The maximum size of a body that is read as a whole: 16 MiB. This is larger than a page of any API, but too small
    /// to exhaust the memory of a process. To read a larger body, use [`into_body`](Self::into_body).
    pub const MAX_BODY: usize = 16 * 1024 * 1024;

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.inner.status()
    }

    /// Returns the headers.
    pub fn headers(&self) -> &HeaderMap {
        self.inner.headers()
    }

    /// Returns the HTTP version.
    pub fn version(&self) -> Version {
        self.inner.version()
    }

    /// Returns the extensions, which contain the [`Report`] and the values that custom layers have inserted.
    pub fn extensions(&self) -> &Extensions {
        self.inner.extensions()
    }

    /// Returns the report of the call's attempts. The response of a client always has one, unless a custom service
    /// below it removes the extensions, or an outer layer has made the response.
    pub fn report(&self) -> Option<&Report> {
        Report::from_response(&self.inner)
    }

    /// Returns the settlement of a request that takes amounts of other units, such as tokens. Settle it if only the
    /// caller knows the actual amounts. [`with_meter`](crate::limit::RateLimitLayer::with_meter) reads them from the
    /// body instead.
    ///
    /// ```no_run
    /// use tower_outbound::limit::{Amounts, Unit};
    ///
    /// # async fn call(client: tower_outbound::Client) -> Result<(), tower_outbound::BoxError> {
    /// let call = client.post("/embeddings").extension(Amounts::of(Unit::Tokens, 1_200)).body("a text");
    /// let response = call.await?.error_for_status().await?;
    /// // The methods that read the body take the response.
    /// let settlement = response.settlement().cloned();
    /// let tokens = response.text().await?.split_whitespace().count();
    /// if let Some(settlement) = settlement {
    ///     settlement.settle(Amounts::of(Unit::Tokens, tokens.try_into()?));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Retries
    ///
    /// After a [retry of the body](Self#retries), an earlier settlement belongs to the attempt whose body broke.
    pub fn settlement(&self) -> Option<&Settlement> {
        self.extensions().get()
    }

    /// Returns the response if its status is a 2xx.
    ///
    /// # Errors
    ///
    /// Returns an error for any other status. The error contains the status, the report and up to 1 KiB of the body.
    /// The body is read for at most 1 s, and only until the call's deadline. So that the connection can be reused, the
    /// rest of the body is drained, up to 64 KiB and for at most 100 ms.
    pub async fn error_for_status(self) -> Result<Self, ResponseError> {
        if self.status().is_success() {
            return Ok(self);
        }
        Err(self.sent.status_error(self.inner).await)
    }

    /// Reads the body as text. Bytes that are not UTF-8 are replaced by `�`. A byte order mark (BOM) at the start is
    /// skipped.
    ///
    /// # Errors
    ///
    /// Returns an error as [described above](Self#reading-the-body).
    pub async fn text(self) -> Result<String, ResponseError> {
        let bytes = self.bytes().await?;
        Ok(String::from_utf8_lossy(without_bom(&bytes)).into_owned())
    }

    /// Reads the body.
    ///
    /// # Errors
    ///
    /// Returns an error as [described above](Self#reading-the-body).
    pub async fn bytes(mut self) -> Result<Bytes, ResponseError> {
        // Most bodies have arrived with the headers.
        if let Some(bytes) = self.inner.body_mut().arrived(Self::MAX_BODY) {
            return Ok(bytes);
        }
        let Self { mut inner, sent } = self;
        loop {
            let (head, body) = inner.into_parts();
            let read = body.bytes_up_to(Self::MAX_BODY);
            match until_deadline(sent.report(head.extensions.get()), read, BoxError::from).await {
                Ok(bytes) => return Ok(bytes),
                // Boxed, because few bodies break, and every future of this function would contain the inner future.
                Err(error) => inner = Box::pin(sent.retry(head, error)).await?,
            }
        }
    }

    /// Returns the body.
    pub fn into_body(self) -> Body {
        self.inner.into_body()
    }

    /// Converts the response to an [`http::Response`].
    pub fn into_http(self) -> http::Response<Body> {
        self.inner
    }
}

/// Shows neither the headers nor the body, because they may contain secrets.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Response");
        debug.field("status", &self.status()).field("report", &self.report()).finish_non_exhaustive()
    }
}

/// Waits for `result` until the deadline of its call. `convert` converts the error of the deadline.
pub(super) async fn until_deadline<T, E>(
    report: Option<&Report>,
    result: impl Future<Output = Result<T, E>>,
    convert: fn(Error) -> E,
) -> Result<T, E> {
    let Some((ends, limit)) = report.and_then(Report::deadline) else { return result.await };
    tokio::time::timeout_at(ends, result).await.unwrap_or_else(|_| {
        let mut error = Error::new(ErrorKind::Deadline, Some(limit), None);
        report.into_iter().for_each(|report| error.set_report(report.clone()));
        Err(convert(error))
    })
}

/// Returns the body without a UTF-8 byte order mark at its start.
pub(super) fn without_bom(body: &[u8]) -> &[u8] {
    body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)
}

/// The future of a request that a [`Client`](crate::Client) sends.
///
/// # Cancellation
///
/// Dropping the future cancels the call. Nothing continues in the background.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture {
    /// `None` after completion.
    running: Option<(BoxFuture, Sent)>,
}

/// The settings and the request of a call.
struct Sent {
    settings: Arc<Settings>,
    /// `None` if the request cannot be retried after the body of its response broke.
    request: Option<KeptRequest>,
    outer: Option<Arc<OuterCall>>,
}

impl Sent {
    /// Returns the report whose deadline limits the body of a response. `given` is the report of the response.
    fn report<'a>(&'a self, given: Option<&'a Report>) -> Option<&'a Report> {
        self.outer.as_ref().map_or(given, |outer| Some(outer.report_of_body(given)))
    }

    /// Returns the error for a status other than 2xx.
    async fn status_error(&self, response: http::Response<Body>) -> ResponseError {
        let (head, body) = response.into_parts();
        let report = Report::from_extensions(&head.extensions);
        let ends = clock::after(clock::now(), EXCERPT_TIME);
        let deadline = self.report(report).and_then(Report::deadline);
        let ends = deadline.map_or(ends, |(deadline, _)| deadline.min(ends));
        let excerpt = excerpt(&beginning(body, ends).await, report);
        ResponseError { kind: Kind::Status, status: Some(head.status), report: report.cloned(), excerpt }
    }

    /// Runs the stack again after the body of a response broke. Returns the response of the next attempt.
    async fn retry(
        &self,
        response: response::Parts,
        error: BoxError,
    ) -> Result<http::Response<Body>, ResponseError> {
        let (status, report) = (response.status, Report::from_extensions(&response.extensions).cloned());
        let result = match &self.request {
            // The body of an error response is not retried.
            Some(request) if status.is_success() && !error.is::<BodyTooLarge>() => {
                request.retry(&self.settings, response, error).await
            }
            _ => Err(Error::of_body(error)),
        };
        match result {
            Ok(response) if response.status().is_success() => Ok(response),
            // The caller has seen a 2xx, and expects its body.
            Ok(response) => Err(self.status_error(response).await),
            Err(error) => {
                Err(error.into_body_error().map_or_else(ResponseError::from, |error| ResponseError {
                    kind: Kind::Body(error),
                    status: Some(status),
                    report,
                    excerpt: String::new(),
                }))
            }
        }
    }
}

impl ResponseFuture {
    pub(super) fn new(client: Client, request: Result<Request<Body>, Error>) -> Self {
        let settings = client.inner.current.get();
        let kept = request.as_ref().ok().filter(|_| client.inner.outer.is_none()).map(KeptRequest::of);
        let (call, outer) = client.run(&settings, request);
        Self { running: Some((call, Sent { settings, request: kept, outer })) }
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((call, _)) = &mut self.running else { polled_after_completion() };
        let result = ready!(call.as_mut().poll(cx));
        let (_, mut sent) = take_once(&mut self.running);
        if let (Some(outer), Ok(response)) = (&sent.outer, &result) {
            sent.request = outer.take_kept(response);
        }
        Poll::Ready(result.map(|inner| Response { inner, sent }))
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

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

    /// Runs the stack again. The retry layer either sends the request, as the next attempt of the same call, or returns
    /// the error of the body.
    async fn retry(
        &self,
        settings: &Settings,
        response: response::Parts,
        error: BoxError,
    ) -> Result<http::Response<Body>, Error> {
        let error = Error::of_body(error);
        let report = Report::from_extensions(&response.extensions);
        // If an outer layer sent several requests, or one without its extensions, the stack would take the next one for
        // a new call.
        let Some(report) = report.filter(|report| !report.is_after_processing()) else { return Err(error) };
        let (call, id) = (CallContext::reported_by(report), report.request_id());
        let mut request = self.head.request(Some(&call), self.body.clone().unwrap_or_default().into());
        if self.body.is_none() {
            // The request is not sent. With the length of its body, the stack would reject it.
            request.headers_mut().remove(CONTENT_LENGTH);
        }
        let broken = BrokenResponse { head: response, is_replayable: self.body.is_some() };
        let extensions = request.extensions_mut();
        extensions.insert(BrokenBody::new(broken, error));
        id.map(|id| extensions.insert(RequestId(id)));
        (settings.stack)(request).await
    }
}
