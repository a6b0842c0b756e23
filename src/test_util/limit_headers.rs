use std::time::{Duration, UNIX_EPOCH};

use super::{scripted_response::ScriptedResponse, server_limit::State};

/// The rate-limit headers that a [`ServerLimit`](super::ServerLimit) sends. Delays and resets are whole seconds, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitHeaders {
    /// No rate-limit headers.
    None,
    /// `Retry-After` in each rejection.
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

impl LimitHeaders {
    /// Adds the headers of a server with this `state` to a response.
    pub(super) fn add_to(
        self,
        response: ScriptedResponse,
        state: &State,
        accepted: bool,
        now: f64,
    ) -> ScriptedResponse {
        let seconds = |seconds: f64| (seconds - 1e-9).ceil().max(0.0) as u64;
        let (limit, remaining) = (state.reported_limit(), state.remaining(now));
        let (reset, next) = (seconds(state.reset(now)), seconds(state.next(now)));
        match self {
            Self::None => response,
            Self::RetryAfter if accepted => response,
            Self::RetryAfter => response.with_header("retry-after", &next.max(1).to_string()),
            Self::XRateLimit => response
                .with_header("x-ratelimit-limit", &limit.to_string())
                .with_header("x-ratelimit-remaining", &remaining.to_string())
                .with_header("x-ratelimit-reset", &reset.to_string()),
            Self::XRateLimitEpoch => {
                let wall = EPOCH + now;
                let date = UNIX_EPOCH + Duration::from_secs(wall as u64);
                response
                    .with_header("x-ratelimit-limit", &limit.to_string())
                    .with_header("x-ratelimit-remaining", &remaining.to_string())
                    .with_header("x-ratelimit-reset", &seconds(wall + state.reset(now)).to_string())
                    .with_header("date", &httpdate::fmt_http_date(date))
            }
            Self::Draft7 => response
                .with_header("ratelimit", &format!("limit={limit}, remaining={remaining}, reset={reset}")),
            Self::Draft10 => {
                let (limit, window) = (state.limit, seconds(state.window).max(1));
                response
                    .with_header("ratelimit", &format!("\"default\";r={remaining};t={next}"))
                    .with_header("ratelimit-policy", &format!("\"default\";q={limit};w={window}"))
            }
        }
    }
}
