use super::{event, metric::Raised};
use crate::{
    call::CallContext,
    clock::{self, Instant},
};

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
