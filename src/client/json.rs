//! JSON in and out of a [`Client`], behind the feature `json`.

use std::{fmt, time::Duration};

use http::{HeaderValue, Method, Request, StatusCode, header::ACCEPT};
use http_body_util::BodyExt;
use serde::{Serialize, de::DeserializeOwned};

use super::{Client, redact::hide_members};
use crate::{
    auth::{ApiKey, SentKeys},
    body::{Body, BodyTooLarge},
    call::Report,
    clock,
    error::{BoxError, Error, Scope, write_causes},
    headers,
};

/// Most that is shown of a body.
const EXCERPT: usize = 1024;
/// Most that is read of the body of an answer that is no success.
const READ: usize = 2 * EXCERPT;
/// Most that is told of why a body is not what was asked for: the names of a dozen members.
const LONGEST_REASON: usize = 256;
/// The longest that it is waited for: what is there of it by then is shown.
const EXCERPT_TIME: Duration = Duration::from_secs(1);

impl Client {
    /// Most that is read of a JSON answer, 16 MiB: more than APIs page their answers by, less than harms a process.
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
        self.call_json(self.made(Method::GET, path, Body::empty())).await
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
        self.call_json(self.made(Method::POST, path, body.into())).await
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
        let (head, body) = request.into_parts();
        self.call_json(Ok(Request::from_parts(head, body.into()))).await
    }

    async fn call_json<T: DeserializeOwned>(
        &self,
        request: Result<Request<Body>, Error>,
    ) -> Result<T, JsonError> {
        let no_answer = |error| JsonError::new(Kind::NoAnswer(error));
        let mut request = request.map_err(no_answer)?;
        if self.accepts_json {
            let json = || HeaderValue::from_static("application/json");
            headers::get_or_insert_with(request.headers_mut(), &ACCEPT, json)
                .map_err(|error| no_answer(error.into()))?;
        }
        let sent = SentKeys::default();
        request.extensions_mut().insert(sent.clone());
        let response = self.request(request).await.map_err(no_answer)?;
        let sent = sent.all();
        let (status, report) = (response.status(), Report::from_response(&response).cloned());
        let deadline = report.as_ref().and_then(Report::deadline);
        let answered = |kind, excerpt| JsonError { kind, status: Some(status), report, excerpt };
        if !status.is_success() {
            let ends = clock::after(clock::now(), EXCERPT_TIME);
            let ends = deadline.map_or(ends, |(deadline, _)| deadline.min(ends));
            let (start, whole) = beginning(response.into_body(), ends).await;
            return Err(answered(Kind::Status, self.excerpt(&start, whole, &sent)));
        }
        let read = response.into_body().collect(Self::MAX_JSON);
        let read = match deadline {
            None => read.await,
            Some((ends, limit)) => tokio::time::timeout_at(ends, read)
                .await
                .unwrap_or_else(|_| Err(Error::timeout(Scope::Call, limit).into())),
        };
        let body = match read {
            Ok(body) => body,
            Err(error) => return Err(answered(Kind::Body(error), String::new())),
        };
        let json: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(json).map_err(|error| {
            let what = self.shown(without_values(&error).as_bytes(), true, &sent, LONGEST_REASON);
            answered(Kind::Unreadable(what), self.excerpt(&body, true, &sent))
        })
    }

    /// The beginning of a body, or of what was read of it.
    fn excerpt(&self, body: &[u8], whole: bool, sent: &[ApiKey]) -> String {
        self.shown(body, whole, sent, EXCERPT)
    }

    /// The beginning of what may quote an answer, as one line of text, without what is known to be secret.
    fn shown(&self, text: &[u8], whole: bool, sent: &[ApiKey], most: usize) -> String {
        // Hidden before it is cut to what is shown, or half of a key would be left at the end.
        let read = String::from_utf8_lossy(text.get(..READ).unwrap_or(text));
        let cut = !whole || text.len() > READ;
        let mut shown = hide_members(&self.redacted_answer(&read, sent, cut));
        if let Some((end, _)) = shown.char_indices().find(|(at, _)| *at >= most) {
            shown.truncate(end);
            shown.push_str("...");
        }
        shown.chars().map(|one| if one.is_control() { ' ' } else { one }).collect()
    }
}

