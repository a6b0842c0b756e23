use std::{fmt, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::ending::{Broken, End};
use crate::{body::Body, error::BoxError};

/// What comes of one request: a response, an error, or nothing; how much of the request is read before it, and how
/// long it takes.
///
/// A bare number is the answer of that status.
///
/// # Default
///
/// The request's body is read to its end, then the answer comes at once, without a body.
///
/// ```
/// use std::{io::ErrorKind, time::Duration};
/// use tower_outbound::test_util::{Answer, ScriptedService};
///
/// ScriptedService::new([
///     Answer::refused(),
///     Answer::io_error(ErrorKind::ConnectionReset).with_delay(Duration::from_secs(1)),
///     Answer::status(429).with_header("retry-after", "30").before_body(),
///     Answer::never(),
///     200.into(),
/// ]);
/// ```
#[derive(Clone)]
pub struct Answer {
    pub(super) reads: Reads,
    pub(super) delay: Duration,
    comes: Comes,
}

/// How much of the request's body is read before the answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reads {
    All,
    FirstFrame,
    Nothing,
    /// Nothing, and it is not dropped either.
    Keeps,
}

#[derive(Clone)]
enum Comes {
    Response { status: StatusCode, headers: HeaderMap, body: Bytes, end: End },
    Error(Arc<dyn Fn() -> BoxError + Send + Sync>),
    Never,
}

impl Answer {
    /// A response of this status.
    ///
    /// # Panics
    ///
    /// When it is not a status of three digits.
    #[track_caller]
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status)
            .unwrap_or_else(|_| panic!("{status} is no status: it has three digits, from 100 to 999"));
        let (headers, body, end) = (HeaderMap::new(), Bytes::new(), End::Whole);
        Self::after_reading(Reads::All, Comes::Response { status, headers, body, end })
    }

    /// An I/O error of this kind, after the request was read: as of a connection that broke, it may have been processed.
    pub fn io_error(kind: io::ErrorKind) -> Self {
        Self::error(move || io::Error::from(kind).into())
    }

    /// A refused connection: nothing of the request was read.
    pub fn refused() -> Self {
        Self::io_error(io::ErrorKind::ConnectionRefused).before_body()
    }

    /// Another error, such as the client's that you stand in for.
    pub fn error(make: impl Fn() -> BoxError + Send + Sync + 'static) -> Self {
        Self::after_reading(Reads::All, Comes::Error(Arc::new(make)))
    }

    /// Nothing, for as long as anybody waits.
    pub fn never() -> Self {
        Self::after_reading(Reads::All, Comes::Never)
    }

    /// One more header; of one name there may be several.
    ///
    /// # Panics
    ///
    /// When it is no header, or the answer no response.
    #[must_use]
    #[track_caller]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        let Comes::Response { headers, .. } = &mut self.comes else {
            panic!("only an answer with a status has a header: {self:?}");
        };
        let Ok(name) = HeaderName::try_from(name) else { panic!("{name:?} is no name of a header") };
        let Ok(value) = HeaderValue::try_from(value) else {
            panic!("that is no value of a header, given for {name}")
        };
        headers.append(name, value);
        self
    }

    /// The response's body.
    ///
    /// # Panics
    ///
    /// When the answer is no response.
    #[must_use]
    #[track_caller]
    pub fn with_body(mut self, bytes: impl Into<Bytes>) -> Self {
        match &mut self.comes {
            Comes::Response { body, .. } => *body = bytes.into(),
            _ => panic!("only an answer with a status has a body: {self:?}"),
        }
        self
    }

    /// The response's body fails after the last of its bytes.
    ///
    /// # Panics
    ///
    /// When the answer is no response.
    #[must_use]
    #[track_caller]
    pub fn with_body_cut_off(self, kind: io::ErrorKind) -> Self {
        self.ending(End::CutOff(kind))
    }

    /// The response's body stands still after the last of its bytes.
    ///
    /// # Panics
    ///
    /// When the answer is no response.
    #[must_use]
    #[track_caller]
    pub fn with_body_stalled(self) -> Self {
        self.ending(End::Stalled)
    }

    /// So much later, on tokio's clock.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Before anything of the request's body was read; it is dropped unread.
    #[must_use]
    pub fn before_body(mut self) -> Self {
        self.reads = Reads::Nothing;
        self
    }

    /// After the first frame of the request's body; the rest is dropped unread.
    #[must_use]
    pub fn after_first_frame(mut self) -> Self {
        self.reads = Reads::FirstFrame;
        self
    }

    /// With the request's body unread and kept for as long as the service lives, as by a client that goes on sending.
    #[must_use]
    pub fn keeping_body(mut self) -> Self {
        self.reads = Reads::Keeps;
        self
    }

    /// What the caller gets.
    pub(super) async fn come(self) -> Result<Response<Body>, BoxError> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        match self.comes {
            Comes::Response { status, headers, body, end } => {
                let body = match end {
                    End::Whole => Body::from(body),
                    _ => Body::new(Broken::new(body, end)),
                };
                let mut response = Response::new(body);
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                Ok(response)
            }
            Comes::Error(make) => Err(make()),
            Comes::Never => std::future::pending().await,
        }
    }

    fn after_reading(reads: Reads, comes: Comes) -> Self {
        Self { reads, delay: Duration::ZERO, comes }
    }

    #[track_caller]
    fn ending(mut self, as_said: End) -> Self {
        match &mut self.comes {
            Comes::Response { end, .. } => *end = as_said,
            _ => panic!("only an answer with a status has a body: {self:?}"),
        }
        self
    }
}

impl From<u16> for Answer {
    #[track_caller]
    fn from(status: u16) -> Self {
        Self::status(status)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Answer");
        match &self.comes {
            Comes::Response { status, body, end, .. } => {
                shown.field("status", &status.as_u16()).field("body_bytes", &body.len()).field("end", end)
            }
            Comes::Error(_) => shown.field("status", &"none, an error"),
            Comes::Never => shown.field("status", &"none, for ever"),
        };
        shown.field("reads", &self.reads).field("delay", &self.delay).finish_non_exhaustive()
    }
}
