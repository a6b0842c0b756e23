//! The metrics, through the `metrics` facade. Until they are enabled, each costs one relaxed load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::Request;
use metrics::{Label, counter, gauge, histogram};

use super::{Answered, OTHER, address, known, port};
use crate::{
    call::CallContext,
    clock::{self, Instant},
    error::{Error, ErrorKind},
};

pub(crate) const REQUEST_DURATION: &str = "http.client.request.duration";
pub(crate) const CALL_DURATION: &str = "tower_outbound.call.duration";
pub(crate) const WAIT_DURATION: &str = "tower_outbound.limit.wait.duration";
pub(crate) const PAUSE_DURATION: &str = "tower_outbound.limit.pause.duration";
pub(crate) const QUEUE: &str = "tower_outbound.limit.queue";

static ON: AtomicBool = AtomicBool::new(false);

pub(crate) fn switch_on() {
    ON.store(true, Relaxed);
}

pub(crate) fn on() -> bool {
    ON.load(Relaxed)
}

fn labels<const N: usize>(service: Option<Arc<str>>, own: [(&'static str, &'static str); N]) -> Vec<Label> {
    let service = service.map(|service| Label::new("service", service));
    let own = own.map(|(name, value)| Label::from_static_parts(name, value));
    service.into_iter().chain(own).collect()
}

fn service(call: Option<&CallContext>) -> Option<Arc<str>> {
    call.and_then(CallContext::service)
}

/// The label `error.type`, as in the spans: the status of a 4xx or 5xx, gRPC's code, or the kind of the error.
fn failure(result: Result<Answered<'_>, &Error>) -> Option<Label> {
    Some(match result {
        Ok(answer) => Label::new("error.type", answer.failure()?.to_owned()),
        Err(error) => Label::from_static_parts("error.type", error.kind().as_str()),
    })
}

/// The time of one attempt, by OpenTelemetry's attributes.
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
        let mut labels = labels(service(call), [("http.request.method", method)]);
        labels
            .extend(address(request.uri()).map(|address| Label::new("server.address", address.into_owned())));
        labels.extend(port(request.uri()).map(|port| Label::new("server.port", port.to_string())));
        Some(Self { started: clock::now(), labels })
    }

    pub(super) fn stop(mut self, result: Result<Answered<'_>, &Error>) {
        let status = result.ok().map(|answer| answer.status.as_str().to_owned());
        self.labels.extend(status.map(|status| Label::new("http.response.status_code", status)));
        self.labels.extend(failure(result));
        self.record();
    }

    /// Records an attempt that the call's deadline ended.
    pub(super) fn cut_off(mut self) {
        self.labels.push(Label::from_static_parts("error.type", ErrorKind::Deadline.as_str()));
        self.record();
    }

    fn record(self) {
        histogram!(REQUEST_DURATION, self.labels).record(self.started.elapsed());
    }
}

/// One more in the queue, until it is dropped.
#[derive(Debug)]
pub(super) struct Queued {
    /// `None` if metrics were disabled at the start.
    service: Option<Option<Arc<str>>>,
}

impl Queued {
    pub(super) fn begin(call: Option<&CallContext>) -> Self {
        let service = on().then(|| service(call));
        if let Some(service) = &service {
            gauge!(QUEUE, labels(service.clone(), [])).increment(1.0);
        }
        Self { service }
    }

    pub(super) fn over(self, waited: Duration) {
        if let Some(service) = &self.service {
            histogram!(WAIT_DURATION, labels(service.clone(), [])).record(waited);
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(service) = self.service.take() {
            gauge!(QUEUE, labels(service, [])).decrement(1.0);
        }
    }
}

pub(super) fn called(service: Option<&Arc<str>>, result: Result<Answered<'_>, &Error>, started: Instant) {
    if on() {
        let mut labels = labels(service.cloned(), []);
        labels.extend(failure(result));
        histogram!(CALL_DURATION, labels).record(started.elapsed());
    }
}

pub(super) fn count<const N: usize>(
    name: &'static str,
    call: Option<&CallContext>,
    own: [(&'static str, &'static str); N],
) {
    if on() {
        counter!(name, labels(service(call), own)).increment(1);
    }
}

pub(super) fn paused(call: Option<&CallContext>, pause: Duration) {
    if on() {
        histogram!(PAUSE_DURATION, labels(service(call), [])).record(pause);
    }
}
