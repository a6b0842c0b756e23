//! JSON in and out of a [`Client`], behind the feature `json`.

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

/// The longest excerpt of a body, in bytes.
const EXCERPT: usize = 1024;
/// How much of an error's body is read: more than is shown, so that a key at the end of the excerpt is whole.
const READ: usize = 2 * EXCERPT;
/// How long an error's body is read. The excerpt is what arrived by then.
const EXCERPT_TIME: Duration = Duration::from_secs(1);

impl Client {
    /// The largest JSON body that is read: 16 MiB, more than a page of any API and too little to exhaust a process.
    pub const MAX_JSON: usize = 16 * 1024 * 1024;

    /// Sends a GET to `path`, and reads the response's body as JSON. An empty body is read as `null`.
    ///
    /// The request has `accept: application/json`, unless [`StackBuilder::with_header`](crate::stack::StackBuilder::with_header) sets
    /// another `accept`.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - no response arrived,
    /// - the status is not a 2xx,
    /// - the body fails, is larger than [`MAX_JSON`](Self::MAX_JSON), or does not deserialize to `T`.
    ///
    /// The deadline of the call also covers the body: the error of an incomplete body is then
    /// [`JsonError::is_timeout`]. The deadline is the preset's total timeout, or an earlier one in the request. Without
    /// a deadline, only [`with_body_idle_timeout`](crate::stack::StackBuilder::with_body_idle_timeout) bounds a body that
    /// stalls.
    ///
    /// # Cancellation
    ///
    /// Dropping the future drops the call, and the body with its connection.
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

    /// Sends a POST to `path` with `body` as JSON, and reads the response as [`get_json`](Self::get_json) does.
    ///
    /// # Errors
    ///
    /// Returns an error as [`get_json`](Self::get_json) does, and if `body` cannot be serialized. Nothing is sent then.
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

    /// Sends a request, and reads the response as [`get_json`](Self::get_json) does.
    ///
    /// The request keeps its own `accept`. A [`Deadline`](crate::call::Deadline) in its extensions applies if it is
    /// earlier than the preset's total timeout.
    ///
    /// # Errors
    ///
    /// Returns an error as [`get_json`](Self::get_json) does.
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
        let answered = |kind, body: &[u8]| {
            let excerpt = excerpt(body, report.as_ref());
            JsonError { kind, status: Some(status), report, excerpt }
        };
        if !status.is_success() {
            let ends = clock::after(clock::now(), EXCERPT_TIME);
            let ends = deadline.map_or(ends, |(deadline, _)| deadline.min(ends));
            return Err(answered(Kind::Status, &beginning(response.into_body(), ends).await));
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
            Err(error) => return Err(answered(Kind::Body(error), b"")),
        };
        let json: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(json).map_err(|error| answered(Kind::Unreadable(error), &body))
    }
}

/// Returns the beginning of a body as one line, without the keys of the call.
fn excerpt(body: &[u8], report: Option<&Report>) -> String {
    let text = String::from_utf8_lossy(body.get(..READ).unwrap_or(body));
    let mut text = report.map_or_else(|| text.to_string(), |report| report.redact(&text));
    if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= EXCERPT) {
        text.truncate(end);
        text.push_str("...");
    }
    text.replace(char::is_control, " ")
}

/// Reads the beginning of a body, until it fails, ends, or the time is over.
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

/// A JSON call that returned no value. Has the status, the [`Report`], and up to 1 KiB of the body.
///
/// `Display` and `Debug` show no text of the body. [`excerpt`](Self::excerpt) and [`decode_error`](Self::decode_error) do.
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

    /// Returns the error of the call, if no response arrived.
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

    /// Returns whether the deadline of the call or the idle timeout of a 2xx response's body was exceeded.
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

    /// Returns the id of the call, as it was sent.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.report()?.request_id()
    }

    /// Returns the beginning of the response's body as one line, up to 1 KiB.
    ///
    /// Replaces each plain occurrence of the key that the call sent by `[redacted]`. Another encoding of the key, the
    /// credential of a closure or a signature, and everything else that is private remain: check what the server sends before
    /// you log the excerpt.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }

    /// Returns why the body does not deserialize to the type. The message may quote values of the body, the key included.
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
                // Line 0 is an error without a position.
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

/// Shows the message and the chain of causes on one line, because `main` prints it.
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
