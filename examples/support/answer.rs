use std::{io, time::Duration};

use http_body_util::Full;
use hyper::{
    StatusCode,
    body::Bytes,
    header::{CONTENT_TYPE, RETRY_AFTER},
};

pub(super) type Response = hyper::Response<Full<Bytes>>;

/// What the service makes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scripted {
    /// 200.
    Ok,
    /// 401: the key, or another header that is asked for, is missing or wrong.
    Unauthorized,
    /// 429: more arrivals than the quota lets into a window. Never planned; it happens.
    OverQuota { retry_after: Duration },
    /// 429 with `Retry-After: 1` by plan, the quota notwithstanding.
    Throttled,
    /// 503 by plan.
    Unavailable,
    /// The request is read, then its connection is dropped; in HTTP/2, its stream reset.
    Dropped,
}

impl Scripted {
    /// None where no answer was sent.
    pub(crate) fn status(self) -> Option<StatusCode> {
        match self {
            Self::Ok => Some(StatusCode::OK),
            Self::Unauthorized => Some(StatusCode::UNAUTHORIZED),
            Self::OverQuota { .. } | Self::Throttled => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Unavailable => Some(StatusCode::SERVICE_UNAVAILABLE),
            Self::Dropped => None,
        }
    }

    /// The pause that the answer asks for.
    pub(crate) fn retry_after(self) -> Option<Duration> {
        match self {
            Self::OverQuota { retry_after } => Some(retry_after),
            Self::Throttled => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    pub(super) fn response(self, service: &str, number: usize) -> io::Result<Response> {
        // Hyper drops the connection on which a service fails.
        let status = self.status().ok_or_else(|| io::Error::other("dropped by plan"))?;
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
