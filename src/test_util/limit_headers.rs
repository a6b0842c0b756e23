use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The rate-limit headers that a [`ServerLimit`](super::ServerLimit) sends. Delays and resets are whole seconds,
/// rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitHeaders {
    /// No rate-limit headers.
    None,
    /// `Retry-After` in the response to each rejected request.
    RetryAfter,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, and `X-RateLimit-Reset` as a number of seconds.
    XRateLimit,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset` as a Unix time, and `Date`.
    XRateLimitEpoch,
    /// `RateLimit: limit=…, remaining=…, reset=…` (draft 7 of the IETF).
    Draft7,
    /// `RateLimit: "default";r=…;t=…` and `RateLimit-Policy: "default";q=…;w=…` (draft 10 of the IETF).
    Draft10,
}

/// The Unix time at which a simulated server starts, in seconds. The fraction makes rounding visible.
const EPOCH: f64 = 1_700_000_000.37;

/// The state that the headers report. Times are seconds.
pub(super) struct LimitState {
    pub(super) now: f64,
    pub(super) is_accepted: bool,
    pub(super) limit: u32,
    pub(super) window: f64,
    /// The bucket capacity of a server that spaces requests, otherwise the limit.
    pub(super) capacity: u32,
    pub(super) remaining: u64,
    /// The time until the whole limit is available, or until the oldest request leaves a sliding window.
    pub(super) reset: f64,
    /// The time until one more request would be accepted.
    pub(super) next: f64,
}

impl LimitHeaders {
    /// Adds the headers to those of a response.
    pub(super) fn add_to(self, headers: &mut HeaderMap, state: &LimitState) {
        let seconds = |seconds: f64| (seconds - 1e-9).ceil().max(0.0) as u64;
        let LimitState { now, is_accepted, limit, window, capacity, remaining, reset, next } = *state;
        let mut add = |name: &'static str, value: String| {
            headers.extend(
                HeaderValue::try_from(value).ok().map(|value| (HeaderName::from_static(name), value)),
            );
        };
        match self {
            Self::None => {}
            Self::RetryAfter if is_accepted => {}
            Self::RetryAfter => add("retry-after", seconds(next).max(1).to_string()),
            Self::XRateLimit => {
                add("x-ratelimit-limit", capacity.to_string());
                add("x-ratelimit-remaining", remaining.to_string());
                add("x-ratelimit-reset", seconds(reset).to_string());
            }
            Self::XRateLimitEpoch => {
                let wall = EPOCH + now;
                let date = UNIX_EPOCH + Duration::from_secs(wall as u64);
                add("x-ratelimit-limit", capacity.to_string());
                add("x-ratelimit-remaining", remaining.to_string());
                add("x-ratelimit-reset", seconds(wall + reset).to_string());
                add("date", httpdate::fmt_http_date(date));
            }
            Self::Draft7 => {
                add(
                    "ratelimit",
                    format!("limit={capacity}, remaining={remaining}, reset={}", seconds(reset)),
                );
            }
            Self::Draft10 => {
                let window = seconds(window).max(1);
                add("ratelimit", format!("\"default\";r={remaining};t={}", seconds(next)));
                add("ratelimit-policy", format!("\"default\";q={limit};w={window}"));
            }
        }
    }
}
