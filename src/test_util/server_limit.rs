use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::scripted_response::ScriptedResponse;
use crate::clock::{self, Instant};

/// Simulates the rate limit of a server, and responds with 200 or 429. Use it in a [`ScriptedService`] to test a client
/// and its limiter against a known algorithm.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tower::{Layer, ServiceExt};
/// use tower_outbound::{
///     Body, Quota,
///     limit::{PacedWindow, RateLimitLayer},
///     test_util::{ScriptedService, ServerLimit},
/// };
///
/// // In a test: #[tokio::test(start_paused = true)]
/// #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let server = ServerLimit::sliding_window(100, Duration::from_secs(60));
///     let limit = server.clone();
///     let api = ScriptedService::from_fn(move |_| limit.respond());
///     let service = RateLimitLayer::new(PacedWindow::new(Quota::per_minute(100)?)).layer(api);
///     for _ in 0..300 {
///         service.clone().oneshot(Request::new(Body::empty())).await?;
///     }
///     assert_eq!((server.accepted(), server.refused()), (300, 0));
///     Ok(())
/// }
/// ```
///
/// The responses have no rate-limit headers by default: see [`with_headers`](Self::with_headers).
///
/// # Clone
///
/// All clones share the state.
///
/// [`ScriptedService`]: super::ScriptedService
#[derive(Debug, Clone)]
pub struct ServerLimit {
    state: Arc<Mutex<State>>,
}

/// The rate-limit headers that a [`ServerLimit`] sends. Delays and resets are whole seconds, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitHeaders {
    /// No rate-limit headers.
    None,
    /// `Retry-After` in each 429 response.
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

/// Formats a Unix time in seconds as an HTTP-date.
fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from March of the year 0, so that the leap day is the last day of a year.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let year = 400 * era + year_of_era + u64::from(month >= 10);
    format!(
        "{}, {:02} {} {year} {:02}:{:02}:{:02} GMT",
        DAYS[days as usize % 7],
        day_of_year - (153 * month + 2) / 5 + 1,
        MONTHS[month as usize % 12],
        time / 3_600,
        time / 60 % 60,
        time % 60
    )
}

#[derive(Debug)]
struct State {
    kind: Kind,
    /// The limit of one window.
    limit: u32,
    /// The window in seconds.
    window: f64,
    headers: LimitHeaders,
    origin: Instant,
    accepted: u64,
    refused: u64,
}

/// How the server counts requests. Times are seconds since the origin.
#[derive(Debug)]
enum Kind {
    /// A bucket of `capacity` tokens, or of `limit` tokens if `capacity` is `None`.
    TokenBucket { capacity: Option<u32>, tokens: f64, at: f64 },
    /// A counter that is reset at `end`, the end of the current window. The windows are aligned to `phase`. If `phase`
    /// is `None`, each window starts with the first request after the previous window.
    FixedWindow { phase: Option<f64>, end: f64, used: u32 },
    /// The times of the accepted requests of the last window.
    SlidingWindow { log: VecDeque<f64> },
    /// The counts of all requests, including rejected ones, in the current and in the previous window.
    Estimate { phase: f64, number: f64, current: u32, previous: u32 },
}

impl ServerLimit {
    /// Accepts as many requests at once as the bucket has tokens. The bucket holds `limit` tokens, and refills evenly
    /// at `limit` tokens per window.
    pub fn token_bucket(limit: u32, window: Duration) -> Self {
        Self::new(Kind::TokenBucket { capacity: None, tokens: limit.into(), at: 0.0 }, limit, window)
    }

    /// Accepts one request per `window / limit`, and up to `burst` more at once, like nginx's `limit_req` with
    /// `nodelay`.
    pub fn spacing(limit: u32, window: Duration, burst: u32) -> Self {
        let capacity = burst.saturating_add(1);
        Self::new(
            Kind::TokenBucket { capacity: Some(capacity), tokens: capacity.into(), at: 0.0 },
            limit,
            window,
        )
    }

    /// Accepts `limit` requests in each window. A window starts with the first request after the previous window.
    pub fn fixed_window(limit: u32, window: Duration) -> Self {
        Self::new(Kind::FixedWindow { phase: None, end: 0.0, used: 0 }, limit, window)
    }

