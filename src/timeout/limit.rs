use std::{fmt, time::Duration};

use crate::error::ErrorKind;

/// The kind of a timeout and its limit, in 16 bytes. Each call stores several of them.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) secs: u64,
    pub(super) nanos: u32,
    pub(super) kind: ErrorKind,
    /// Whether this is the total timeout of a stack. It sets no timer while the attempt timeout waits. Any other total
    /// timeout might be above a layer that drops an attempt without waking the task.
    pub(super) is_in_stack: bool,
}

impl Limit {
    pub(super) fn new(kind: ErrorKind, limit: Duration) -> Self {
        Self { secs: limit.as_secs(), nanos: limit.subsec_nanos(), kind, is_in_stack: false }
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
