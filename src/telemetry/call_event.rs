//! The events at the end of a call and of an attempt.

use std::{cell::LazyCell, fmt};

use http::{Method, Request, Uri};
use tracing::{Level, Span, debug, event, event_enabled, field, level_filters::LevelFilter};

use super::{
    ATTEMPT, CALL, ResponseSummary, TextValue, address,
    event::{millis, some_millis},
    known, metric, port, protocol, text,
};
use crate::{
    call::{AttemptEnd, AttemptReport, CallContext, Outcome, StopReason},
    error::Error,
};

/// The parts of a request that appear in the log event of its call. The query and user info are omitted, because both
/// may contain keys.
pub(crate) struct Subject {
    /// The level of the event if the call is completed or refused.
    level: Level,
    method: Method,
    uri: Uri,
    /// Whether the span of the layer is enabled. An inner layer may have another span.
    in_span: bool,
    /// Whether the call was logged before. It then continues because the body of its response broke.
    continues: bool,
}

impl Subject {
    /// Returns `Some` if a subscriber or a recorder is active when the call starts. Also returns `Some` if tracing's
    /// feature `log` is enabled, because the crate `log` may then write the span. Otherwise returns `None`. The result
    /// is boxed, so that the future of a call without an observer stays small.
    ///
    /// `continues` is `true` if the call was logged before.
    pub(crate) fn of<B>(
        level: Level,
        request: &Request<B>,
        span: &Span,
        continues: bool,
    ) -> Option<Box<Self>> {
        let is_observed = LevelFilter::current() >= level.min(Level::WARN) || metric::on() || !span.is_none();
        is_observed.then(|| {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            Box::new(Self { level, method, uri, in_span: !span.is_disabled(), continues })
        })
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("method", &self.method)
            .field("host", &self.uri.host())
            .finish_non_exhaustive()
    }
}

/// Returns whether the event of a call with one attempt shows the attempt too, because the subscriber enables the
/// events of both.
pub(crate) fn joins_attempt() -> bool {
    event_enabled!(target: ATTEMPT, Level::DEBUG) && event_enabled!(target: CALL, Level::INFO)
}

/// Emits the event at the end of a call.
pub(crate) fn call(subject: &Subject, call: &CallContext, result: Result<ResponseSummary<'_>, &Error>) {
    let elapsed = call.started().elapsed();
    let (report, summary) = (call.report(), call.summary(subject.in_span, elapsed));
    let ended = report.stop_reason();
    let attempts = Some(summary.attempts).filter(|count| *count > 1);
    // Only the call of a pool has one.
    let routed = summary.routed.as_ref();
    // The span of the call contains the method if it is known, and an absolute URL.
    let outside = LazyCell::new(|| {
        let is_shown = subject.in_span && known(&subject.method).is_some() && subject.uri.scheme().is_some();
        (!is_shown).then_some(subject)
    });
    // The span of the call contains no URL of a member.
    let uri = LazyCell::new(|| routed.map(|(_, uri)| uri).or_else(|| outside.map(|subject| &subject.uri)));
    let unnamed = LazyCell::new(|| uri.filter(|_| !summary.has_service));
    let failed = result.map_or(true, |response| response.has_failed(ended, summary.is_permanent));
    let times = summary.attempt.as_ref();
    let attempt = times.filter(|_| summary.shows_attempt);
    let connect = times.and_then(|attempt| attempt.connect);
    // Omits the reason if the status of a completed call already shows it.
    let is_informative = |ended: &StopReason| match ended {
        StopReason::Success => false,
        StopReason::NotRetryable => failed,
        _ => true,
    };
    let message = if failed { "call failed" } else { "call completed" };
    let code = result.ok().and_then(|response| response.code());
    let stop_reason = ended.filter(is_informative).map(|ended| ended.as_str());
    // Each level needs its own call site, because tracing fixes the level of a call site.
    macro_rules! emit {
        ($level:expr, [$($result:tt)*], [$($times:tt)*]) => {
            event!(
                target: CALL,
                $level,
                service = summary.service.as_deref(),
                request_id = text(summary.request_id.as_ref()).value(),
                // A method is a token, so it is logged without quotes.
                http.request.method = outside.map(|subject| field::display(&subject.method)),
                server.address = unnamed.and_then(address).as_deref(),
                server.port = unnamed.and_then(port),
                url.path = TextValue::of(uri.map(Uri::path)).value(),
                member = routed.map(|(index, _)| index),
                http.response.status_code = result.ok().map(|response| response.status.as_u16()),
                $($result)*
                queued_ms = some_millis(summary.queued),
                $($times)*
                server_request_id = TextValue::of(summary.server_request_id.as_deref()).value(),
                "{message}"
            )
        };
    }
    macro_rules! emit_at {
        ($level:expr, $($fields:tt)*) => {
            match $level {
                Level::ERROR => emit!(Level::ERROR, $($fields)*),
                Level::WARN => emit!(Level::WARN, $($fields)*),
                Level::INFO => emit!(Level::INFO, $($fields)*),
                Level::DEBUG => emit!(Level::DEBUG, $($fields)*),
                Level::TRACE => emit!(Level::TRACE, $($fields)*),
            }
        };
    }
    if !subject.continues {
        metric::called(call, result, elapsed);
    }
    if subject.continues && !failed {
        return;
    }
    // The limiter has the WARN events of its refusals.
    let is_refused = attempts.is_none() && result.is_err_and(Error::is_refusal);
    let level = if failed && !is_refused { Level::WARN } else { subject.level };
    // Most calls have only the fields that every call has. Each of the other fields costs time even if it is absent:
    // without this case, a call costs 2 % more instructions at INFO.
    if !failed && attempts.is_none() && times.is_none() && code.is_none() && stop_reason.is_none() {
        return emit_at!(level, [], [elapsed_ms = millis(elapsed),]);
    }
    emit_at!(
        level,
        [
            rpc.response.status_code = code,
            error.type = result.err().map(|error| error.kind().as_str()),
            attempts = attempts,
            attempt_log = attempts.map(|_| report.attempt_log()),
            stop_reason = stop_reason,
        ],
        [
            backoff_ms = attempts.and_then(|_| some_millis(report.backoff())),
            elapsed_ms = millis(elapsed),
            network.protocol.version = attempt.and(result.ok()).and_then(|response| protocol(response.version)),
            delivery = attempt.and_then(delivery),
            key_ms = times.and_then(|attempt| some_millis(attempt.key_wait)),
            resolve_ms = connect.and_then(|times| Some(millis(times.resolve?))),
            connect_ms = connect.and_then(|times| Some(millis(times.connect?))),
            tls_ms = connect.and_then(|times| Some(millis(times.tls?))),
            connection_wait_ms = times.and_then(|attempt| some_millis(attempt.connection_wait)),
            response_ms = times.and_then(response_ms),
            requested_delay_ms = attempt.and_then(|attempt| attempt.requested_delay).map(millis),
        ]
    );
}

