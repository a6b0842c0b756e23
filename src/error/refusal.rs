use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use crate::policy::{QuotaName, Unit};

/// The error of a limiter that refused a request. The request took no permits. `source()` returns the
/// [cause](Self::with_cause), if the limiter states one.
///
/// The message of a call's [`Error`](crate::Error) contains that of the refusal, and
/// [`shown_cause`](crate::Error::shown_cause) returns the refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    reason: Reason,
    wait: Option<Duration>,
    // Boxed, because few refusals have one, and each pending request has room for a refusal.
    delay: Option<Box<Delay>>,
    cause: Option<Cause>,
}

/// What delays the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    Quota(QuotaName),
    InFlight(NonZeroU32),
    Unit(Unit),
    /// The request's own cost, which can never be granted.
    Cost(NonZeroU32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cause(Arc<str>);

/// Why a limiter refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The wait would end after the call's deadline.
    Deadline,
    /// The wait would be longer than the layer's `max_wait`.
    MaxWait,
    /// The queue has reached the layer's `max_queue`.
    QueueFull,
    /// The keyed limiter has no room for another key, and no key that it checked is idle.
    TooManyKeys,
    /// The request costs more permits than the quota can ever grant at once.
    TooCostly {
        /// The largest number of permits that the quota can grant at once.
        largest: u32,
    },
    /// The store of a shared quota is unavailable, and the limiter has no fallback.
    Unavailable,
}

impl Reason {
    /// Returns the reason as a lowercase word, such as `queue_full`. Metrics use the same word.
    pub fn as_str(&self) -> &'static str {
        self.texts().0
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Deadline => ("deadline", "the wait would end after the deadline"),
            Self::MaxWait => ("max_wait", "the wait would exceed the allowed maximum"),
            Self::QueueFull => ("queue_full", "the queue is full"),
            Self::TooManyKeys => ("too_many_keys", "the keyed limiter has no room for another key"),
            Self::TooCostly { .. } => ("too_costly", "the request costs too many permits"),
            Self::Unavailable => ("unavailable", "the limiter's store is unavailable"),
        }
    }
}

impl Refusal {
    /// Creates a refusal. `wait` is the wait that the request would have needed, if it is known.
    pub fn new(reason: Reason, wait: impl Into<Option<Duration>>) -> Self {
        Self { reason, wait: wait.into(), delay: None, cause: None }
    }

    /// Adds the cause, such as the failure of the store. It must not contain a secret, because errors show it.
    pub fn with_cause(mut self, cause: impl Into<Arc<str>>) -> Self {
        self.cause = Some(Cause(cause.into()));
        self
    }

    /// Adds what delays the queue.
    pub(crate) fn with_delay(mut self, delay: Delay) -> Self {
        self.delay = Some(Box::new(delay));
        self
    }

    /// Returns why the limiter refused the request.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the wait that the request would have needed, if it is known.
    pub fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// Returns the name of the server's quota that delays the queue, if the server reported one.
    pub fn quota(&self) -> Option<&str> {
        let Delay::Quota(quota) = self.delay.as_deref()? else { return None };
        Some(quota.as_str())
    }

    /// Returns the unit of the quota that delays the queue. Returns `None` if no quota does, or if it counts requests.
    pub fn unit(&self) -> Option<Unit> {
        let Delay::Unit(unit) = self.delay.as_deref()? else { return None };
        Some(*unit)
    }

    /// Returns the limit of requests in flight if it is reached and no other limit delays the queue.
    /// [`wait`](Self::wait) is then `None`, because the end of a request in flight cannot be forecast.
    pub fn max_in_flight(&self) -> Option<u32> {
        let Delay::InFlight(max) = self.delay.as_deref()? else { return None };
        Some(max.get())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.delay.as_deref() {
            Some(Delay::Cost(cost)) => write!(f, "the request costs {cost} permits"),
            _ => f.write_str(self.reason.texts().1),
        }?;
        if let Reason::TooCostly { largest } = self.reason {
            return write!(
                f,
                ", but at most {largest} can be granted at once: lower the cost, or raise the quota's burst \
                 (Quota::with_burst, in a file `burst`), a bucket's capacity or a sliding window's limit"
            );
        }
        // A wait of zero means that there was no forecast.
        match (self.wait.filter(|wait| !wait.is_zero()), self.delay.as_deref()) {
            (_, Some(Delay::InFlight(max))) => write!(f, " (requests in flight: {max} of {max})"),
            (None, _) => Ok(()),
            (Some(wait), Some(Delay::Unit(unit))) => write!(f, " (required wait: {wait:?}, quota of {unit})"),
            (Some(wait), Some(Delay::Quota(quota))) => {
                write!(f, " (required wait: {wait:?}, quota of the server: {})", quota.as_str())
            }
            (Some(wait), _) => write!(f, " (required wait: {wait:?})"),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}
