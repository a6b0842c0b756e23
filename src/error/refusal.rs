use std::{fmt, time::Duration};

/// A limiter's no: why, and how long the request would have had to wait. Nothing was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    reason: Reason,
    wait: Option<Duration>,
}

/// What a request that was refused did not fit in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The wait would have ended after the call's deadline.
    Deadline,
    /// The wait would have been longer than the layer's `max_wait`.
    MaxWait,
    /// As many requests are waiting already as the layer's `max_queue` lets.
    QueueFull,
}

impl Refusal {
    /// A refusal for `reason`, after which a request would have had to wait for `wait`, where that is known.
    pub fn new(reason: Reason, wait: impl Into<Option<Duration>>) -> Self {
        Self { reason, wait: wait.into() }
    }

    /// What the request did not fit in.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// How long the request would have had to wait.
    pub fn wait(&self) -> Option<Duration> {
        self.wait
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            Reason::Deadline => "the wait ends after the deadline",
            Reason::MaxWait => "the wait is longer than the longest allowed",
            Reason::QueueFull => "the queue is full",
        })?;
        match self.wait {
            Some(wait) => write!(f, ", it would take {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}
