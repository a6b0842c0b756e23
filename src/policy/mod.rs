//! The decisions of the layers as pure functions and values.
//!
//! The functions here do not sleep, do I/O, read a clock or draw a random number. Times and random numbers are their
//! arguments, so that a test can check a decision for every input.
//!
//! | item | decides |
//! |---|---|
//! | [`Quota`] | how many requests may be sent in any window, and how many at once |
//! | [`adaptive::Learner`] | which rate a server without a known quota accepts |
//! | [`Priority`] | in which order waiting requests get permits |
//! | [`Budget`] | whether all calls together can afford another retry |
//! | [`ExponentialBackoff`], [`Jitter`] | how long to wait before a retry |
//! | [`feedback::retry_after`] | which delay the server requested |
//! | [`rate_limit::remaining()`] | how many permits remain, by the server's rate-limit headers |
//! | [`grpc::Code`] | how a gRPC call ended, by its response headers |
//! | [`dialect::Dialect`] | how a service says that it limits |
//! | [`moment::until`] | which moment or duration a header states |
//! | [`text::parse_duration`] | which duration a setting denotes |
//!
//! # Notes
//!
//! - A [`Quota`] refills slower than its `limit / window`, because the burst has to fit into the same window as the
//!   refill.
//! - Jitter shortens a backoff. Jitter lengthens a delay that the server requested, and never shortens it.
//! - All arithmetic uses integer nanoseconds and saturates. No input causes a panic.

use std::time::Duration;

pub(crate) mod adaptive;
mod amounts;
pub(crate) mod backoff;
mod budget;
pub(crate) mod dialect;
pub(crate) mod feedback;
pub mod grpc;
mod header_values;
mod moment;
pub(crate) mod outcome;
pub(crate) mod priority;
mod quota;
pub(crate) mod rate_limit;
pub(crate) mod retry;
pub(crate) mod text;

pub(crate) use self::{
    amounts::Totals,
    backoff::{ExponentialBackoff, Jitter},
    retry::RetryDecision,
};
pub use self::{
    amounts::{Amounts, Taken},
    budget::Budget,
    priority::Priority,
    quota::Quota,
    rate_limit::{QuotaName, Remaining, Unit},
};
#[cfg(fuzzing)]
pub use self::{
    feedback::delays::retry_after,
    moment::{Scale, parse_http_date, until},
};
#[cfg(any(test, fuzzing))]
pub use self::{
    header_values::MAX_REQUESTED_DELAY,
    rate_limit::{MAX_POLICIES, remaining},
};

/// The longest duration that a setting may have: 366 days. No published quota has a window longer than a leap year.
/// Sums of a few such durations are far below the 584 years that 64 bits of nanoseconds hold.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Returns the nanoseconds of a duration, or `u64::MAX` if they do not fit into 64 bits.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a header map with these fields. Several fields may have the same name.
#[cfg(test)]
fn head_of<'a>(fields: impl IntoIterator<Item = (&'static str, &'a [u8])>) -> http::HeaderMap {
    // `collect` would keep only the last value of a name.
    fields.into_iter().fold(http::HeaderMap::new(), |mut headers, (name, value)| {
        headers.append(name, http::HeaderValue::from_bytes(value).unwrap());
        headers
    })
}
