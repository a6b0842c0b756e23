use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The rate-limit headers that a [`ServerLimit`](super::ServerLimit) sends. Delays and resets are whole seconds,
/// rounded up, unless the variant states otherwise.
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
    /// `RateLimit: "default";r=…;t=…` and `RateLimit-Policy: "default";q=…;w=…` (drafts 10 and 11 of the IETF).
    Draft10,
    /// OpenAI's headers: `x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests` such as `1m0.25s`, and
    /// `retry-after-ms` if the request is rejected.
    OpenAi,
    /// Anthropic's headers: `anthropic-ratelimit-requests-limit`, `-remaining`, `-reset` as a time of RFC 3339, and
    /// `retry-after` if the request is rejected.
    Anthropic,
    /// GitHub's headers: those of `XRateLimitEpoch`, `X-RateLimit-Used` and `X-RateLimit-Resource`. GitHub rejects with
    /// a 403 or a 429.
    GitHub,
    /// Shopify's header `X-Shopify-Shop-Api-Call-Limit: 32/40` of a bucket that refills in 20 s, and `Retry-After: 2.0`
    /// if the request is rejected.
    Shopify,
    /// Discord's headers: those of `XRateLimitEpoch` with milliseconds, `X-RateLimit-Reset-After`,
    /// `X-RateLimit-Bucket`, and `Retry-After` if the request is rejected.
    Discord,
    /// Jira's headers: `X-RateLimit-Limit`, `-Remaining`, `-Reset` as a time of RFC 3339, `RateLimit-Reason` and
    /// `Retry-After` if the request is rejected.
    Jira,
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
        let (wall, used) = (EPOCH + now, u64::from(capacity).saturating_sub(remaining));
        let mut add = |name: &'static str, value: String| {
            headers.extend(
                HeaderValue::try_from(value).ok().map(|value| (HeaderName::from_static(name), value)),
            );
        };
        if matches!(
            self,
            Self::XRateLimit | Self::XRateLimitEpoch | Self::GitHub | Self::Discord | Self::Jira
        ) {
            add("x-ratelimit-limit", capacity.to_string());
            add("x-ratelimit-remaining", remaining.to_string());
        }
        match self {
            Self::None | Self::RetryAfter => {}
            Self::XRateLimit => add("x-ratelimit-reset", seconds(reset).to_string()),
            Self::XRateLimitEpoch | Self::GitHub => {
                add("x-ratelimit-reset", seconds(wall + reset).to_string());
                add("date", date(wall));
                if self == Self::GitHub {
                    add("x-ratelimit-used", used.to_string());
                    add("x-ratelimit-resource", "core".to_owned());
                }
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
            Self::OpenAi => {
                add("x-ratelimit-limit-requests", capacity.to_string());
                add("x-ratelimit-remaining-requests", remaining.to_string());
                let (minutes, seconds) = ((reset / 60.0).floor(), millis(reset % 60.0));
                add("x-ratelimit-reset-requests", format!("{minutes}m{seconds}s"));
            }
            Self::Anthropic => {
                add("anthropic-ratelimit-requests-limit", capacity.to_string());
                add("anthropic-ratelimit-requests-remaining", remaining.to_string());
                add("anthropic-ratelimit-requests-reset", rfc3339(wall + reset));
                add("date", date(wall));
            }
            Self::Shopify => add("x-shopify-shop-api-call-limit", format!("{used}/{capacity}")),
            Self::Discord => {
                add("x-ratelimit-reset", millis(wall + reset).to_string());
                add("x-ratelimit-reset-after", millis(reset).to_string());
                add("x-ratelimit-bucket", "abcd1234".to_owned());
                add("date", date(wall));
            }
            Self::Jira => {
                add("x-ratelimit-reset", rfc3339(wall + reset));
                add("date", date(wall));
            }
        }
        if is_accepted {
            return;
        }
        match self {
            Self::RetryAfter | Self::Anthropic | Self::Discord | Self::Jira => {
                add("retry-after", seconds(next).max(1).to_string());
            }
            Self::Shopify => add("retry-after", format!("{:.1}", millis(next).max(0.1))),
            Self::OpenAi => add("retry-after-ms", (millis(next) * 1e3).to_string()),
            _ => {}
        }
        if self == Self::Jira {
            add("ratelimit-reason", "jira-burst-based".to_owned());
        }
    }
}

/// Rounds up to a millisecond.
fn millis(seconds: f64) -> f64 {
    (seconds.max(0.0) * 1e3 - 1e-6).ceil() / 1e3
}

/// Formats a Unix time as an HTTP-date, rounded down.
fn date(wall: f64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(wall as u64))
}

/// Formats a Unix time as in RFC 3339, rounded up to a second.
fn rfc3339(wall: f64) -> String {
    let text = date(wall.ceil());
    let [_, day, month, year, time, _] = text.split(' ').collect::<Vec<_>>()[..] else { return text };
    let month = "JanFebMarAprMayJunJulAugSepOctNovDec".find(month).map_or(0, |at| at / 3 + 1);
    format!("{year}-{month:02}-{day}T{time}Z")
}
