use std::{io, time::Duration};

use http_body_util::Full;
use hyper::{
    StatusCode,
    body::Bytes,
    header::{CONTENT_TYPE, RETRY_AFTER},
};

pub(super) type Response = hyper::Response<Full<Bytes>>;

/// The mock server's response to a request, or a dropped request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MockResponse {
    /// The status 200.
    Ok,
    /// The status 401, because the key or another required header is missing or wrong.
    Unauthorized,
    /// The status 429 for a request that exceeds the quota. Do not configure this response as a fault.
    OverQuota { retry_after: Duration },
    /// A fault: status 429 with `Retry-After: 1`, although the quota is not exceeded.
    Throttled,
    /// A fault: status 503.
    Unavailable,
    /// A fault: the server reads the request and drops the connection. With HTTP/2 the server resets the stream.
    Dropped,
}

impl MockResponse {
    /// Returns the status of the response, or `None` if the server sends no response.
    pub(crate) fn status(self) -> Option<StatusCode> {
        match self {
            Self::Ok => Some(StatusCode::OK),
            Self::Unauthorized => Some(StatusCode::UNAUTHORIZED),
            Self::OverQuota { .. } | Self::Throttled => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Unavailable => Some(StatusCode::SERVICE_UNAVAILABLE),
            Self::Dropped => None,
        }
    }

    /// Returns the delay that the response requests.
    pub(crate) fn retry_after(self) -> Option<Duration> {
        match self {
            Self::OverQuota { retry_after } => Some(retry_after),
            Self::Throttled => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    pub(super) fn into_http(self, service: &str, number: usize) -> io::Result<Response> {
        // hyper drops the connection if the service returns an error.
        let status = self.status().ok_or_else(|| io::Error::other("configured to drop the connection"))?;
        let mut response = hyper::Response::builder()
            .status(status)
            .header(CONTENT_TYPE, "application/json")
            .header("request-id", format!("srv-{number}"));
        if let Some(pause) = self.retry_after() {
            response = response.header(RETRY_AFTER, pause.as_secs());
        }
        let body = format!(r#"{{"service":"{service}","request":{number},"status":{}}}"#, status.as_u16());
        response.body(Full::from(body)).map_err(io::Error::other)
    }
}