/// What serde says without the values that it quotes of the answer: what was expected, or which member is missing, and
/// where. In what is left there are the words of the types, which may quote something, too.
fn without_values(error: &serde_json::Error) -> String {
    let said = error.to_string();
    match (error.is_data(), said.rsplit_once(", expected ")) {
        (true, Some((_, expected))) => format!("expected {expected}"),
        (true, None) if said.starts_with("missing field `") => said,
        (true, None) => format!("at line {} column {}", error.line(), error.column()),
        // Of text that is no JSON it quotes nothing.
        (false, _) => said,
    }
}

/// So much of it as comes in time, and whether that is all of it.
async fn beginning(mut body: Body, ends: clock::Instant) -> (Vec<u8>, bool) {
    let mut start = Vec::new();
    let read = async {
        while start.len() < READ {
            match body.frame().await {
                Some(Ok(frame)) => start.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(_)) => return false,
                None => return true,
            }
        }
        false
    };
    let whole = tokio::time::timeout_at(ends, read).await.unwrap_or(false);
    (start, whole)
}

/// Why a call has given no JSON value. Keeps the status, the report, and up to 1 KiB of the body.
///
/// The body's piece, in [`excerpt`](Self::excerpt) and in `Display`, is without the preset's key, the one in use now and those
/// that the call has sent, as [`Client::redacted`] hides it; and without the values of members whose names
/// speak of a key, a token, a secret, a password, an authorization or a signature. What else in it is private is not known
/// here.
pub struct JsonError {
    kind: Kind,
    status: Option<StatusCode>,
    report: Option<Report>,
    excerpt: String,
}

enum Kind {
    NoAnswer(Error),
    Status,
    Body(BoxError),
    Unreadable(String),
    Unwritable(BoxError),
}

impl JsonError {
    fn new(kind: Kind) -> Self {
        Self { kind, status: None, report: None, excerpt: String::new() }
    }

    /// The error of a call that had no answer.
    pub fn call(&self) -> Option<&Error> {
        match &self.kind {
            Kind::NoAnswer(error) => Some(error),
            _ => None,
        }
    }

    /// The status of the answer, where there was one.
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Whether there was an answer that is not a 2xx.
    pub fn is_status(&self) -> bool {
        matches!(self.kind, Kind::Status)
    }

    /// Whether there was an answer whose body is not the value that was asked for.
    pub fn is_unreadable(&self) -> bool {
        matches!(self.kind, Kind::Unreadable(_))
    }

    /// Whether there was an answer that is larger than [`Client::MAX_JSON`].
    pub fn is_too_large(&self) -> bool {
        matches!(&self.kind, Kind::Body(error) if error.is::<BodyTooLarge>())
    }

    /// Whether time ran out: the call's deadline, before the head of the answer or before the end of a success's body, or
    /// that of a body that stood still.
    pub fn is_timeout(&self) -> bool {
        match &self.kind {
            Kind::NoAnswer(error) => error.is_timeout(),
            Kind::Body(error) => error.downcast_ref().is_some_and(Error::is_timeout),
            _ => false,
        }
    }

    /// The report of the call's attempts; none when nothing was sent.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref().or_else(|| self.call()?.report())
    }

    /// The id of the call, as it was sent.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.report()?.request_id()
    }

    /// The beginning of the answer's body, as one line of text.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::NoAnswer(error) => write!(f, "no response: {}", error.kind().sentence()),
            Kind::Status => f.write_str("the answer is no success"),
            Kind::Body(_) => f.write_str("the answer's body could not be read"),
            Kind::Unreadable(what) => write!(f, "the answer's body is not what was asked for, {what}"),
            Kind::Unwritable(_) => f.write_str("the request's body could not be written as json"),
        }?;
        if let Some(status) = self.status {
            write!(f, ", status {status}")?;
        }
        let id = self.request_id();
        if let Some(id) = id.as_ref().and_then(|id| id.to_str().ok()) {
            write!(f, ", request id {id}")?;
        }
        if !self.excerpt.is_empty() {
            write!(f, ": {}", self.excerpt)?;
        }
        Ok(())
    }
}

/// Shows the message and the chain of causes on one line, because `main` prints it.
impl fmt::Debug for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Kind::NoAnswer(error) = &self.kind {
            return fmt::Debug::fmt(error, f);
        }
        fmt::Display::fmt(self, f)?;
        write_causes(self, f)
    }
}

impl std::error::Error for JsonError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            Kind::NoAnswer(error) => Some(error),
            Kind::Body(error) | Kind::Unwritable(error) => Some(&**error),
            Kind::Status | Kind::Unreadable(_) => None,
        }
    }
}
