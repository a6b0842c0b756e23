//! The log events. The macros of `tracing` evaluate the fields of an event only if a subscriber enables the event. The
//! code makes no check of its own: the metadata of the check would differ from the event's, so a subscriber that
//! filters by fields would reject it.

use std::{cell::LazyCell, fmt, time::Duration};

use http::{Method, Request, Uri};
use tracing::{Level, Span, debug, event, info, level_filters::LevelFilter, warn};

use super::{ATTEMPT, AUTH, CALL, LIMIT, RETRY, ResponseSummary, address, metric, port, text};
use crate::{
    call::{CallContext, DelayReason, Outcome, Report, StopReason},
    clock::{self, Instant},
    error::{Error, Refusal},
    policy::{QuotaName, Unit},
};

pub(crate) const GRANTS: &str = "tower_outbound.limit.grants";
pub(crate) const REFUSALS: &str = "tower_outbound.limit.refusals";
pub(crate) const RETRIES: &str = "tower_outbound.retry.retries";
pub(crate) const GIVE_UPS: &str = "tower_outbound.retry.give_ups";
pub(crate) const KEY_REFRESHES: &str = "tower_outbound.auth.refreshes";
pub(crate) const KEY_REJECTIONS: &str = "tower_outbound.auth.rejections";
pub(crate) const WAIT_DURATION: &str = "tower_outbound.limit.wait.duration";
pub(crate) const PAUSE_DURATION: &str = "tower_outbound.limit.pause.duration";
pub(crate) const LEARNED_RATE: &str = "tower_outbound.limit.learned_rate";
pub(crate) const QUEUE: &str = "tower_outbound.limit.queue";

/// The parts of a request that appear in the log event of its call. The query and user info are omitted, because both
/// may contain keys.
pub(crate) struct Subject {
    /// The level of the event if the call is logged as completed.
    level: Level,
    method: Method,
    uri: Uri,
    started: Instant,
    /// Whether the call was logged before. It then continues because the body of its response broke.
    continues: bool,
}

