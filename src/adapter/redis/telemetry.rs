//! The log events and metrics of the store.

use std::time::Duration;

use crate::{
    clock::{self, Instant},
    telemetry::{LIMIT, event::millis},
};

/// The store does not reply, until this value is dropped.
#[derive(Debug)]
pub(super) struct StoreLost {
    since: Instant,
    #[cfg(feature = "metrics")]
    counted: bool,
}

impl StoreLost {
    pub(super) fn begin(why: &str, state: &'static str, retry_in: Duration) -> Self {
        tracing::warn!(target: LIMIT, error = why, state, retry_in_ms = millis(retry_in), "limiter's store lost");
        #[cfg(feature = "metrics")]
        let counted = crate::telemetry::metric::on();
        #[cfg(feature = "metrics")]
        if counted {
            metrics::gauge!(crate::adapter::metrics::STORE_LOST).increment(1.0);
        }
        Self {
            since: clock::now(),
            #[cfg(feature = "metrics")]
            counted,
        }
    }

    pub(super) fn back(self) {
        tracing::info!(target: LIMIT, lost_ms = millis(self.since.elapsed()), "limiter's store back");
    }
}

#[cfg(feature = "metrics")]
impl Drop for StoreLost {
    fn drop(&mut self) {
        if self.counted {
            metrics::gauge!(crate::adapter::metrics::STORE_LOST).decrement(1.0);
        }
    }
}

/// Counts an exchange that is over.
#[cfg(feature = "metrics")]
pub(super) fn exchanged(outcome: &'static str, took: Duration) {
    if crate::telemetry::metric::on() {
        metrics::histogram!(crate::adapter::metrics::STORE_DURATION, "outcome" => outcome).record(took);
    }
}

#[cfg(not(feature = "metrics"))]
pub(super) fn exchanged(_: &'static str, _: Duration) {}
