use std::time::Duration;

use super::{event, metric::Queued};
use crate::{
    call::Call,
    clock::{self, Instant},
};

/// A request that waits for its permit, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    since: Instant,
    queued: Queued,
}

impl Waiting {
    pub(crate) fn begin(call: Option<&Call>) -> Self {
        Self { since: clock::now(), queued: Queued::begin(call) }
    }

    /// Ends the wait, with a grant or a refusal. Returns how long it took.
    pub(crate) fn over(self, call: Option<&Call>) -> Duration {
        let waited = self.since.elapsed();
        self.queued.over(waited);
        event::waited(call, waited);
        waited
    }
}
