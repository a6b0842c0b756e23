use std::{fmt, time::Duration};

use crate::error::ErrorKind;

/// The kind of a timeout and its limit, in 16 bytes. Each call stores several of them.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) secs: u64,
    pub(super) nanos: u32,
    pub(super) kind: ErrorKind,
    pub(super) position: Position,
}

/// The position of a timeout layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// A layer that no `StackBuilder` has created.
    Custom,
    /// The total timeout of a stack sets no timer while the attempt timeout waits. A custom total timeout always sets
    /// one, because a layer inside might drop an attempt without waking the task.
    StackTotal,
    /// The attempt timeout of a stack. It records in the call that its timer is set.
    StackAttempt,
}

impl Limit {
    pub(super) fn new(kind: ErrorKind, limit: Duration) -> Self {
        Self { secs: limit.as_secs(), nanos: limit.subsec_nanos(), kind, position: Position::Custom }
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
