use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, HeaderMap, StatusCode, Version};
use http_body_util::BodyExt;
#[cfg(feature = "json")]
use serde::de::DeserializeOwned;

use super::{
    error::{Kind, ResponseError},
    service::BoxFuture,
};
use crate::{
    body::Body,
    call::Report,
    clock::{self, Instant},
    error::{BoxError, Error, ErrorKind},
};

/// The maximum length of the excerpt of a body, in bytes.
const EXCERPT: usize = 1024;
/// The maximum number of bytes that are read for an excerpt. It is twice the length of the excerpt, so that a key at
/// the end of the excerpt is complete and can be redacted.
const READ: usize = 2 * EXCERPT;
/// The maximum time to read the body of a response with an error status. The excerpt contains the bytes that have
/// arrived by then.
const EXCERPT_TIME: Duration = Duration::from_secs(1);

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
/// - the body fails, for example because the connection breaks;
/// - the body has more than [`MAX_BODY`](Self::MAX_BODY) bytes;
/// - the deadline of the call passes before the end of the body. The deadline is the total timeout of the client, or
///   the [timeout of the request](super::RequestBuilder::timeout) if that is shorter. A call without a deadline is
///   bounded only by [`with_body_idle_timeout`](crate::stack::StackBuilder::with_body_idle_timeout).
///
/// [`into_body`](Self::into_body) returns the body as a stream, without these limits.
///
/// # Cancellation
///
/// Over HTTP/1.1, the connection is closed if the response, or the future that reads its body, is dropped before the
/// end of the body.
pub struct Response {
    inner: http::Response<Body>,
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
    /// below it removes the extensions.
    pub fn report(&self) -> Option<&Report> {
        Report::from_response(&self.inner)
    }

    /// Returns the response if its status is a 2xx.
    ///
    /// # Errors
    ///
    /// Returns an error for any other status. The error contains the status, the report and up to 1 KiB of the body.
    /// The body is read for at most 1 s, and only until the call's deadline.
    pub async fn error_for_status(self) -> Result<Self, ResponseError> {
        if self.status().is_success() {
            return Ok(self);
        }
        let (status, report) = (self.status(), self.report().cloned());
        let ends = clock::after(clock::now(), EXCERPT_TIME);
        let ends = deadline(report.as_ref()).map_or(ends, |(deadline, _)| deadline.min(ends));
        let start = beginning(self.into_body(), ends).await;
        let excerpt = excerpt(&start, report.as_ref());
        Err(ResponseError { kind: Kind::Status, status: Some(status), report, excerpt })
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
    pub async fn bytes(self) -> Result<Bytes, ResponseError> {
        let (status, report) = (self.status(), self.report().cloned());
        let mut read = pin!(self.into_body().collect(Self::MAX_BODY));
        // Most bodies have arrived with the headers, and need no timer.
        let read = match poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await {
            Poll::Ready(read) => read,
            Poll::Pending => match deadline(report.as_ref()) {
                None => read.await,
                Some((ends, limit)) => tokio::time::timeout_at(ends, read)
                    .await
                    .unwrap_or_else(|_| Err(Error::new(ErrorKind::Deadline, Some(limit), None).into())),
            },
        };
        read.map_err(|error: BoxError| ResponseError {
            kind: Kind::Body(error),
            status: Some(status),
            report,
            excerpt: String::new(),
        })
    }

    /// Reads the body, and deserializes it from JSON. An empty body is deserialized as `null`. A byte order mark (BOM)
    /// at the start is skipped, as RFC 8259 §8.1 permits.
    ///
    /// The status is not checked. [`error_for_status`](Self::error_for_status) checks it.
    ///
    /// # Errors
    ///
    /// Returns an error as [described above](Self#reading-the-body), or if the body cannot be deserialized to `T`.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, ResponseError> {
        let (status, report) = (self.status(), self.report().cloned());
        let body = self.bytes().await?;
        let body = without_bom(&body);
        let json = if body.is_empty() { b"null" } else { body };
        serde_json::from_slice(json).map_err(|error| ResponseError {
            kind: Kind::Json(error),
            status: Some(status),
            excerpt: excerpt(body, report.as_ref()),
            report,
        })
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

fn deadline(report: Option<&Report>) -> Option<(Instant, Duration)> {
    report.and_then(Report::deadline)
}

/// Returns the body without a UTF-8 byte order mark at its start.
fn without_bom(body: &[u8]) -> &[u8] {
    body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)
}

/// Returns the first part of a body as one line, with the keys of the call redacted.
fn excerpt(body: &[u8], report: Option<&Report>) -> String {
    let text = String::from_utf8_lossy(body.get(..READ).unwrap_or(body));
    let mut text = report.map_or_else(|| text.to_string(), |report| report.redact(&text));
    if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= EXCERPT) {
        text.truncate(end);
        text.push_str("...");
    }
    text.replace(char::is_control, " ")
}

/// Reads the first part of a body. Stops if the body ends or fails, and at the time `ends`.
async fn beginning(mut body: Body, ends: Instant) -> Vec<u8> {
    let mut start = Vec::new();
    let read = async {
        // Limits the number of frames, because a body may have endless empty frames.
        for _ in 0..READ {
            let Some(Ok(frame)) = body.frame().await else { break };
            start.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if start.len() >= READ {
                break;
            }
        }
    };
    let _ = tokio::time::timeout_at(ends, read).await;
    start
}

/// The future of a request that a [`Client`](crate::Client) sends.
///
/// # Cancellation
///
/// Dropping the future cancels the call. Nothing continues in the background.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture(BoxFuture);

impl ResponseFuture {
    pub(super) fn new(call: BoxFuture) -> Self {
        Self(call)
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map_ok(|inner| Response { inner })
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
