//! What is allowed, when, and how often: the decisions, without the waiting.
//!
//! Nothing here sleeps, does I/O, reads a clock or draws a random number. Times and random numbers are
//! arguments, so each decision can be checked for every input, and the layers that act on it have nothing
//! left to decide.
//!
//! | a request meets | it asks |
//! |---|---|
//! | the limiter | [`Quota`]: how many in any window, how many back to back |
//! | a response or an error | [`classify()`]: may a retry succeed, and why; [`may_repeat`] by [`Delivery`]: is it safe |
//! | `Retry-After` in a response | [`retry_after`]: the requested delay; [`asked`]: with `RateLimit` in its place |
//! | the head of a gRPC server's answer | [`grpc::classify`], [`grpc::pushback`]: the same, by its own status and its own field |
//! | `RateLimit` in an answer | [`remaining()`]: what the server says is left, and when more comes |
//! | a date in a header | [`parse_http_date`]: which moment it is |
//! | the choice to send it again | [`Budget`]: can all calls together afford another retry |
//! | a setting, as people write it | [`parse_duration`]: how long; `Quota` and `Jitter` are read by `parse` |
//! | the wait before another attempt | [`ExponentialBackoff`]: how long, with [`Jitter`] |
//!
//! # Example
//!
//! One failed attempt, from the answer to the wait:
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use http::{HeaderMap, HeaderValue, Method, StatusCode, header::RETRY_AFTER};
//! use tower_outbound::policy::{self, Cause, Delivery, ExponentialBackoff, Outcome, Verdict};
//!
//! let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("3"))]);
//! let outcome = Outcome::Answer(StatusCode::TOO_MANY_REQUESTS);
//!
//! assert_eq!(policy::classify(outcome), Verdict::Retry(Cause::Throttled));
//! assert!(policy::may_repeat(policy::is_idempotent(&Method::GET), Delivery::MaybeProcessed));
//!
//! let (backoff, retry, random) = (ExponentialBackoff::throttled(), 0, 0x9e37_79b9_7f4a_7c15);
//! let wait = match policy::retry_after(&headers, SystemTime::now) {
//!     None | Some(Duration::ZERO) => backoff.delay(retry, random),
//!     Some(asked) => asked.max(backoff.delay(retry, random)) + backoff.spread(retry, random),
//! };
//! assert!(wait >= Duration::from_secs(3));
//! ```
//!
//! # Surprises
//!
//! - A [`Quota`] refills slower than its `limit / window`: what may go back to back has to fit in the same
//!   window as what is refilled.
//! - A jitter takes away from a wait of our own and only adds to one that the server asked for.
//! - All arithmetic is in integer nanoseconds and saturates; no input makes it panic.

use std::time::Duration;

pub mod backoff;
pub mod budget;
pub mod classify;
pub mod feedback;
pub mod grpc;
pub mod http_date;
pub mod human;
pub mod quota;
pub mod rate_limit;
mod structured;
#[cfg(feature = "serde")]
mod text;

pub use self::{
    backoff::{ExponentialBackoff, Jitter},
    budget::{Budget, Spent},
    classify::{Cause, Delivery, Outcome, Verdict, classify, is_idempotent, may_repeat},
    feedback::{MAX_ASK, asked, retry_after},
    http_date::parse_http_date,
    human::parse_duration,
    quota::Quota,
    rate_limit::{MAX_POLICIES, Remaining, RemainingList, remaining},
};

/// The longest duration that a setting may have, 366 days: a leap year covers every published quota, and sums
/// of a few such durations stay far below the 584 years that 64 bits of nanoseconds hold.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Nanoseconds of a duration that may be longer than 64 bits hold, in which case the largest number.
fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A head of these lines, several of one name too.
#[cfg(test)]
fn head_of<'a>(lines: impl IntoIterator<Item = (&'static str, &'a [u8])>) -> http::HeaderMap {
    // `collect` would keep only the last of several.
    lines.into_iter().fold(http::HeaderMap::new(), |mut headers, (name, value)| {
        headers.append(name, http::HeaderValue::from_bytes(value).unwrap());
        headers
    })
}
