//! The log events of the store.

use std::time::Duration;

use crate::{
    clock::{self, Instant},
    telemetry::{
        LIMIT,
        event::{STORE_LOST, millis},
        metric::Raised,
    },
};

/// The store does not reply, until this value is dropped.
#[derive(Debug)]
pub(super) struct StoreLost {
    since: Instant,
    _lost: Option<Raised>,
}

impl StoreLost {
    pub(super) fn begin(why: &str, state: &'static str, retry_in: Duration) -> Self {
        tracing::warn!(target: LIMIT, error = why, state, retry_in_ms = millis(retry_in), "limiter's store lost");
        Self { since: clock::now(), _lost: Raised::new(STORE_LOST, None) }
    }

    pub(super) fn back(self) {
        tracing::info!(target: LIMIT, lost_ms = millis(self.since.elapsed()), "limiter's store back");
    }
}
