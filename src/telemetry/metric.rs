//! The metrics of the `metrics` facade. Until metrics are enabled, each metric costs one relaxed atomic load.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use http::Request;
use metrics::{Gauge, Label, counter, gauge, histogram};

use super::{OTHER, ResponseSummary, address, known, port};
use crate::{
    call::CallContext,
    clock::{self, Instant},
    error::{Error, ErrorKind},
};

pub(crate) const REQUEST_DURATION: &str = "http.client.request.duration";
pub(crate) const CALL_DURATION: &str = "tower_outbound.call.duration";

static ON: AtomicBool = AtomicBool::new(false);

pub(crate) fn switch_on() {
    ON.store(true, Relaxed);
}

pub(crate) fn on() -> bool {
    ON.load(Relaxed)
}

fn labels(call: Option<&CallContext>, own: &[(&'static str, &'static str)]) -> Vec<Label> {
    let service = call.and_then(CallContext::service).map(|service| Label::new("service", service));
    let own = own.iter().map(|(name, value)| Label::from_static_parts(name, value));
    service.into_iter().chain(own).collect()
}

/// Returns the label `error.type`, with the same value as in the spans. The value is a 4xx or 5xx status, a gRPC code,
/// or the kind of the error.
fn failure(result: Result<ResponseSummary<'_>, ErrorKind>) -> Option<Label> {
    Some(match result {
        Ok(response) => Label::new("error.type", response.failure()?.to_owned()),
        Err(kind) => Label::from_static_parts("error.type", kind.as_str()),
    })
}

/// Measures the duration of one attempt, with OpenTelemetry's attributes.
#[derive(Debug)]
pub(super) struct Stopwatch {
    started: Instant,
    labels: Vec<Label>,
}

impl Stopwatch {
    pub(super) fn start<B>(request: &Request<B>, call: Option<&CallContext>) -> Option<Self> {
        if !on() {
            return None;
        }
        let method = known(request.method()).unwrap_or(OTHER);
        let mut labels = labels(call, &[("http.request.method", method)]);
        labels
            .extend(address(request.uri()).map(|address| Label::new("server.address", address.into_owned())));
        labels.extend(port(request.uri()).map(|port| Label::new("server.port", port.to_string())));
        Some(Self { started: clock::now(), labels })
    }

    pub(super) fn stop(mut self, result: Result<ResponseSummary<'_>, ErrorKind>) {
        let status = result.ok().map(|response| response.status.as_str().to_owned());
        self.labels.extend(status.map(|status| Label::new("http.response.status_code", status)));
        self.labels.extend(failure(result));
        histogram!(REQUEST_DURATION, self.labels).record(self.started.elapsed());
    }
}

/// Increments a gauge, and decrements it when dropped.
#[derive(Debug)]
pub(crate) struct Raised(Gauge);

impl Raised {
    /// Returns `None` if metrics are disabled.
    pub(crate) fn new(name: &'static str, call: Option<&CallContext>) -> Option<Self> {
        on().then(|| {
            let gauge = gauge!(name, labels(call, &[]));
            gauge.increment(1.0);
            Self(gauge)
        })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

pub(super) fn called(call: &CallContext, result: Result<ResponseSummary<'_>, &Error>, took: Duration) {
    if on() {
        let mut labels = labels(Some(call), &[]);
        labels.extend(failure(result.map_err(Error::kind)));
        histogram!(CALL_DURATION, labels).record(took);
    }
}

pub(crate) fn count(name: &'static str, call: Option<&CallContext>, own: &[(&'static str, &'static str)]) {
    if on() {
        counter!(name, labels(call, own)).increment(1);
    }
}

pub(crate) fn set(name: &'static str, call: Option<&CallContext>, value: f64) {
    if on() {
        gauge!(name, labels(call, &[])).set(value);
    }
}

pub(crate) fn record(
    name: &'static str,
    call: Option<&CallContext>,
    own: &[(&'static str, &'static str)],
    time: Duration,
) {
    if on() {
        histogram!(name, labels(call, own)).record(time);
    }
}
