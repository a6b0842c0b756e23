use std::{fmt, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;

use crate::{body::Body, error::BoxError};

/// The scripted result of a request: a response, an error, or no result. Also sets the delay of the result, and how
/// much of the request's body is read before the result.
///
/// An integer converts to a response with that status.
///
/// # Default
///
/// Reads the request's body completely, then responds immediately. The response has no body.
///
/// ```
/// use std::{io::ErrorKind, time::Duration};
/// use tower_outbound::test_util::{ScriptedResponse, ScriptedService};
///
/// ScriptedService::new([
///     ScriptedResponse::refused(),
///     ScriptedResponse::io_error(ErrorKind::ConnectionReset).with_delay(Duration::from_secs(1)),
///     ScriptedResponse::status(429).with_header("retry-after", "30").with_request_body_unread(),
///     ScriptedResponse::never(),
///     200.into(),
/// ]);
/// ```
#[derive(Clone)]
#[must_use]
pub struct ScriptedResponse {
    pub(super) reads: Reads,
    pub(super) delay: Duration,
    stalls: bool,
    outcome: ScriptedOutcome,
}

/// How much of the request's body is read before the result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reads {
    All,
    FirstFrame,
    Nothing,
    /// Reads nothing, and keeps the body instead of dropping it.
    Keeps,
}

#[derive(Clone)]
enum ScriptedOutcome {
    Response(Response<Bytes>),
    Error(Arc<dyn Fn() -> BoxError + Send + Sync>),
    Never,
}

impl ScriptedResponse {
    /// Creates a response with this status.
    ///
    /// # Panics
    ///
    /// Panics unless the status is from 100 to 999.
    #[track_caller]
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status)
            .unwrap_or_else(|_| panic!("invalid status {status}: expected 100 to 999"));
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = status;
        Self::of(ScriptedOutcome::Response(response))
    }

    /// Creates an I/O error of this kind. The service returns the error after it has read the request, as if the
    /// connection broke.
    pub fn io_error(kind: io::ErrorKind) -> Self {
        Self::error(move || io::Error::from(kind).into())
    }

    /// Creates the error of a refused connection. The request's body is not read.
    pub fn refused() -> Self {
        Self::io_error(io::ErrorKind::ConnectionRefused).with_request_body_unread()
    }

    /// Creates a custom error, such as the error of another HTTP client.
    pub fn error(make: impl Fn() -> BoxError + Send + Sync + 'static) -> Self {
        Self::of(ScriptedOutcome::Error(Arc::new(make)))
    }

    /// Creates a result that never arrives.
    pub fn never() -> Self {
        Self::of(ScriptedOutcome::Never)
    }

    /// Adds a header field.
    ///
    /// # Panics
    ///
    /// Panics if the name or the value is invalid, or if the scripted result is not a response.
    #[track_caller]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        let ScriptedOutcome::Response(response) = &mut self.outcome else {
            panic!("only a response with a status has a header: {self:?}");
        };
        let Ok(name) = HeaderName::try_from(name) else { panic!("invalid header name {name:?}") };
        let Ok(value) = HeaderValue::try_from(value) else { panic!("invalid value for the header {name}") };
        response.headers_mut().append(name, value);
        self
    }

    /// Sets the body of the response.
    ///
    /// # Panics
    ///
    /// Panics if the scripted result is not a response.
    #[track_caller]
    pub fn with_body(mut self, bytes: impl Into<Bytes>) -> Self {
        match &mut self.outcome {
            ScriptedOutcome::Response(response) => *response.body_mut() = bytes.into(),
            _ => panic!("only a response with a status has a body: {self:?}"),
        }
        self
    }

    /// Makes the body of the response stall after its last byte, without an end.
    pub fn with_body_stalled(mut self) -> Self {
        self.stalls = true;
        self
    }

    /// Delays the result by this time of tokio's clock.
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Responds without reading the request's body, and drops the body.
    pub fn with_request_body_unread(mut self) -> Self {
        self.reads = Reads::Nothing;
        self
    }

    /// Responds after reading one frame of the request's body. The rest of the body is dropped unread.
    pub fn with_request_body_first_frame(mut self) -> Self {
        self.reads = Reads::FirstFrame;
        self
    }

    /// Responds without reading the request's body, and keeps the body as long as the service exists, like a client
    /// that is still sending the body.
    pub fn with_request_body_kept(mut self) -> Self {
        self.reads = Reads::Keeps;
        self
    }

    pub(super) async fn into_result(self) -> Result<Response<Body>, BoxError> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        match self.outcome {
            ScriptedOutcome::Response(response) if self.stalls => Ok(response.map(stalled)),
            ScriptedOutcome::Response(response) => Ok(response.map(Body::from)),
            ScriptedOutcome::Error(make) => Err(make()),
            ScriptedOutcome::Never => std::future::pending().await,
        }
    }

    /// Creates a response with this status and these headers.
    pub(super) fn of_head(head: Response<()>) -> Self {
        Self::of(ScriptedOutcome::Response(head.map(|()| Bytes::new())))
    }

    fn of(outcome: ScriptedOutcome) -> Self {
        Self { reads: Reads::All, delay: Duration::ZERO, stalls: false, outcome }
    }
}

fn stalled(data: Bytes) -> Body {
    let data = stream::iter((!data.is_empty()).then(|| Ok::<_, BoxError>(Frame::data(data))));
    Body::new(StreamBody::new(data.chain(stream::pending())))
}

impl From<u16> for ScriptedResponse {
    #[track_caller]
    fn from(status: u16) -> Self {
        Self::status(status)
    }
}

/// Omits the headers and the body, because a test may put a key there.
impl fmt::Debug for ScriptedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match &self.outcome {
            ScriptedOutcome::Response(response) => Some(response.status()),
            ScriptedOutcome::Error(_) | ScriptedOutcome::Never => None,
        };
        f.debug_struct("ScriptedResponse")
            .field("status", &status)
            .field("reads", &self.reads)
            .finish_non_exhaustive()
    }
}
