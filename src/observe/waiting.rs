use std::time::Duration;

use super::{event, metric::Queued};
use crate::{
    call::Call,
    clock::{self, Instant},
};

/// A request that waits for its permit; dropped, it waits no more.
#[derive(Debug)]
pub(crate) struct Waiting {
    since: Instant,
    queued: Queued,
}

impl Waiting {
    pub(crate) fn begin(call: Option<&Call>) -> Self {
        Self { since: clock::now(), queued: Queued::begin(call) }
    }

    /// The limiter has decided, one way or the other, after so long.
    pub(crate) fn over(self) -> Duration {
        let waited = self.since.elapsed();
        self.queued.over(waited);
        event::waited(waited);
        waited
    }
}
