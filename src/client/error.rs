use std::fmt;

use http::{HeaderValue, StatusCode};

use crate::{
    body::BodyTooLarge,
    call::Report,
    error::{BoxError, Error, write_causes},
};

/// The error of a call without a usable response: no response arrived, the status is an error, or the body is unusable.
///
/// The error contains the status, the [`Report`], and up to 1 KiB of the body. `Display` and `Debug` never show text of
/// the body: only [`excerpt`](Self::excerpt) and [`decode_error`](Self::decode_error) do. `Display` contains the text
/// of the [`Error`] of a call without a response, and `source()` returns the cause of that `Error`.
///
/// The operator `?` converts an [`Error`] to a `ResponseError`, so that a function can return one error type for all
/// steps of a call:
///
/// ```no_run
/// use tower_outbound::{Client, client::ResponseError};
///
/// async fn report(client: &Client) -> Result<String, ResponseError> {
///     client.get("/report").await?.error_for_status().await?.text().await
/// }
///
/// # async fn call(client: Client) {
/// if let Err(error) = report(&client).await {
///     // the response is not a success, status 404 Not Found, request id 0199…: {"error":"no report"}
///     eprintln!("{error}: {}", error.excerpt());
/// }
/// # }
/// ```
pub struct ResponseError {
    pub(super) kind: Kind,
    pub(super) status: Option<StatusCode>,
    pub(super) report: Option<Report>,
    pub(super) excerpt: String,
}

pub(super) enum Kind {
    NoResponse(Error),
    Status,
    Body(BoxError),
    #[cfg(feature = "json")]
    Json(serde_json::Error),
}

impl ResponseError {
    /// Returns the error of the call if no response arrived.
    pub fn call(&self) -> Option<&Error> {
        match &self.kind {
            Kind::NoResponse(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the status of the response, if one arrived. The status is a 2xx if the body failed or is not the
    /// expected JSON, so do not pass it on as the status of an error.
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Returns whether the body is larger than [`Response::MAX_BODY`](super::Response::MAX_BODY).
    pub fn is_too_large(&self) -> bool {
        matches!(&self.kind, Kind::Body(error) if error.is::<BodyTooLarge>())
    }

    /// Returns whether the deadline of the call, the timeout of an attempt, the connect timeout or the idle timeout of
    /// the body was exceeded.
    ///
    /// Returns `false` if [`error_for_status`](super::Response::error_for_status) created the error, even if the body
    /// stalled.
    pub fn is_timeout(&self) -> bool {
        match &self.kind {
            Kind::NoResponse(error) => error.is_timeout(),
            Kind::Body(error) => error.downcast_ref().is_some_and(Error::is_timeout),
            _ => false,
        }
    }

    /// Returns whether the server may have processed the request. Returns `true` after a 500, for example. Returns
    /// `false` after a 429 if no earlier attempt may have been processed: see [`Error::may_have_been_processed`].
    pub fn may_have_been_processed(&self) -> bool {
        match &self.kind {
            Kind::NoResponse(error) => error.may_have_been_processed(),
            _ => self.report.as_ref().is_none_or(Report::may_have_been_processed),
        }
    }

    /// Returns the report of the call's attempts, if a layer of this crate has recorded one.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref().or_else(|| self.call()?.report())
    }

    /// Returns the id of the call, which is sent in the request id header.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.report()?.request_id()
    }

    /// Returns the first part of the response's body as one line, up to 1 KiB. The result is empty if no response
    /// arrived, or if `text`, `bytes` or `json` could not read the body.
    ///
    /// The call's key is replaced by `[redacted]` where it appears in plain text. Other encodings of the key,
    /// credentials from a closure or a signature, and other private data are not removed. Before you log the excerpt,
    /// check what the server sends.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }

    /// Returns why the JSON body cannot be deserialized. The message may quote values of the body, including the key.
    pub fn decode_error(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            #[cfg(feature = "json")]
            Kind::Json(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::NoResponse(error) => {
                f.write_str("no response: ")?;
                return fmt::Display::fmt(error, f);
            }
            Kind::Status => f.write_str("the response is not a success"),
            Kind::Body(_) => f.write_str("the response's body could not be read"),
            #[cfg(feature = "json")]
            Kind::Json(error) => {
                f.write_str("the response's body is not the expected JSON")?;
                // An error without a position has line 0.
                match (error.line(), error.column()) {
                    (0, _) => Ok(()),
                    (line, column) => write!(f, ", at line {line} column {column}"),
                }
            }
        }?;
        if let Some(status) = self.status {
            write!(f, ", status {status}")?;
        }
        let attempts = self.report().map_or(0, Report::attempt_count);
        if attempts > 1 {
            write!(f, " after {attempts} attempts")?;
        }
        match self.request_id().as_ref().and_then(|id| id.to_str().ok()) {
            Some(id) => write!(f, ", request id {id}"),
            None => Ok(()),
        }
    }
}

/// Writes the message and the causes on one line, because the standard library prints this text if `main` returns the
/// error.
impl fmt::Debug for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Kind::NoResponse(error) = &self.kind {
            return fmt::Debug::fmt(error, f);
        }
        fmt::Display::fmt(self, f)?;
        write_causes(self, f)
    }
}

impl std::error::Error for ResponseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            // The message contains that of the error.
            Kind::NoResponse(error) => error.source(),
            Kind::Body(error) => Some(&**error),
            _ => None,
        }
    }
}

impl Error {
    /// Returns the error of the call if `error` is a [`ResponseError`] without a response.
    pub(crate) fn of_response<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        error.downcast_ref().and_then(ResponseError::call)
    }
}

impl From<Error> for ResponseError {
    fn from(error: Error) -> Self {
        Self { kind: Kind::NoResponse(error), status: None, report: None, excerpt: String::new() }
    }
}
