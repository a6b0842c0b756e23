use std::{fmt, time::Duration};

use crate::{
    clock::{self, Instant},
    error::ErrorKind,
};

/// The kind of a timeout and its limit, in 16 bytes. Each call stores several of them.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) secs: u64,
    pub(super) nanos: u32,
    pub(super) kind: ErrorKind,
    /// Whether this is a timeout of a stack. The total timeout sets no timer while the attempt timeout waits. Any other
    /// total timeout might be above a layer that drops an attempt without waking the task. The attempt timeout reads the
    /// clock only if the attempt has to wait. Any other attempt may be polled long after the call.
    pub(super) is_in_stack: bool,
}

impl Limit {
    pub(super) fn new(kind: ErrorKind, limit: Duration) -> Self {
        Self { secs: limit.as_secs(), nanos: limit.subsec_nanos(), kind, is_in_stack: false }
    }

    /// Returns when a request that starts at `start` expires. If the deadline is earlier, the error names the deadline,
    /// because the attempt may not be slow.
    pub(super) fn end(self, start: Instant, deadline: Option<Instant>) -> (Self, Instant) {
        let own = clock::after(start, self.duration());
        match deadline {
            Some(deadline) if deadline <= own => (Self { kind: ErrorKind::Deadline, ..self }, deadline),
            _ => (self, own),
        }
    }

    pub(super) fn duration(self) -> Duration {
        Duration::new(self.secs, self.nanos)
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after {:?}", self.kind, self.duration())
    }
}