impl Subject {
    /// Returns `Some` if a subscriber or a recorder is active when the call starts. Also returns `Some` if tracing's
    /// feature `log` is enabled, because the crate `log` may then write the span. Otherwise returns `None`. The result
    /// is boxed, so that the future of a call without an observer stays small.
    ///
    /// `earlier` is the call if it was logged before.
    pub(crate) fn of<B>(
        level: Level,
        request: &Request<B>,
        span: &Span,
        earlier: Option<&CallContext>,
    ) -> Option<Box<Self>> {
        let is_observed = LevelFilter::current() >= level.min(Level::WARN) || metric::on() || !span.is_none();
        is_observed.then(|| {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            let started = earlier.map_or_else(clock::now, CallContext::started);
            Box::new(Self { level, method, uri, started, continues: earlier.is_some() })
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

/// Emits the event at the end of a call.
pub(crate) fn call(subject: &Subject, call: &CallContext, result: Result<ResponseSummary<'_>, &Error>) {
    let (report, names_for_event) = (call.report(), LazyCell::new(|| call.names_for_event()));
    let ended = report.stop_reason();
    let unnamed = LazyCell::new(|| call.service().is_none().then_some(&subject.uri));
    let failed = result.map_or(true, |response| response.has_failed(ended));
    // Omits the reason if the status of a completed call already shows it.
    let is_informative = |ended: &StopReason| match ended {
        StopReason::Success => false,
        StopReason::NotRetryable => failed,
        _ => true,
    };
    // Each level needs its own call site, because tracing fixes the level of a call site.
    macro_rules! emit {
        ($level:expr, $message:literal) => {
            event!(
                target: CALL,
                $level,
                service = names_for_event.0.as_deref(),
                request_id = text(names_for_event.1.as_ref()),
                // A method is a token, so it is logged without quotes.
                http.request.method = %subject.method,
                server.address = unnamed.and_then(address).as_deref(),
                server.port = unnamed.and_then(port),
                url.path = subject.uri.path(),
                http.response.status_code = result.ok().map(|response| response.status.as_u16()),
                rpc.response.status_code = result.ok().and_then(|response| response.code()),
                error.type = result.err().map(|error| error.kind().as_str()),
                attempts = Some(report.attempt_count()).filter(|count| *count > 1),
                stop_reason = ended.filter(is_informative).map(|ended| ended.as_str()),
                waited_ms = some_millis(report.waited()),
                elapsed_ms = millis(subject.started.elapsed()),
                server_request_id = text(report.server_request_id().as_ref()),
                $message
            )
        };
    }
    if !subject.continues {
        metric::called(call, result, subject.started.elapsed());
    }
    if failed {
        return emit!(Level::WARN, "call failed");
    }
    if subject.continues {
        return;
    }
    match subject.level {
        Level::ERROR => emit!(Level::ERROR, "call completed"),
        Level::WARN => emit!(Level::WARN, "call completed"),
        Level::INFO => emit!(Level::INFO, "call completed"),
        Level::DEBUG => emit!(Level::DEBUG, "call completed"),
        Level::TRACE => emit!(Level::TRACE, "call completed"),
    }
}

/// Emits the event at the end of the call's latest attempt.
pub(crate) fn attempt(call: &CallContext, result: Result<ResponseSummary<'_>, &Error>) {
    let names_for_event = LazyCell::new(|| call.names_for_event());
    let attempt = LazyCell::new(|| call.report().last_attempt());
    let connect = LazyCell::new(|| attempt.as_ref().and_then(|attempt| attempt.connect));
    let delivery = |outcome| match outcome {
        Outcome::Refused | Outcome::NotSent => Some("not_sent"),
        Outcome::Timeout | Outcome::Failed => Some("maybe_processed"),
        Outcome::Rejected(_) => Some("rejected"),
        Outcome::Response(_) => None,
    };
    debug!(
        target: ATTEMPT,
        service = names_for_event.0.as_deref(),
        request_id = text(names_for_event.1.as_ref()),
        attempt = attempt.as_ref().map(|attempt| attempt.number),
        http.response.status_code = result.ok().map(|response| response.status.as_u16()),
        network.protocol.version = result.ok().and_then(|response| response.protocol()),
        error.type = result.err().map(|error| error.kind().as_str()),
        delivery = attempt.as_ref().and_then(|attempt| attempt.outcome).and_then(delivery),
        waited_ms = attempt.as_ref().and_then(|attempt| some_millis(attempt.waited)),
        resolve_ms = connect.and_then(|times| Some(millis(times.resolve?))),
        connect_ms = connect.map(|times| millis(times.connect)),
        tls_ms = connect.and_then(|times| Some(millis(times.tls?))),
        connection_wait_ms = attempt.as_ref().and_then(|attempt| some_millis(attempt.connection_wait)),
        response_ms = attempt.as_ref().and_then(|attempt| Some(millis(attempt.ended?.saturating_sub(attempt.sent?)))),
        elapsed_ms = attempt.as_ref().and_then(|attempt| Some(millis(attempt.ended?.saturating_sub(attempt.started)))),
        server_request_id = text(attempt.as_ref().and_then(|attempt| attempt.server_request_id.as_ref())),
        requested_delay_ms = attempt.as_ref().and_then(|attempt| attempt.requested_delay).map(millis),
        "attempt ended"
    );
}

pub(crate) fn retry(call: &CallContext, delay: Duration, reason: DelayReason) {
    metric::count(RETRIES, Some(call), &[("reason", reason.as_str())]);
    let names_for_event = LazyCell::new(|| call.names_for_event());
    debug!(
        target: RETRY,
        service = names_for_event.0.as_deref(),
        request_id = text(names_for_event.1.as_ref()),
        delay_ms = millis(delay),
        reason = reason.as_str(),
        "retrying"
    );
}

pub(crate) fn gave_up(call: &CallContext, ended: StopReason) {
    if ended == StopReason::Success {
        return;
    }
    metric::count(GIVE_UPS, Some(call), &[("reason", ended.as_str())]);
    let names_for_event = LazyCell::new(|| call.names_for_event());
    debug!(
        target: RETRY,
        service = names_for_event.0.as_deref(),
        request_id = text(names_for_event.1.as_ref()),
        stop_reason = ended.as_str(),
        "no further attempt"
    );
}

pub(super) fn waited(call: Option<&CallContext>, waited: Duration) {
    metric::record(WAIT_DURATION, call, &[], waited);
    debug!(
        target: LIMIT,
        service = call.and_then(CallContext::service).as_deref(),
        waited_ms = millis(waited),
        "waited for the limiter"
    );
}

pub(crate) fn granted(call: Option<&CallContext>) {
    metric::count(GRANTS, call, &[]);
}

/// Counts a refusal of the limiter. A refusal has no event of its own, because the call's event shows it.
pub(crate) fn refused(call: Option<&CallContext>, refusal: &Refusal) {
    let unit = refusal.unit().unwrap_or(Unit::Requests);
    metric::count(REFUSALS, call, &[("reason", refusal.reason().as_str()), ("unit", unit.as_str())]);
}

/// Emits the event for a pause. `probe_after` is the longest pause, if the pause is longer. `quota` is the empty quota
/// that caused the pause.
pub(crate) fn paused(
    call: Option<&CallContext>,
    pause: Duration,
    probe_after: Option<Duration>,
    quota: Option<QuotaName>,
) {
    metric::record(PAUSE_DURATION, call, &[], pause);
    let service = LazyCell::new(|| call.and_then(CallContext::service));
    match probe_after {
        Some(probe_after) => warn!(
            target: LIMIT,
            service = service.as_deref(),
            pause_ms = millis(pause),
            probe_after_ms = millis(probe_after),
            "limiter paused by the server beyond the longest pause"
        ),
        None => info!(
            target: LIMIT,
            service = service.as_deref(),
            pause_ms = millis(pause),
            quota = quota.as_ref().map(QuotaName::as_str),
            "limiter paused by the server"
        ),
    }
}

pub(crate) fn learned(call: Option<&CallContext>, rate: f64, source: &'static str) {
    metric::set(LEARNED_RATE, call, rate);
    debug!(
        target: LIMIT,
        service = call.and_then(CallContext::service).as_deref(),
        rate,
        source,
        "limiter learned another rate"
    );
}

/// Emits the event for a rate limit layer that is outside a retry layer.
pub(crate) fn retry_inside_limit(report: &Report) {
    warn!(
        target: LIMIT,
        service = report.service().as_deref(),
        attempts = report.attempt_count(),
        "retries exceed the quota: move the rate limit layer inside the retry layer"
    );
}

/// Emits the event for a key file that contains another key.
pub(crate) fn key_changed() {
    metric::count(KEY_REFRESHES, None, &[("outcome", "refreshed")]);
    info!(target: AUTH, "key changed");
}

pub(crate) fn key_refresh_begins() {
    debug!(target: AUTH, "key refresh begins");
}

pub(crate) fn key_refreshed() {
    metric::count(KEY_REFRESHES, None, &[("outcome", "refreshed")]);
    info!(target: AUTH, "key refreshed");
}

/// Emits the event for a failed refresh. `kept` is `true` if the earlier key stays in use.
pub(crate) fn key_refresh_failed(why: &dyn fmt::Display, retry_in: Option<Duration>, kept: bool) {
    metric::count(KEY_REFRESHES, None, &[("outcome", "failed")]);
    warn!(
        target: AUTH,
        error = %why,
        kept,
        retry_in_ms = retry_in.map(millis),
        "key refresh failed"
    );
}

/// Emits the event for a key that the auth layer replaces because the server has rejected it.
pub(crate) fn key_rejected() {
    metric::count(KEY_REJECTIONS, None, &[]);
    info!(target: AUTH, "key rejected by the server");
}

/// Returns milliseconds with one decimal place.
pub(crate) fn millis(duration: Duration) -> f64 {
    (duration.as_micros() as f64 / 100.0).round() / 10.0
}

/// Returns milliseconds like [`millis`], or `None` for zero.
fn some_millis(duration: Duration) -> Option<f64> {
    Some(millis(duration)).filter(|millis| *millis > 0.0)
}
