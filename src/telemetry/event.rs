//! The log events. The macros of `tracing` evaluate the fields of an event only if a subscriber enables the event. The
//! code makes no check of its own: the metadata of the check would differ from the event's, so a subscriber that
//! filters by fields would reject it.

use std::{
    cell::LazyCell,
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tracing::{debug, info, level_filters::LevelFilter, warn};

use super::{
    AUTH, CALL, LIMIT, RETRY, event,
    metric::{self, Raised},
    text,
};
use crate::{
    call::{CallContext, DelayReason, Report, StopReason},
    clock::{self, Instant},
    error::Refusal,
    policy::{QuotaName, Unit, nanos},
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

pub(crate) fn retry(call: &CallContext, delay: Duration, reason: DelayReason) {
    metric::count(RETRIES, Some(call), &[("reason", reason.as_str())]);
    let names_for_event = LazyCell::new(|| call.names_for_event());
    debug!(
        target: RETRY,
        service = names_for_event.0.as_deref(),
        request_id = text(names_for_event.1.as_ref()).value(),
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
        request_id = text(names_for_event.1.as_ref()).value(),
        stop_reason = ended.as_str(),
        "no further attempt"
    );
}

fn waited(call: Option<&CallContext>, waited: Duration) {
    metric::record(WAIT_DURATION, call, &[], waited);
    debug!(
        target: LIMIT,
        service = call.and_then(CallContext::service).as_deref(),
        queued_ms = millis(waited),
        "waited for the limiter"
    );
}

pub(crate) fn granted(call: Option<&CallContext>) {
    metric::count(GRANTS, call, &[]);
}

/// Counts a refusal of the limiter. One refusal of a layer in [`PERIOD`] has a WARN event, because a full queue may
/// refuse thousands of calls per second.
pub(crate) fn refused(call: Option<&CallContext>, refusal: &Refusal, last_warning: &LastWarning) {
    let unit = refusal.unit().map(Unit::as_str);
    let counted = unit.unwrap_or(Unit::Requests.as_str());
    metric::count(REFUSALS, call, &[("reason", refusal.reason().as_str()), ("unit", counted)]);
    if LevelFilter::current() < LevelFilter::WARN {
        return;
    }
    macro_rules! emit {
        ($level:ident $(, $suppressed:ident)?) => {
            $level!(
                target: LIMIT,
                service = call.and_then(CallContext::service).as_deref(),
                reason = refusal.reason().as_str(),
                unit,
                error = %refusal,
                $($suppressed,)?
                "limiter refused a request"
            )
        };
    }
    match last_warning.replace(PERIOD) {
        Some(suppressed) => {
            let suppressed = Some(suppressed).filter(|count| *count > 0);
            emit!(warn, suppressed);
        }
        None => emit!(debug),
    }
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
    let member = LazyCell::new(|| call.and_then(CallContext::served_by));
    match probe_after {
        Some(probe_after) => warn!(
            target: LIMIT,
            service = service.as_deref(),
            member = *member,
            pause_ms = millis(pause),
            probe_after_ms = millis(probe_after),
            "limiter paused by the server beyond the longest pause"
        ),
        None => info!(
            target: LIMIT,
            service = service.as_deref(),
            member = *member,
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

/// Emits the event for a rate limit layer that is outside a retry layer, once for each layer.
pub(crate) fn retry_inside_limit(report: &Report, warning: &OrderWarning) {
    warning.once(|| {
        warn!(
            target: LIMIT,
            service = report.service().as_deref(),
            attempts = report.attempt_count(),
            "retries exceed the quota: move the rate limit layer inside the retry layer"
        );
    });
}

/// Emits the event for a rate limit layer that is inside an auth layer, once for each layer.
pub(crate) fn limit_inside_auth(call: &CallContext, warning: &OrderWarning) {
    warning.once(|| {
        warn!(
            target: LIMIT,
            service = call.service().as_deref(),
            "a key may expire during the wait for a permit: move the auth layer inside the rate limit layer"
        );
    });
}

/// Emits the event for a retry layer that is inside an auth layer, once for each layer.
pub(crate) fn retry_inside_auth(call: &CallContext, warning: &OrderWarning) {
    warning.once(|| {
        warn!(
            target: RETRY,
            service = call.service().as_deref(),
            "a retry repeats a key that may have expired: move the auth layer inside the retry layer"
        );
    });
}

/// Emits the event for a total timeout that is inside a rate limit layer, once for each layer.
pub(crate) fn total_timeout_inside_limit(call: &CallContext, warning: &OrderWarning) {
    warning.once(|| {
        warn!(
            target: CALL,
            service = call.service().as_deref(),
            "a wait for a permit had no deadline: move the total timeout layer outside the rate limit layer"
        );
    });
}

/// Emits the event for a request id layer that is inside a retry layer, once for each layer.
pub(crate) fn request_id_inside_retry(call: &CallContext, warning: &OrderWarning) {
    warning.once(|| {
        warn!(
            target: CALL,
            service = call.service().as_deref(),
            "each attempt has another request id: move the request id layer outside the retry layer"
        );
    });
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

/// Emits the event for a key that the server has rejected. The auth layer then replaces the key. In a pool without
/// another key, the member gets only probes.
pub(crate) fn key_rejected() {
    metric::count(KEY_REJECTIONS, None, &[]);
    info!(target: AUTH, "key rejected by the server");
}

/// Returns milliseconds with one decimal place.
pub(crate) fn millis(duration: Duration) -> f64 {
    ((nanos(duration) / 1_000) as f64 / 100.0).round() / 10.0
}

/// Returns milliseconds like [`millis`], or `None` for zero.
pub(super) fn some_millis(duration: Duration) -> Option<f64> {
    Some(millis(duration)).filter(|millis| *millis > 0.0)
}

/// Measures how long a request waits for its permit. The queue metric includes the request until this value is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    since: Instant,
    _queued: Option<Raised>,
}

impl Waiting {
    pub(crate) fn begin(call: Option<&CallContext>) -> Self {
        let since = clock::now();
        if let Some(call) = call {
            call.begin_wait(since);
        }
        Self { since, _queued: Raised::new(event::QUEUE, call) }
    }

    /// Ends the wait after a grant or a refusal. Adds its duration to the report of the call.
    pub(crate) fn over(self, call: Option<&CallContext>) {
        let waited = self.since.elapsed();
        event::waited(call, waited);
        if let Some(call) = call {
            call.add_wait(waited);
        }
    }
}

/// The shortest time between two WARN events about refusals.
const PERIOD: Duration = Duration::from_secs(10);

/// The time of the last WARN event of one kind, and the number of events since then. Limits how often the event is
/// emitted at WARN, because thousands per second would hide other events.
#[derive(Debug, Default)]
pub(crate) struct LastWarning(Mutex<Option<(Instant, u64)>>);

impl LastWarning {
    /// Returns the number of events since the last WARN event, if the next event is a WARN event. Returns `None` and
    /// counts the event if the last WARN event is less than `period` ago.
    fn replace(&self, period: Duration) -> Option<u64> {
        let now = clock::now();
        // A panic while the lock is held leaves the values valid.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *last {
            Some((at, since)) if now.saturating_duration_since(*at) < period => {
                *since += 1;
                None
            }
            last => Some(last.replace((now, 0)).map_or(0, |(_, since)| since)),
        }
    }
}

/// Whether a layer has emitted its WARN event about a wrong order of layers.
#[derive(Debug, Default)]
pub(crate) struct OrderWarning(AtomicBool);

impl OrderWarning {
    /// Emits the first event only.
    pub(super) fn once(&self, emit: impl FnOnce()) {
        if !self.0.swap(true, Ordering::Relaxed) {
            emit();
        }
    }
}
