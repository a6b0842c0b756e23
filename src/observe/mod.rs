//! What the crate tells of itself: every event, span and metric, written here and nowhere else. The contract of the log
//! is in the manual of [`request_id`](crate::request_id), that of the metrics in `adapter::metrics`; nothing is formatted
//! or allocated for what is off.

mod event;
#[cfg(feature = "metrics")]
pub(crate) mod metric;
#[cfg(not(feature = "metrics"))]
#[path = "unmetered.rs"]
mod metric;
mod span;
mod waiting;
mod within;

#[cfg(feature = "redis")]
pub(crate) use self::event::{StoreLost, store_asked};
pub(crate) use self::event::{
    Subject, attempt, call, gave_up, granted, key_changed, key_refresh_begins, key_refresh_failed,
    key_refreshed, key_refused, paused, refused, retry,
};
pub(crate) use self::span::{Sending, call_span, end_call};
pub(crate) use self::waiting::Waiting;
pub(crate) use self::within::Within;

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};

use crate::{
    error::{Error, Kind},
    policy::grpc::Code,
};

const CALL: &str = "tower_outbound::call";
const ATTEMPT: &str = "tower_outbound::attempt";
const RETRY: &str = "tower_outbound::retry";
const LIMIT: &str = "tower_outbound::limit";
const AUTH: &str = "tower_outbound::auth";

/// In lower case, or one host would be many; and an IPv6 address without the brackets that it has in a URI.
fn address(uri: &Uri) -> Option<Cow<'_, str>> {
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if lower { host.into() } else { host.to_ascii_lowercase().into() })
}

/// Its own, or that of its scheme.
fn port(uri: &Uri) -> Option<u16> {
    uri.port_u16().or_else(|| match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    })
}

/// Others could be as many as a caller makes up, so OpenTelemetry has one name for them all.
fn known(method: &Method) -> Option<&'static str> {
    Some(match *method {
        Method::CONNECT => "CONNECT",
        Method::DELETE => "DELETE",
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::TRACE => "TRACE",
        _ => return None,
    })
}

/// OpenTelemetry's name for a method that has none in HTTP.
const OTHER: &str = "_OTHER";

/// What the head of an answer says of how the call went: HTTP's word, and gRPC's, who fail with HTTP 200.
#[derive(Clone, Copy)]
pub(crate) struct Answered<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
}

impl<'a> Answered<'a> {
    pub(crate) fn of<B>(response: &'a Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers() }
    }

    /// gRPC's, where the call ended here. A plain answer has none, and pays one look-up for it.
    fn code(&self) -> Option<&'static str> {
        Code::in_head(self.headers).map(Code::name)
    }

    /// As `error.type` has it: gRPC's code goes before the status that a proxy makes of it.
    fn failure(&self) -> Option<&str> {
        match Code::in_head(self.headers) {
            Some(Code::OK) | None => {
                let failed = self.status.is_client_error() || self.status.is_server_error();
                failed.then(|| self.status.as_str())
            }
            Some(code) => Some(code.name()),
        }
    }
}

fn error_type(error: &Error) -> &'static str {
    match error.kind() {
        Kind::RateLimited { .. } => "rate_limited",
        Kind::TooCostly => "too_costly",
        Kind::Timeout { .. } => "timeout",
        Kind::Auth { .. } => "auth",
        Kind::Request => "invalid_request",
        Kind::Service | Kind::NotReady => "service",
    }
}

fn text(id: Option<&HeaderValue>) -> Option<&str> {
    id.and_then(|id| id.to_str().ok())
}
