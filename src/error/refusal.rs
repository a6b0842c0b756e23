use std::{fmt, time::Duration};

/// A limiter's no: why, and how long the request would have had to wait. Nothing was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    reason: Reason,
    wait: Option<Duration>,
    largest: Option<u32>,
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
    /// There is no room for another key, and none of those that were looked at is idle.
    TooManyKeys,
    /// The request costs more permits than the quota can ever give at once: no wait helps.
    TooCostly,
    /// The store that the quota is shared through can't be asked, and there is no share to fall back to.
    Unavailable,
}

impl Reason {
    /// The reason in one word, as it stands in the metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::MaxWait => "max_wait",
            Self::QueueFull => "queue_full",
            Self::TooManyKeys => "too_many_keys",
            Self::TooCostly => "too_costly",
            Self::Unavailable => "unavailable",
        }
    }
}

impl Refusal {
    /// A refusal for `reason`, after which a request would have had to wait for `wait`, where that is known.
    pub fn new(reason: Reason, wait: impl Into<Option<Duration>>) -> Self {
        Self { reason, wait: wait.into(), largest: None }
    }

    /// A refusal of a request that costs more than `largest`, the most permits that can ever be had at once.
    pub fn too_costly(largest: u32) -> Self {
        Self { reason: Reason::TooCostly, wait: None, largest: Some(largest) }
    }

    /// What the request did not fit in.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The most permits that can ever be had at once, when the request asked for more.
    pub fn largest(&self) -> Option<u32> {
        self.largest
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
            Reason::TooManyKeys => "there is no room for another key",
            Reason::TooCostly => "the request costs more permits than can ever be had at once",
            Reason::Unavailable => "the limiter's store can't be asked",
        })?;
        if let Some(largest) = self.largest {
            write!(f, ", which is {largest}")?;
        }
        match self.wait {
            Some(wait) => write!(f, ", it would take {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}
