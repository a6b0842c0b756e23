//! The two spans. Where nobody listens they are none, and cost the look whether somebody does.

use std::fmt;

use http::{HeaderValue, Method, Request, StatusCode, Uri};
use tracing::{Span, field::Empty, info_span};

use super::{ATTEMPT, CALL, address, error_type, failed, port, text};
use crate::{call::Report, error::Error};

/// The span of a call: ours, not an HTTP client's, for it covers what was never sent.
pub(crate) fn call_span(service: Option<&'static str>, id: &HeaderValue) -> Span {
    info_span!(
        target: CALL,
        "call",
        service,
        request_id = text(Some(id)),
        attempts = Empty,
        ended = Empty,
        error.type = Empty,
        otel.status_code = Empty,
    )
}

pub(crate) fn end_call(span: &Span, report: &Report, result: Result<StatusCode, &Error>) {
    if span.is_disabled() {
        return;
    }
    span.record("attempts", report.attempt_count() as i64);
    if let Some(ended) = report.ended() {
        span.record("ended", ended.as_str());
    }
    end(span, result);
}

/// The span of an attempt, with the attributes of OpenTelemetry's HTTP client span. Its numbers are `i64`, for
/// `tracing-opentelemetry` makes text of a `u64`.
pub(crate) fn attempt_span<B>(request: &Request<B>) -> Span {
    let (method, uri) = (request.method(), request.uri());
    info_span!(
        target: ATTEMPT,
        "attempt",
        otel.kind = "client",
        otel.name = known(method).unwrap_or("HTTP"),
        otel.status_code = Empty,
        http.request.method = known(method).unwrap_or("_OTHER"),
        http.request.method_original = known(method).is_none().then_some(method.as_str()),
        http.request.resend_count = Empty,
        server.address = address(uri),
        server.port = port(uri).map(i64::from),
        url.full = Url::of(uri).map(tracing::field::display),
        http.response.status_code = Empty,
        error.type = Empty,
    )
}

/// How often the request was sent before; nothing for the first time.
pub(crate) fn resent(span: &Span, times: u32) {
    if times > 0 {
        span.record("http.request.resend_count", i64::from(times));
    }
}

pub(crate) fn end_attempt(span: &Span, result: Result<StatusCode, &Error>) {
    if span.is_disabled() {
        return;
    }
    if let Ok(status) = result {
        span.record("http.response.status_code", i64::from(status.as_u16()));
    }
    end(span, result);
}

/// The deadline of the call cut the attempt off from above.
pub(crate) fn cut_off(span: &Span) {
    error(span, "timeout");
}

fn end(span: &Span, result: Result<StatusCode, &Error>) {
    match result {
        Ok(status) if failed(status) => error(span, status.as_str()),
        Ok(_) => {}
        Err(failure) => error(span, error_type(failure)),
    }
}

fn error(span: &Span, kind: &str) {
    span.record("error.type", kind);
    span.record("otel.status_code", "error");
}

/// Others could be as many as a caller makes up, so OpenTelemetry has one name for them all.
fn known(method: &Method) -> Option<&str> {
    match *method {
        Method::CONNECT
        | Method::DELETE
        | Method::GET
        | Method::HEAD
        | Method::OPTIONS
        | Method::PATCH
        | Method::POST
        | Method::PUT
        | Method::TRACE => Some(method.as_str()),
        _ => None,
    }
}

/// A URL as it may be shown: neither user info nor query, for keys travel in both.
struct Url<'a> {
    scheme: &'a str,
    host: &'a str,
    port: Option<u16>,
    path: &'a str,
}

impl<'a> Url<'a> {
    fn of(uri: &'a Uri) -> Option<Self> {
        let (scheme, host) = (uri.scheme_str()?, uri.host()?);
        Some(Self { scheme, host, port: uri.port_u16(), path: uri.path() })
    }
}

impl fmt::Display for Url<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(self.path)
    }
}
