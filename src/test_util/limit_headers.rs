use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::count::Count;

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
    /// HubSpot's headers, which state no reset: `X-HubSpot-RateLimit-Max`, `-Remaining` and `-Interval-Milliseconds`.
    HubSpot,
}

/// The Unix time at which a simulated server starts, in seconds. The fraction makes rounding visible.
const EPOCH: f64 = 1_700_000_000.37;

impl LimitHeaders {
    /// Adds the headers to those of the response to a request that the server has counted.
    pub(super) fn add_to(self, headers: &mut HeaderMap, count: &Count, is_accepted: bool, now: f64) {
        let (capacity, blocked, wall) = (count.capacity(), count.blocked(now), EPOCH + now);
        let remaining = if blocked > 0.0 { 0 } else { count.remaining(now) };
        // The time until the whole limit is available, or until the oldest request leaves a sliding window, and the
        // time until one more request would be accepted.
        let (reset, next) = (count.reset(now).max(blocked), count.next(now).max(blocked));
        let used = u64::from(capacity).saturating_sub(remaining);
        let mut add = |name: String, value: String| {
            let (name, value) = (HeaderName::try_from(name), HeaderValue::try_from(value));
            headers.extend(name.ok().zip(value.ok()));
        };
        // The text before and after `limit`, `remaining` and `reset` in the names of three headers, and the reset.
        let quota = match self {
            Self::XRateLimit => Some(("x-ratelimit-", "", seconds(reset).to_string())),
            Self::XRateLimitEpoch | Self::GitHub => {
                Some(("x-ratelimit-", "", seconds(wall + reset).to_string()))
            }
            Self::OpenAi => {
                let (minutes, seconds) = ((reset / 60.0).floor(), millis(reset % 60.0));
                Some(("x-ratelimit-", "-requests", format!("{minutes}m{seconds}s")))
            }
            Self::Anthropic => Some(("anthropic-ratelimit-requests-", "", rfc3339(wall + reset))),
            Self::Discord => Some(("x-ratelimit-", "", millis(wall + reset).to_string())),
            Self::Jira => Some(("x-ratelimit-", "", rfc3339(wall + reset))),
            _ => None,
        };
        if let Some((before, after, reset)) = quota {
            add(format!("{before}limit{after}"), capacity.to_string());
            add(format!("{before}remaining{after}"), remaining.to_string());
            add(format!("{before}reset{after}"), reset);
        }
        let others = match self {
            Self::Draft7 => {
                let reset = seconds(reset);
                vec![("ratelimit", format!("limit={capacity}, remaining={remaining}, reset={reset}"))]
            }
            Self::Draft10 => {
                let (limit, window) = (count.limit, seconds(count.window).max(1));
                let policy = format!("\"default\";q={limit};w={window}");
                let state = format!("\"default\";r={remaining};t={}", seconds(next));
                vec![("ratelimit", state), ("ratelimit-policy", policy)]
            }
            Self::GitHub => {
                vec![("x-ratelimit-used", used.to_string()), ("x-ratelimit-resource", "core".into())]
            }
            Self::HubSpot => vec![
                ("x-hubspot-ratelimit-max", capacity.to_string()),
                ("x-hubspot-ratelimit-remaining", remaining.to_string()),
                ("x-hubspot-ratelimit-interval-milliseconds", (millis(count.window) * 1e3).to_string()),
            ],
            Self::Shopify => vec![("x-shopify-shop-api-call-limit", format!("{used}/{capacity}"))],
            Self::Discord => vec![
                ("x-ratelimit-reset-after", millis(reset).to_string()),
                ("x-ratelimit-bucket", "abcd1234".into()),
            ],
            Self::Jira if !is_accepted => vec![("ratelimit-reason", "jira-burst-based".into())],
            _ => Vec::new(),
        };
        let has_date = matches!(
            self,
            Self::XRateLimitEpoch | Self::Anthropic | Self::GitHub | Self::Discord | Self::Jira
        );
        let delay = match self {
            _ if is_accepted => None,
            Self::RetryAfter | Self::Anthropic | Self::Discord | Self::Jira => {
                Some(("retry-after", seconds(next).max(1).to_string()))
            }
            Self::Shopify => Some(("retry-after", format!("{:.1}", millis(next).max(0.1)))),
            Self::OpenAi => Some(("retry-after-ms", (millis(next) * 1e3).to_string())),
            _ => None,
        };
        let date = has_date.then(|| ("date", date(wall)));
        others.into_iter().chain(date).chain(delay).for_each(|(name, value)| add(name.into(), value));
    }
}

/// Rounds up to whole seconds.
fn seconds(seconds: f64) -> u64 {
    (seconds - 1e-9).ceil().max(0.0) as u64
}

/// Rounds up to a millisecond.
fn millis(seconds: f64) -> f64 {
    // The text of -0 has a sign.
    (seconds.max(0.0) * 1e3 - 1e-6).ceil().abs() / 1e3
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
