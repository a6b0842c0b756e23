//! The log events and metrics of the store.

use std::time::Duration;

use crate::{
    clock::{self, Instant},
    telemetry::{
        LIMIT,
        event::millis,
        metric::{self, Raised},
    },
};

const DURATION: &str = "tower_outbound.limit.store.duration";
const LOST: &str = "tower_outbound.limit.store.lost";

/// Registers descriptions of the metrics with the installed recorder.
#[cfg(feature = "metrics")]
pub(crate) fn describe() {
    use ::metrics::{Unit, describe_gauge, describe_histogram};

    let duration = "Duration of the queries that shared limiters send to their store.";
    describe_histogram!(DURATION, Unit::Seconds, duration);
    describe_gauge!(LOST, Unit::Count, "Shared limiters whose store does not reply.");
}

/// Records the duration of an exchange with the store.
pub(super) fn exchanged(outcome: &'static str, took: Duration) {
    metric::record(DURATION, None, &[("outcome", outcome)], took);
}

/// Increments the gauge of lost stores, and decrements it when this value is dropped.
#[derive(Debug)]
pub(super) struct StoreLost {
    since: Instant,
    _lost: Option<Raised>,
}

impl StoreLost {
    pub(super) fn begin(why: &str, state: &'static str, retry_in: Duration) -> Self {
        tracing::warn!(
            target: LIMIT,
            error = why,
            state,
            retry_in_ms = millis(retry_in),
            "limiter's store stopped replying"
        );
        Self { since: clock::now(), _lost: Raised::new(LOST, None) }
    }

    pub(super) fn recovered(self) {
        tracing::info!(target: LIMIT, lost_ms = millis(self.since.elapsed()), "limiter's store replies again");
    }
}
