//! The events. Their macros read the fields only for who hears them, so that none has a guard of its own: it would ask by
//! other metadata than the event's, and a filter that knows the event by its fields, or as an event, would say no.

use std::{cell::LazyCell, fmt, time::Duration};

use http::{Method, Request, Uri};
use tracing::{Level, Span, debug, event, info, level_filters::LevelFilter, warn};

use super::{ATTEMPT, AUTH, Answered, CALL, LIMIT, RETRY, address, error_type, metric, port, text};
use crate::{
    call::{Call, DelayReason, Ended, Outcome, Report},
    clock::{self, Instant},
    error::{Error, Refusal},
};

/// What the line of a call says of its request. Neither query nor user info: keys travel in both.
pub(crate) struct Subject {
    service: Option<&'static str>,
    method: Method,
    uri: Uri,
    started: Instant,
}

impl Subject {
    /// None where nobody hears of any call as this one begins; in a box, for no other call has room for it. A span that is disabled and yet there is one of tracing with
    /// its feature `log`: then the crate of that name hears.
    pub(crate) fn of<B>(
        service: Option<&'static str>,
        request: &Request<B>,
        span: &Span,
    ) -> Option<Box<Self>> {
        let heard = LevelFilter::current() >= Level::WARN || metric::on() || !span.is_none();
        heard.then(|| {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            Box::new(Self { service, method, uri, started: clock::now() })
        })
    }
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

pub(crate) fn call(subject: &Subject, report: &Report, result: Result<Answered<'_>, &Error>) {
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
                server.address = address(&subject.uri).as_deref(),
                server.port = port(&subject.uri),
                url.path = subject.uri.path(),
                http.response.status_code = result.ok().map(|answer| answer.status.as_u16()),
                rpc.response.status_code = result.ok().and_then(|answer| answer.code()),
                error.type = result.err().map(error_type),
                attempts = report.attempt_count(),
                ended = report.ended().map(|ended| ended.as_str()),
                waited_ms = millis(report.waited()),
                elapsed_ms = millis(subject.started.elapsed()),
                $message
            )
        };
    }
    metric::called(subject.service, result, subject.started);
    match result {
        Ok(answer) if answer.failure().is_none() => line!(Level::INFO, "call answered"),
        Ok(_) | Err(_) => line!(Level::WARN, "call failed"),
    }
}

/// The last attempt of the call is over.
pub(crate) fn attempt(call: &Call) {
    let report = LazyCell::new(|| call.report());
    let attempt = LazyCell::new(|| report.last_attempt());
    let told = LazyCell::new(|| match attempt.as_ref().and_then(|attempt| attempt.outcome()) {
        Some(Outcome::Answer(status)) => (Some(status.as_u16()), None),
        Some(Outcome::Timeout) => (None, Some("timeout")),
        Some(Outcome::Refused) => (None, Some("rate_limited")),
        Some(Outcome::NotSent) => (None, Some("not_sent")),
        Some(Outcome::Failed) => (None, Some("failed")),
        None => (None, None),
    });
    debug!(
        target: ATTEMPT,
        request_id = text(report.request_id().as_ref()),
        attempt = attempt.as_ref().map(|attempt| attempt.number()),
        http.response.status_code = told.0,
        error.type = told.1,
        waited_ms = attempt.as_ref().map(|attempt| millis(attempt.waited())),
        elapsed_ms = attempt.as_ref().and_then(|attempt| Some(millis(attempt.ended()?.saturating_sub(attempt.started())))),
        server_request_id = text(attempt.as_ref().and_then(|attempt| attempt.server_request_id())),
        asked_ms = attempt.as_ref().and_then(|attempt| attempt.asked()).map(millis),
        "attempt ended"
    );
}

pub(crate) fn retry(call: &Call, delay: Duration, reason: DelayReason) {
    metric::retried(call, reason);
    debug!(
        target: RETRY,
        request_id = text(call.report().request_id().as_ref()),
        delay_ms = millis(delay),
        reason = reason.as_str(),
        "retrying"
    );
}

pub(crate) fn gave_up(call: &Call, ended: Ended) {
    if ended == Ended::Success {
        return;
    }
    metric::gave_up(call, ended);
    debug!(
        target: RETRY,
        request_id = text(call.report().request_id().as_ref()),
        ended = ended.as_str(),
        "no further attempt"
    );
}

pub(super) fn waited(waited: Duration) {
    debug!(target: LIMIT, waited_ms = millis(waited), "waited for the limiter");
}

pub(crate) fn granted(call: Option<&Call>) {
    metric::granted(call);
}

/// Without an event of its own: the call's line says it.
pub(crate) fn refused(call: Option<&Call>, refusal: &Refusal) {
    metric::refused(call, refusal.reason());
}

pub(crate) fn paused(call: Option<&Call>, pause: Duration) {
    metric::paused(call, pause);
    info!(target: LIMIT, pause_ms = millis(pause), "paused: the server asked for it");
}

/// A question to the store of a shared limiter is over. Without an event of its own.
#[cfg(feature = "redis")]
pub(crate) fn store_asked(outcome: &'static str, took: Duration) {
    metric::store_asked(outcome, took);
}

/// The store of a shared limiter does not answer any more, until [`StoreLost::back`].
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct StoreLost {
    since: Instant,
    _counted: metric::Lost,
}

#[cfg(feature = "redis")]
impl StoreLost {
    pub(crate) fn begin(why: &dyn fmt::Display, state: &'static str, retry_in: Duration) -> Self {
        warn!(target: LIMIT, error = %why, state, retry_in_ms = millis(retry_in), "limiter's store lost");
        Self { since: crate::clock::now(), _counted: metric::Lost::begin() }
    }

    pub(crate) fn back(self) {
        info!(target: LIMIT, lost_ms = millis(self.since.elapsed()), "limiter's store back");
    }
}

/// The file holds another key.
pub(crate) fn key_changed() {
    metric::key_refreshed(true);
    info!(target: AUTH, "key changed");
}

pub(crate) fn key_refresh_begins() {
    debug!(target: AUTH, "key refresh begins");
}

pub(crate) fn key_refreshed() {
    metric::key_refreshed(true);
    info!(target: AUTH, "key refreshed");
}

/// `kept` says whether there is a key in use all the same.
pub(crate) fn key_refresh_failed(why: &dyn fmt::Display, retry_in: Option<Duration>, kept: bool) {
    metric::key_refreshed(false);
    warn!(
        target: AUTH,
        error = %why,
        kept,
        retry_in_ms = retry_in.map(millis),
        "key refresh failed"
    );
}

/// The server has refused the key, and another one is asked for.
pub(crate) fn key_refused() {
    metric::key_refused();
    info!(target: AUTH, "key refused by the server");
}

/// Whole microseconds, so that nobody reads `22.428946000000003`.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}