    /// Accepts `limit` requests in each window. The windows are fixed, like windows aligned to a server's clock. One of
    /// them starts `phase` after the creation of the server.
    pub fn clock_window(limit: u32, window: Duration, phase: Duration) -> Self {
        let phase = Some(phase.as_secs_f64());
        Self::new(Kind::FixedWindow { phase, end: 0.0, used: 0 }, limit, window)
    }

    /// Accepts a request if fewer than `limit` requests were accepted in the window before it.
    pub fn sliding_window(limit: u32, window: Duration) -> Self {
        Self::new(Kind::SlidingWindow { log: VecDeque::new() }, limit, window)
    }

    /// Accepts a request if the estimated number of requests in the last window is at most `limit`. The estimate uses
    /// the counts of the current and the previous clock window, like HAProxy's `http_req_rate`. The counts include
    /// rejected requests.
    pub fn estimate(limit: u32, window: Duration, phase: Duration) -> Self {
        let kind = Kind::Estimate { phase: phase.as_secs_f64(), number: -1.0, current: 0, previous: 0 };
        Self::new(kind, limit, window)
    }

    fn new(kind: Kind, limit: u32, window: Duration) -> Self {
        let window = window.as_secs_f64();
        let (headers, origin) = (LimitHeaders::None, clock::now());
        let state = State { kind, limit, window, headers, origin, accepted: 0, refused: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Sets the headers of the responses.
    #[must_use]
    pub fn with_headers(self, headers: LimitHeaders) -> Self {
        self.state().headers = headers;
        self
    }

    /// Changes the limit immediately, also for the current window.
    pub fn set_limit(&self, limit: u32) {
        let mut state = self.state();
        let now = state.now();
        state.refill(now);
        state.limit = limit;
    }

    /// Counts a request that arrives now. Returns a 200, or a 429 if the limit is reached.
    pub fn respond(&self) -> ScriptedResponse {
        let mut state = self.state();
        let now = state.now();
        let accepted = state.accepts(now);
        if accepted {
            state.accepted += 1;
        } else {
            state.refused += 1;
        }
        state.response(accepted, now)
    }

    /// Returns how many requests were accepted.
    pub fn accepted(&self) -> u64 {
        self.state().accepted
    }

    /// Returns how many requests were rejected with a 429.
    pub fn refused(&self) -> u64 {
        self.state().refused
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn now(&self) -> f64 {
        clock::now().duration_since(self.origin).as_secs_f64()
    }

    /// Adds the tokens of the elapsed time to a bucket.
    fn refill(&mut self, now: f64) {
        if let Kind::TokenBucket { capacity, tokens, at } = &mut self.kind {
            let rate = f64::from(self.limit) / self.window;
            *tokens = (*tokens + (now - *at) * rate).min(capacity.unwrap_or(self.limit).into());
            *at = now;
        }
    }

    fn accepts(&mut self, now: f64) -> bool {
        self.refill(now);
        let (limit, window) = (self.limit, self.window);
        match &mut self.kind {
            Kind::TokenBucket { tokens, .. } => {
                let accepted = *tokens >= 1.0 - 1e-9;
                if accepted {
                    *tokens -= 1.0;
                }
                accepted
            }
            Kind::FixedWindow { phase, end, used } => {
                if now >= *end {
                    *used = 0;
                    *end = match *phase {
                        None => now + window,
                        Some(phase) => (((now - phase) / window).floor() + 1.0) * window + phase,
                    };
                }
                let accepted = *used < limit;
                *used += u32::from(accepted);
                accepted
            }
            Kind::SlidingWindow { log } => {
                while log.front().is_some_and(|at| *at <= now - window) {
                    log.pop_front();
                }
                let accepted = log.len() < limit as usize;
                if accepted {
                    log.push_back(now);
                }
                accepted
            }
            Kind::Estimate { phase, number, current, previous } => {
                let this = ((now - *phase) / window).floor();
                if this > *number {
                    *previous = if this - *number < 1.5 { *current } else { 0 };
                    (*current, *number) = (0, this);
                }
                *current += 1;
                self.estimate(now) <= limit.into()
            }
        }
    }

    /// Returns the estimated number of requests in the last window.
    fn estimate(&self, now: f64) -> f64 {
        match self.kind {
            Kind::Estimate { phase, number, current, previous } => {
                let rest = 1.0 - ((now - phase) / self.window - number);
                f64::from(current) + f64::from(previous) * rest
            }
            _ => 0.0,
        }
    }

    /// Returns how many more requests would be accepted now.
    fn remaining(&self, now: f64) -> u64 {
        let limit = f64::from(self.limit);
        let remaining = match &self.kind {
            Kind::TokenBucket { tokens, .. } => *tokens + 1e-9,
            Kind::FixedWindow { used, .. } => limit - f64::from(*used),
            Kind::SlidingWindow { log } => limit - log.len() as f64,
            Kind::Estimate { .. } => limit - self.estimate(now),
        };
        remaining.max(0.0) as u64
    }

    /// Returns the seconds until the whole limit is available, or until the oldest request leaves a sliding window.
    fn reset(&self, now: f64) -> f64 {
        match &self.kind {
            Kind::TokenBucket { capacity, tokens, .. } => {
                (f64::from(capacity.unwrap_or(self.limit)) - tokens) * self.window / f64::from(self.limit)
            }
            Kind::FixedWindow { end, .. } => end - now,
            Kind::SlidingWindow { log } => log.front().map_or(0.0, |oldest| oldest + self.window - now),
            Kind::Estimate { phase, number, .. } => (number + 1.0) * self.window + phase - now,
        }
    }

    /// Returns the seconds until one more request would be accepted.
    fn next(&self, now: f64) -> f64 {
        match &self.kind {
            Kind::TokenBucket { tokens, .. } => (1.0 - tokens).max(0.0) * self.window / f64::from(self.limit),
            Kind::Estimate { current, previous, .. } => {
                let (current, previous) = (f64::from(*current), f64::from(*previous));
                let above = (self.estimate(now) + 1.0 - f64::from(self.limit)).max(0.0);
                // The share of the previous window in the estimate falls linearly to zero at the end of the current
                // window.
                let in_this_window = above * self.window / previous.max(f64::MIN_POSITIVE);
                if above <= 0.0 || in_this_window <= self.reset(now) {
                    return in_this_window;
                }
                let surplus = (current + 1.0 - f64::from(self.limit)).max(0.0);
                self.reset(now) + surplus / current.max(1.0) * self.window
            }
            _ if self.remaining(now) > 0 => 0.0,
            _ => self.reset(now),
        }
    }

    fn response(&self, accepted: bool, now: f64) -> ScriptedResponse {
        let response = ScriptedResponse::status(if accepted { 200 } else { 429 });
        let seconds = |seconds: f64| (seconds - 1e-9).ceil().max(0.0) as u64;
        let (remaining, reset) = (self.remaining(now), seconds(self.reset(now)));
        // If the bucket has a capacity of its own, the headers report the capacity as the limit.
        let limit = match self.kind {
            Kind::TokenBucket { capacity: Some(capacity), .. } => capacity,
            _ => self.limit,
        };
        match self.headers {
            LimitHeaders::None => response,
            LimitHeaders::RetryAfter if accepted => response,
            LimitHeaders::RetryAfter => {
                response.with_header("retry-after", &seconds(self.next(now)).max(1).to_string())
            }
            LimitHeaders::XRateLimit => response
                .with_header("x-ratelimit-limit", &limit.to_string())
                .with_header("x-ratelimit-remaining", &remaining.to_string())
                .with_header("x-ratelimit-reset", &reset.to_string()),
            LimitHeaders::XRateLimitEpoch => {
                let wall = EPOCH + now;
                response
                    .with_header("x-ratelimit-limit", &limit.to_string())
                    .with_header("x-ratelimit-remaining", &remaining.to_string())
                    .with_header("x-ratelimit-reset", &seconds(wall + self.reset(now)).to_string())
                    .with_header("date", &http_date(wall as u64))
            }
            LimitHeaders::Draft7 => response
                .with_header("ratelimit", &format!("limit={limit}, remaining={remaining}, reset={reset}")),
            LimitHeaders::Draft10 => response
                .with_header("ratelimit", &format!("\"default\";r={remaining};t={}", seconds(self.next(now))))
                .with_header("ratelimit-policy", &format!("\"default\";q={};w={}", self.limit, self.window)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::http_date;

    #[test]
    fn http_date_has_the_weekday_month_and_leap_day_of_the_calendar() {
        for (seconds, date) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_700_000_000, "Tue, 14 Nov 2023 22:13:20 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
        ] {
            assert_eq!(http_date(seconds), date);
        }
    }
}
