//! All log events, spans and metrics of the crate. [`request_id`](crate::request_id) and `adapter::metrics` document
//! them. Nothing is formatted or allocated unless a subscriber or a recorder is active.

mod call_event;
pub(crate) mod event;
#[cfg(feature = "metrics")]
pub(crate) mod metric;
mod span;

pub(crate) use self::call_event::{Subject, attempt, call, deferred_attempt, joins_attempt};
pub(crate) use self::event::{
    LastWarning, OrderWarning, Waiting, gave_up, granted, key_changed, key_refresh_begins,
    key_refresh_failed, key_refreshed, key_rejected, learned, limit_inside_auth, paused, refused,
    request_id_inside_retry, retry, retry_inside_auth, retry_inside_limit, total_timeout_inside_limit,
};
pub(crate) use self::span::{Sending, call_span, end_call};

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, Version};
use tracing::{
    Value,
    field::{DisplayValue, display},
};

use crate::{call::StopReason, policy::grpc::Code};

const CALL: &str = "tower_outbound::call";
const ATTEMPT: &str = "tower_outbound::attempt_span";
const RETRY: &str = "tower_outbound::retry";
pub(crate) const LIMIT: &str = "tower_outbound::limit";
const AUTH: &str = "tower_outbound::auth";

/// Returns the host in lower case, so that logs and metrics contain only one value for each host. The brackets of an
/// IPv6 address are omitted.
fn address(uri: &Uri) -> Option<Cow<'_, str>> {
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if lower { host.into() } else { host.to_ascii_lowercase().into() })
}

/// Returns the port of the URI, or the default port of its scheme.
fn port(uri: &Uri) -> Option<u16> {
    uri.port_u16().or_else(|| match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    })
}

/// Returns the method if OpenTelemetry lists it. Any other name would make the number of label values unbounded.
fn known(method: &Method) -> Option<&'static str> {
    let known = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE"];
    known.into_iter().find(|known| method == known)
}

/// Returns OpenTelemetry's name of the HTTP version.
fn protocol(version: Version) -> Option<&'static str> {
    Some(match version {
        Version::HTTP_09 => "0.9",
        Version::HTTP_10 => "1.0",
        Version::HTTP_11 => "1.1",
        Version::HTTP_2 => "2",
        Version::HTTP_3 => "3",
        _ => return None,
    })
}

/// OpenTelemetry's value for an unknown method.
const OTHER: &str = "_OTHER";

/// The part of a response that logs, spans and metrics show: HTTP status, version and gRPC code. The HTTP status alone
/// is not enough, because a failed gRPC call has the HTTP status 200.
#[derive(Clone, Copy)]
pub(crate) struct ResponseSummary<'a> {
    status: StatusCode,
    version: Version,
    headers: &'a HeaderMap,
}

impl<'a> ResponseSummary<'a> {
    pub(crate) fn of<B>(response: &'a Response<B>) -> Self {
        Self { status: response.status(), version: response.version(), headers: response.headers() }
    }

    /// Returns gRPC's code, if the response headers contain one. For any other response, this function costs one
    /// lookup.
    fn code(&self) -> Option<&'static str> {
        Code::in_head(self.headers).map(Code::name)
    }

    /// Returns the `error.type` of a 4xx, a 5xx or a gRPC failure. gRPC's code takes precedence over the HTTP status,
    /// because a proxy may have derived the status from the code.
    fn failure(&self) -> Option<&str> {
        match Code::in_head(self.headers) {
            Some(Code::OK) | None => {
                let failed = self.status.is_client_error() || self.status.is_server_error();
                failed.then(|| self.status.as_str())
            }
            Some(code) => Some(code.name()),
        }
    }

    /// Returns whether the call counts as failed. It does after a 5xx, after a server failure in gRPC, after a
    /// temporary failure without a further attempt, and after a 429 or a permanent response that is not retried.
    fn has_failed(&self, ended: Option<StopReason>, is_permanent: bool) -> bool {
        let code = Code::in_head(self.headers);
        let server = matches!(
            code,
            Some(
                Code::UNKNOWN
                    | Code::DEADLINE_EXCEEDED
                    | Code::UNIMPLEMENTED
                    | Code::INTERNAL
                    | Code::UNAVAILABLE
                    | Code::DATA_LOSS
            )
        );
        let stopped = match ended {
            Some(StopReason::Exhausted | StopReason::Budget) => true,
            // Each call fails this way until the account's quota is raised.
            Some(StopReason::NotRetryable) => is_permanent || self.status == StatusCode::TOO_MANY_REQUESTS,
            // For a 401, these reasons only mean that the request was not resent with a new key. The 401 is the result
            // of the call, not a temporary failure.
            Some(
                StopReason::Deadline
                | StopReason::RequestedDelayTooLong
                | StopReason::NotIdempotent
                | StopReason::NotReplayable,
            ) => self.status != StatusCode::UNAUTHORIZED && code != Some(Code::UNAUTHENTICATED),
            _ => false,
        };
        self.status.is_server_error() || server || stopped
    }
}

fn text(id: Option<&HeaderValue>) -> TextValue<'_> {
    TextValue::of(id.and_then(|id| id.to_str().ok()))
}

/// The value of a text field. `tracing-subscriber` quotes a `str` and looks for characters to escape, one by one. A
/// non-empty text of visible ASCII characters without `"` and `\` is therefore logged with its `Display`.
struct TextValue<'a> {
    plain: Option<DisplayValue<&'a str>>,
    quoted: Option<&'a str>,
}

impl<'a> TextValue<'a> {
    fn of(text: Option<&'a str>) -> Self {
        // Without an early end, the compiler checks several bytes at once.
        let is_plain = |byte: u8| byte.is_ascii_graphic() & (byte != b'"') & (byte != b'\\');
        match text {
            Some(text) if !text.is_empty() && text.bytes().fold(true, |all, byte| all & is_plain(byte)) => {
                Self { plain: Some(display(text)), quoted: None }
            }
            quoted => Self { plain: None, quoted },
        }
    }

    fn value(&self) -> Option<&dyn Value> {
        let plain = self.plain.as_ref().map(|plain| plain as &dyn Value);
        plain.or(self.quoted.as_ref().map(|quoted| quoted as &dyn Value))
    }
}

/// Replaces `metric.rs` if the feature `metrics` is disabled. All items do nothing.
#[cfg(not(feature = "metrics"))]
pub(crate) mod metric {
    use std::time::Duration;

    use http::Request;

    use super::ResponseSummary;
    use crate::{
        call::CallContext,
        error::{Error, ErrorKind},
    };

    pub(crate) fn on() -> bool {
        false
    }

    #[derive(Debug)]
    pub(super) enum Stopwatch {}

    impl Stopwatch {
        pub(super) fn start<B>(_: &Request<B>, _: Option<&CallContext>) -> Option<Self> {
            None
        }

        pub(super) fn stop(self, _: Result<ResponseSummary<'_>, ErrorKind>) {}
    }

    #[derive(Debug)]
    pub(crate) enum Raised {}

    impl Raised {
        pub(crate) fn new(_: &'static str, _: Option<&CallContext>) -> Option<Self> {
            None
        }
    }

    pub(super) fn called(_: &CallContext, _: Result<ResponseSummary<'_>, &Error>, _: Duration) {}
    pub(crate) fn count(_: &str, _: Option<&CallContext>, _: &[(&str, &str)]) {}
    pub(crate) fn set(_: &str, _: Option<&CallContext>, _: f64) {}
    pub(crate) fn record(_: &str, _: Option<&CallContext>, _: &[(&str, &str)], _: Duration) {}
}
