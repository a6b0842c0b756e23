//! JSON requests and responses of a [`Client`], behind the feature `json`.

use std::{fmt, time::Duration};

use http::{HeaderValue, Method, Request, StatusCode, header::ACCEPT};
use http_body_util::BodyExt;
use serde::{Serialize, de::DeserializeOwned};

use super::Client;
use crate::{
    body::{Body, BodyTooLarge},
    call::Report,
    clock,
    error::{BoxError, Error, ErrorKind, write_causes},
    headers,
};

/// The maximum length of the excerpt of a body, in bytes.
const EXCERPT: usize = 1024;
/// How many bytes of an error's body are read: more than the excerpt, so that a key at its end is complete and can be
/// redacted.
const READ: usize = 2 * EXCERPT;
/// How long the body of an error is read. The excerpt contains the bytes that have arrived by then.
const EXCERPT_TIME: Duration = Duration::from_secs(1);

impl Client {
    /// The maximum size of a JSON body: 16 MiB. This is more than a page of any API, and too little to exhaust the
    /// memory of a process.
    pub const MAX_JSON: usize = 16 * 1024 * 1024;

    /// Sends a GET to `path`, and deserializes the response's body from JSON. An empty body counts as `null`.
    ///
    /// The request has the header `accept: application/json`, unless
    /// [`StackBuilder::with_header`](crate::stack::StackBuilder::with_header) sets another `accept`.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - no response arrived,
    /// - the status is not a 2xx,
    /// - the body fails, is larger than [`MAX_JSON`](Self::MAX_JSON), or cannot be deserialized to `T`.
    ///
    /// The call's deadline also covers the body: if the body is incomplete by then, the error is
    /// [`JsonError::is_timeout`]. The deadline is the preset's total timeout, or an earlier one in the request. Without
    /// a deadline, only [`with_body_idle_timeout`](crate::stack::StackBuilder::with_body_idle_timeout) bounds a body
    /// that stalls.
    ///
    /// # Cancellation
    ///
    /// Dropping the future drops the call, its body and its connection.
    ///
    /// ```no_run
    /// #[derive(serde::Deserialize)]
    /// struct Rate {
    ///     code: String,
    /// }
    ///
    /// # async fn call(rates: tower_outbound::Client) {
    /// match rates.get_json::<Rate>("/v1/rates/EUR").await {
    ///     Ok(rate) => println!("{}", rate.code),
    ///     Err(error) if error.status() == Some(http::StatusCode::NOT_FOUND) => println!("no such rate"),
    ///     Err(error) => eprintln!("{error}"),
    /// }
    /// # }
    /// ```
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, JsonError> {
        self.request_json(self.made(Method::GET, path, Body::empty())?).await
    }

    /// Sends a POST to `path` with `body` as JSON, and reads the response like [`get_json`](Self::get_json).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`get_json`](Self::get_json). Also returns an error, without sending anything, if
    /// `body` cannot be serialized.
    ///
    /// ```no_run
    /// # async fn call(mail: tower_outbound::Client) -> Result<(), tower_outbound::client::JsonError> {
    /// let sent: std::collections::HashMap<String, String> =
    ///     mail.post_json("/v1/messages", &[("to", "ann@example.com")]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<T, JsonError> {
        let body =
            serde_json::to_vec(body).map_err(|error| JsonError::new(Kind::Unwritable(error.into())))?;
        self.request_json(self.made(Method::POST, path, body.into())?).await
    }

    /// Sends a request, and reads the response like [`get_json`](Self::get_json).
    ///
    /// An `accept` header of the request is kept. A [`Deadline`](crate::call::Deadline) in its extensions applies if it
    /// is earlier than the preset's total timeout.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`get_json`](Self::get_json).
    pub async fn request_json<T: DeserializeOwned>(
        &self,
        request: Request<impl Into<Body>>,
    ) -> Result<T, JsonError> {
        let mut request = request.map(Into::into);
        if self.accepts_json {
            let json = || HeaderValue::from_static("application/json");
            headers::get_or_insert_with(request.headers_mut(), &ACCEPT, json)?;
        }
        let response = self.request::<Body>(request).await?;
        let (status, report) = (response.status(), Report::from_response(&response).cloned());
        let deadline = report.as_ref().and_then(Report::deadline);
        let response_error = |kind, body: &[u8]| {
            let excerpt = excerpt(body, report.as_ref());
            JsonError { kind, status: Some(status), report, excerpt }
        };
        if !status.is_success() {
            let ends = clock::after(clock::now(), EXCERPT_TIME);
            let ends = deadline.map_or(ends, |(deadline, _)| deadline.min(ends));
            return Err(response_error(Kind::Status, &beginning(response.into_body(), ends).await));
        }
        let read = response.into_body().collect(Self::MAX_JSON);
        let read = match deadline {
            None => read.await,
            Some((ends, limit)) => tokio::time::timeout_at(ends, read)
                .await
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Deadline, Some(limit), None).into())),
        };
        let body = match read {
            Ok(body) => body,
            Err(error) => return Err(response_error(Kind::Body(error), b"")),
        };
        let json: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(json).map_err(|error| response_error(Kind::Unreadable(error), &body))
    }
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