/// Emits the event at the end of the call's latest attempt. `only` is `true` if the call makes no other attempt.
pub(crate) fn attempt(call: &CallContext, result: Result<ResponseSummary<'_>, &Error>, only: bool) {
    let end = result.map(|response| response.version).map_err(|error| error.kind().as_str());
    if LevelFilter::current() < Level::DEBUG || !call.defer_attempt(end, only) {
        attempt_ended(call, end);
    }
}

/// Emits the event of an attempt that the event of the call has not shown, before the call makes another attempt: a
/// layer outside the retry layer sends another request for it.
pub(crate) fn deferred_attempt(call: &CallContext) {
    if LevelFilter::current() >= Level::DEBUG {
        call.take_deferred().into_iter().for_each(|end| attempt_ended(call, end));
    }
}

fn attempt_ended(call: &CallContext, end: AttemptEnd) {
    let names_for_event = LazyCell::new(|| call.names_for_event());
    let attempt = LazyCell::new(|| call.report().last_attempt());
    let status = LazyCell::new(|| attempt.as_ref().and_then(|attempt| attempt.outcome?.status()));
    let connect = LazyCell::new(|| attempt.as_ref().and_then(|attempt| attempt.connect));
    debug!(
        target: ATTEMPT,
        service = names_for_event.0.as_deref(),
        request_id = text(names_for_event.1.as_ref()).value(),
        attempt = attempt.as_ref().map(|attempt| attempt.number),
        http.response.status_code = status.map(|status| status.as_u16()),
        network.protocol.version = end.ok().and_then(protocol),
        error.type = end.err(),
        delivery = attempt.as_ref().and_then(delivery),
        queued_ms = attempt.as_ref().and_then(|attempt| some_millis(attempt.queued)),
        key_ms = attempt.as_ref().and_then(|attempt| some_millis(attempt.key_wait)),
        resolve_ms = connect.and_then(|times| Some(millis(times.resolve?))),
        connect_ms = connect.and_then(|times| Some(millis(times.connect?))),
        tls_ms = connect.and_then(|times| Some(millis(times.tls?))),
        connection_wait_ms = attempt.as_ref().and_then(|attempt| some_millis(attempt.connection_wait)),
        response_ms = attempt.as_ref().and_then(response_ms),
        elapsed_ms = attempt.as_ref().and_then(|attempt| Some(millis(attempt.ended?.saturating_sub(attempt.started)))),
        server_request_id = text(attempt.as_ref().and_then(|attempt| attempt.server_request_id.as_ref())).value(),
        requested_delay_ms = attempt.as_ref().and_then(|attempt| attempt.requested_delay).map(millis),
        "attempt ended"
    );
}

fn delivery(attempt: &AttemptReport) -> Option<&'static str> {
    match attempt.outcome? {
        Outcome::Refused | Outcome::NotSent => Some("not_sent"),
        Outcome::Timeout | Outcome::Failed => Some("maybe_processed"),
        Outcome::Rejected(_) => Some("rejected"),
        Outcome::Response(_) => None,
    }
}

fn response_ms(attempt: &AttemptReport) -> Option<f64> {
    Some(millis(attempt.ended?.saturating_sub(attempt.sent?)))
}
