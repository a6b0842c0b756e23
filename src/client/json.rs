//! JSON in and out of a [`Client`], behind the feature `json`.

use std::{fmt, time::Duration};

use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde::{Serialize, de::DeserializeOwned};

use super::{Client, redact::hide_members};
use crate::{
    auth::SentKey,
    body::{Body, BodyTooLarge},
    call::Report,
    error::{BoxError, Error},
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

    /// Sends a GET for `path`, and reads the answer as JSON. An empty one is read as `null`.
    ///
    /// # Errors
    ///
    /// When there is no answer, it is not a 2xx, its body fails or is over [`MAX_JSON`](Self::MAX_JSON), or is no `T`.
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
        self.read_json(self.get(path).await).await
    }

    /// Sends a POST of `body` as JSON to `path`, and reads the answer as JSON.
    ///
    /// # Errors
    ///
    /// As [`get_json`](Self::get_json); and when `body` can't be written as JSON, where nothing is sent.
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
        self.read_json(self.post(path, body).await).await
    }

    /// Sends this request, with a method and headers of your own, and reads the answer as JSON.
    ///
    /// # Errors
    ///
    /// As [`get_json`](Self::get_json).
    pub async fn request_json<T: DeserializeOwned>(
        &self,
        request: Request<impl Into<Body>>,
    ) -> Result<T, JsonError> {
        self.read_json(self.request(request).await).await
    }

    async fn read_json<T: DeserializeOwned>(
        &self,
        called: Result<Response<Body>, Error>,
    ) -> Result<T, JsonError> {
        let response = called.map_err(|error| JsonError::new(Kind::NoAnswer(error)))?;
        let (status, report) = (response.status(), Report::of(&response).cloned());
        let sent = response.extensions().get::<SentKey>().cloned();
        let answered = |kind, excerpt| JsonError { kind, status: Some(status), report, excerpt };
        if !status.is_success() {
            let (start, whole) = beginning(response.into_body()).await;
            return Err(answered(Kind::Status, self.excerpt(&start, whole, sent)));
        }
        let body = match response.into_body().collect(Self::MAX_JSON).await {
            Ok(body) => body,
            Err(error) => return Err(answered(Kind::Body(error), String::new())),
        };
        let json: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(json).map_err(|error| {
            answered(Kind::Unreadable(without_values(&error)), self.excerpt(&body, true, sent))
        })
    }

    /// The beginning of a body, or of what was read of it, as one line of text, without what is known to be secret.
    fn excerpt(&self, body: &[u8], whole: bool, sent: Option<SentKey>) -> String {
        // Hidden before it is cut to what is shown, or half of a key would be left at the end.
        let read = String::from_utf8_lossy(&body[..body.len().min(READ)]);
        let cut = !whole || body.len() > READ;
        let mut text = hide_members(&self.redacted_answer(&read, sent.as_ref(), cut));
        if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= EXCERPT) {
            text.truncate(end);
            text.push_str("...");
        }
        text.chars().map(|one| if one.is_control() { ' ' } else { one }).collect()
    }
}

/// What serde says without what it quotes of the answer: what was expected, or which member is missing, and where.
fn without_values(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let what = match (error.is_data(), said.rsplit_once(", expected ")) {
        (true, Some((_, expected))) => format!("expected {expected}"),
        (true, None) if said.starts_with("missing field `") => said,
        (true, None) => format!("at line {} column {}", error.line(), error.column()),
        // Of text that is no JSON it quotes nothing.
        (false, _) => said,
    };
    let what: String = what.chars().take(LONGEST_REASON).collect();
    what.replace(char::is_control, " ")
}

/// So much of it as comes in time, and whether that is all of it.
async fn beginning(mut body: Body) -> (Vec<u8>, bool) {
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
    let whole = tokio::time::timeout(EXCERPT_TIME, read).await.unwrap_or(false);
    (start, whole)
}

/// Why a call has given no JSON value. Keeps the status, the report, and up to 1 KiB of the body.
///
/// The body's piece, in [`excerpt`](Self::excerpt) and in `Display`, is without the preset's key, the one in use now and the
/// one that the request was sent with, as [`Client::redacted`] hides it; and without the values of members whose names
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
            Kind::NoAnswer(_) => f.write_str("there is no answer"),
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

impl fmt::Debug for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::NoAnswer(_) => "no answer",
            Kind::Status => "status",
            Kind::Body(_) => "body",
            Kind::Unreadable(_) => "unreadable",
            Kind::Unwritable(_) => "unwritable",
        };
        f.debug_struct("JsonError")
            .field("kind", &kind)
            .field("status", &self.status)
            .field("excerpt", &self.excerpt)
            .field("source", &std::error::Error::source(self))
            .field("report", &self.report())
            .finish()
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
