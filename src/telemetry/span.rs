//! The span of a call and the span of an attempt. Without an active subscriber, each span costs one check.

use std::fmt;

use http::{HeaderValue, Request, Uri};
use tracing::{
    Level, Span,
    field::{DisplayValue, Empty, display},
    span,
};

use super::{ATTEMPT, CALL, OTHER, ResponseSummary, address, known, metric::Stopwatch, port, protocol, text};
use crate::{
    call::{CallContext, StopReason},
    clock,
    error::{Error, ErrorKind},
};

/// Creates a span at INFO if `$raised` is `true`, otherwise at `$level`. Each level needs its own call site.
macro_rules! span_at {
    ($raised:expr, $target:expr, $level:expr, $($fields:tt)*) => {
        match $raised {
            true => span!(target: $target, Level::INFO, $($fields)*),
            false => span!(target: $target, $level, $($fields)*),
        }
    };
}

/// Creates the span of a call. It is not an HTTP client span, because it also covers calls that are never sent.
pub(crate) fn call_span<B>(
    raised: bool,
    service: Option<&str>,
    id: &HeaderValue,
    request: &Request<B>,
) -> Span {
    span_at!(
        raised,
        CALL,
        Level::DEBUG,
        "call",
        service,
        request_id = text(Some(id)).value(),
        http.request.method = known(request.method()).unwrap_or(OTHER),
        url.full = full_url(request.uri()),
        http.response.status_code = Empty,
        attempts = Empty,
        stop_reason = Empty,
        error.type = Empty,
        otel.status_code = Empty,
    )
}

pub(crate) fn end_call(span: &Span, call: &CallContext, result: Result<ResponseSummary<'_>, &Error>) {
    if span.is_disabled() {
        return;
    }
    if let Ok(response) = result {
        span.record("http.response.status_code", i64::from(response.status.as_u16()));
    }
    let report = call.report();
    let attempts = report.attempt_count();
    if attempts > 1 {
        span.record("attempts", attempts as i64);
    }
    if let Some(ended) = report.stop_reason().filter(|ended| *ended != StopReason::Success) {
        span.record("stop_reason", ended.as_str());
    }
    end(span, result.map_err(Error::kind));
}

/// Creates the span of an attempt, with the attributes of OpenTelemetry's HTTP client span. Numeric fields are `i64`,
/// because `tracing-opentelemetry` exports a `u64` as text.
fn attempt_span<B>(request: &Request<B>, call: Option<&CallContext>) -> Span {
    let (method, uri) = (request.method(), request.uri());
    span_at!(
        call.is_some_and(CallContext::has_info_spans),
        ATTEMPT,
        Level::TRACE,
        "attempt",
        otel.kind = "client",
        otel.name = known(method).unwrap_or("HTTP"),
        otel.status_code = Empty,
        http.request.method = known(method).unwrap_or(OTHER),
        http.request.method_original = known(method).is_none().then_some(method.as_str()),
        http.request.resend_count = Empty,
        server.address = address(uri).as_deref(),
        server.port = port(uri).map(i64::from),
        url.full = full_url(uri),
        http.response.status_code = Empty,
        network.protocol.version = Empty,
        rpc.response.status_code = Empty,
        error.type = Empty,
    )
}

/// The metrics of an attempt that is running.
#[derive(Debug)]
pub(crate) struct Sending {
    stopwatch: Option<Stopwatch>,
    /// The call whose deadline may end the attempt. `None` after the end of the attempt, or if no subscriber or
    /// recorder is active.
    call: Option<CallContext>,
}

impl Sending {
    /// Starts the metrics and the span of an attempt. Also returns the number of the attempt, or 1 if `numbered` is
    /// `false` and no subscriber or recorder is active.
    pub(crate) fn begin<B>(request: &Request<B>, numbered: bool) -> (Self, Span, u32) {
        let call = request.extensions().get::<CallContext>();
        let span = attempt_span(request, call);
        let stopwatch = Stopwatch::start(request, call);
        let is_observed = numbered || stopwatch.is_some() || !span.is_disabled();
        let call = call.filter(|_| is_observed).cloned();
        let (number, earlier) = call.as_ref().map_or((1, 0), CallContext::count_sent);
        if earlier > 0 {
            span.record("http.request.resend_count", i64::from(earlier));
        }
        (Self { stopwatch, call }, span, number)
    }

    pub(crate) fn ended(&mut self, span: &Span, result: Result<ResponseSummary<'_>, &Error>) {
        self.call = None;
        if let Some(stopwatch) = self.stopwatch.take() {
            stopwatch.stop(result.map_err(Error::kind));
        }
        if span.is_disabled() {
            return;
        }
        if let Ok(response) = result {
            span.record("http.response.status_code", i64::from(response.status.as_u16()));
            span.record("network.protocol.version", protocol(response.version));
            if let Some(code) = response.code() {
                span.record("rpc.response.status_code", code);
            }
        }
        end(span, result.map_err(Error::kind));
    }

    /// Records the attempt as failed if it is dropped after the deadline. An attempt that is dropped earlier was
    /// dropped by the caller, which is not a failure.
    pub(crate) fn dropped(&mut self, span: &Span) {
        let deadline = self.call.as_ref().and_then(CallContext::deadline);
        if deadline.is_some_and(|deadline| clock::now() >= deadline) {
            if let Some(stopwatch) = self.stopwatch.take() {
                stopwatch.stop(Err(ErrorKind::Deadline));
            }
            end(span, Err(ErrorKind::Deadline));
        }
    }
}

fn end(span: &Span, result: Result<ResponseSummary<'_>, ErrorKind>) {
    let failure = match &result {
        Ok(response) => response.failure(),
        Err(kind) => Some(kind.as_str()),
    };
    if let Some(failure) = failure {
        span.record("error.type", failure);
        span.record("otel.status_code", "error");
    }
}

/// Writes an absolute URL without user info and query, because both may contain keys.
struct FullUrl<'a>([&'a str; 4]);

fn full_url(uri: &Uri) -> Option<DisplayValue<FullUrl<'_>>> {
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?.as_str());
    // An authority is short, so this is faster than `rsplit`, which prepares a search.
    let user_info = authority.bytes().rposition(|byte| byte == b'@').map_or(0, |at| at + 1);
    Some(display(FullUrl([scheme, "://", authority.get(user_info..)?, uri.path()])))
}

impl fmt::Display for FullUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| f.write_str(part))
    }
}