/// Reads the first part of a body, until the body ends or fails, or `ends` has passed.
async fn beginning(mut body: Body, ends: clock::Instant) -> Vec<u8> {
    let mut start = Vec::new();
    let read = async {
        while start.len() < READ {
            let Some(Ok(frame)) = body.frame().await else { break };
            start.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        }
    };
    let _ = tokio::time::timeout_at(ends, read).await;
    start
}

/// The error of a JSON call. It contains the status, the [`Report`], and up to 1 KiB of the body.
///
/// `Display` and `Debug` omit the text of the body. [`excerpt`](Self::excerpt) and [`decode_error`](Self::decode_error)
/// return it.
pub struct JsonError {
    kind: Kind,
    status: Option<StatusCode>,
    report: Option<Report>,
    excerpt: String,
}

enum Kind {
    NoResponse(Error),
    Status,
    Body(BoxError),
    Unreadable(serde_json::Error),
    Unwritable(BoxError),
}

impl JsonError {
    fn new(kind: Kind) -> Self {
        Self { kind, status: None, report: None, excerpt: String::new() }
    }

    /// Returns the call's error, if no response arrived.
    pub fn call(&self) -> Option<&Error> {
        match &self.kind {
            Kind::NoResponse(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the status of the response, if one arrived.
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Returns whether the body is larger than [`Client::MAX_JSON`].
    pub fn is_too_large(&self) -> bool {
        matches!(&self.kind, Kind::Body(error) if error.is::<BodyTooLarge>())
    }

    /// Returns whether the deadline of the call was exceeded, or the idle timeout of a 2xx response's body.
    pub fn is_timeout(&self) -> bool {
        match &self.kind {
            Kind::NoResponse(error) => error.is_timeout(),
            Kind::Body(error) => error.downcast_ref().is_some_and(Error::is_timeout),
            _ => false,
        }
    }

    /// Returns the report of the call's attempts, or `None` if nothing was sent.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref().or_else(|| self.call()?.report())
    }

    /// Returns the id of the call, which is sent in the request id header.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.report()?.request_id()
    }

    /// Returns the first part of the response's body as one line, up to 1 KiB.
    ///
    /// The call's key is replaced by `[redacted]` where it appears in plain text. Other encodings of the key,
    /// credentials from a closure or a signature, and other private data are not removed. Before you log the excerpt,
    /// check what the server sends.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }

    /// Returns why the body cannot be deserialized. The message may quote values of the body, including the key.
    pub fn decode_error(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            Kind::Unreadable(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::NoResponse(error) => write!(f, "no response: {}", error.kind().texts().1),
            Kind::Status => f.write_str("the response is not a success"),
            Kind::Body(_) => f.write_str("the response's body could not be read"),
            Kind::Unreadable(error) => {
                f.write_str("the response's body is not the expected JSON")?;
                // An error without a position has line 0.
                match (error.line(), error.column()) {
                    (0, _) => Ok(()),
                    (line, column) => write!(f, ", at line {line} column {column}"),
                }
            }
            Kind::Unwritable(_) => f.write_str("the request's body could not be serialized as JSON"),
        }?;
        if let Some(status) = self.status {
            write!(f, ", status {status}")?;
        }
        match self.request_id().as_ref().and_then(|id| id.to_str().ok()) {
            Some(id) => write!(f, ", request id {id}"),
            None => Ok(()),
        }
    }
}

/// Writes the message and the causes on one line, because the standard library prints this text if `main` returns the
/// error.
impl fmt::Debug for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Kind::NoResponse(error) = &self.kind {
            return fmt::Debug::fmt(error, f);
        }
        fmt::Display::fmt(self, f)?;
        write_causes(self, f)
    }
}

impl std::error::Error for JsonError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            Kind::NoResponse(error) => Some(error),
            Kind::Body(error) | Kind::Unwritable(error) => Some(&**error),
            Kind::Status | Kind::Unreadable(_) => None,
        }
    }
}

impl From<Error> for JsonError {
    fn from(error: Error) -> Self {
        Self::new(Kind::NoResponse(error))
    }
}
