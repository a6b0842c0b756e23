//! Every event and span of the crate, written here and nowhere else. The contract is in the manual of
//! [`request_id`](crate::request_id); nothing is formatted for a level that is off.

mod span;

pub(crate) use self::span::{attempt_span, call_span, cut_off, end_attempt, end_call, resent};

use std::{fmt, time::Duration};

use http::{HeaderValue, Method, StatusCode, Uri};
use tracing::{Level, debug, enabled, event, info};

use crate::{
    call::{Attempt, DelayReason, Ended, Outcome, Report},
    clock::Instant,
    error::{Error, Kind},
};

const CALL: &str = "tower_outbound::call";
const ATTEMPT: &str = "tower_outbound::attempt";
const RETRY: &str = "tower_outbound::retry";
const LIMIT: &str = "tower_outbound::limit";

/// What the line of a call says of its request. Neither query nor user info: keys travel in both.
pub(crate) struct Subject {
    pub(crate) service: Option<&'static str>,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) started: Instant,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("service", &self.service)
            .field("method", &self.method)
            .field("host", &self.uri.host())
            .finish_non_exhaustive()
    }
}

/// An IPv6 address without the brackets that it has in a URI.
fn address(uri: &Uri) -> Option<&str> {
    uri.host().map(|host| host.trim_start_matches('[').trim_end_matches(']'))
}

/// Its own, or that of its scheme.
fn port(uri: &Uri) -> Option<u16> {
    uri.port_u16().or_else(|| match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    })
}

pub(crate) fn call(subject: &Subject, report: &Report, result: Result<StatusCode, &Error>) {
    // The level of an event is fixed where it is written, so the two levels are two events.
    macro_rules! line {
        ($level:expr, $message:literal) => {
            event!(
                target: CALL,
                $level,
                service = subject.service,
                request_id = text(report.request_id().as_ref()),
                server_request_id = text(report.server_request_id().as_ref()),
                http.request.method = subject.method.as_str(),
                server.address = address(&subject.uri),
                server.port = port(&subject.uri),
                url.path = subject.uri.path(),
                http.response.status_code = result.ok().map(|status| status.as_u16()),
                error.type = result.err().map(error_type),
                attempts = report.attempt_count(),
                ended = report.ended().map(|ended| ended.as_str()),
                waited_ms = millis(report.waited()),
                elapsed_ms = millis(subject.started.elapsed()),
                $message
            )
        };
    }
    match result {
        Ok(status) if !failed(status) => {
            if enabled!(target: CALL, Level::INFO) {
                line!(Level::INFO, "call answered");
            }
        }
        Ok(_) | Err(_) => {
            if enabled!(target: CALL, Level::WARN) {
                line!(Level::WARN, "call failed");
            }
        }
    }
}

pub(crate) fn attempt(report: &Report, attempt: &Attempt) {
    if !enabled!(target: ATTEMPT, Level::DEBUG) {
        return;
    }
    let (status, failure) = match attempt.outcome() {
        Some(Outcome::Answer(status)) => (Some(status.as_u16()), None),
        Some(Outcome::Timeout) => (None, Some("timeout")),
        Some(Outcome::Refused) => (None, Some("rate_limited")),
        Some(Outcome::NotSent) => (None, Some("not_sent")),
        Some(Outcome::Failed) => (None, Some("failed")),
        None => (None, None),
    };
    debug!(
        target: ATTEMPT,
        request_id = text(report.request_id().as_ref()),
        attempt = attempt.number(),
        http.response.status_code = status,
        error.type = failure,
        waited_ms = millis(attempt.waited()),
        elapsed_ms = millis(attempt.ended().unwrap_or_default().saturating_sub(attempt.started())),
        server_request_id = text(attempt.server_request_id()),
        asked_ms = attempt.asked().map(millis),
        "attempt ended"
    );
}

pub(crate) fn retry(report: &Report, delay: Duration, reason: DelayReason) {
    debug!(
        target: RETRY,
        request_id = text(report.request_id().as_ref()),
        delay_ms = millis(delay),
        reason = reason.as_str(),
        "retrying after back-off"
    );
}

pub(crate) fn gave_up(report: &Report, ended: Ended) {
    if ended != Ended::Success {
        debug!(
            target: RETRY,
            request_id = text(report.request_id().as_ref()),
            ended = ended.as_str(),
            "no further attempt"
        );
    }
}

pub(crate) fn waited(waited: Duration) {
    debug!(target: LIMIT, waited_ms = millis(waited), "waited for the limiter");
}

pub(crate) fn paused(pause: Duration) {
    info!(target: LIMIT, pause_ms = millis(pause), "paused: the server asked for it");
}

fn failed(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

fn error_type(error: &Error) -> &'static str {
    match error.kind() {
        Kind::RateLimited { .. } => "rate_limited",
        Kind::TooCostly => "too_costly",
        Kind::Timeout { .. } => "timeout",
        Kind::Auth => "auth",
        Kind::Request => "invalid_request",
        Kind::Service | Kind::NotReady => "service",
    }
}

fn text(id: Option<&HeaderValue>) -> Option<&str> {
    id.and_then(|id| id.to_str().ok())
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
