use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Response, StatusCode};

use super::{
    limit_headers::{LimitHeaders, LimitState},
    scripted_response::ScriptedResponse,
};
use crate::clock::{self, Instant};

/// Simulates the rate limit of a server, and responds with 200, or with 429 by default if the limit is reached. Use it
/// in a [`ScriptedService`] to test a client and its limiter against a known algorithm.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tower::{Layer, ServiceExt};
/// use tower_outbound::{
///     Body, Quota,
///     limit::{LocalLimiter, RateLimitLayer},
///     test_util::{ScriptedService, ServerLimit},
/// };
///
/// // In a test: #[tokio::test(start_paused = true)]
/// #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let server = ServerLimit::sliding_window(100, Duration::from_secs(60));
///     let limit = server.clone();
///     let api = ScriptedService::from_fn(move |_| limit.respond());
///     let service = RateLimitLayer::new(LocalLimiter::paced_window(Quota::per_minute(100)?)).layer(api);
///     for _ in 0..300 {
///         service.clone().oneshot(Request::new(Body::empty())).await?;
///     }
///     assert_eq!((server.accepted(), server.rejected()), (300, 0));
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

#[derive(Debug)]
struct State {
    kind: Kind,
    /// The limit of one window.
    limit: u32,
    /// The window in seconds.
    window: f64,
    headers: LimitHeaders,
    rejection: StatusCode,
    origin: Instant,
    accepted: u64,
    rejected: u64,
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
        let (headers, rejection, origin) = (LimitHeaders::None, StatusCode::TOO_MANY_REQUESTS, clock::now());
        let state = State { kind, limit, window, headers, rejection, origin, accepted: 0, rejected: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Sets the headers of the responses.
    #[must_use]
    pub fn with_headers(self, headers: LimitHeaders) -> Self {
        self.state().headers = headers;
        self
    }

    /// Sets the status of the responses to rejected requests, 429 by default. nginx rejects requests with a 503 by
    /// default.
    #[must_use]
    pub fn with_rejection(self, status: StatusCode) -> Self {
        self.state().rejection = status;
        self
    }

    /// Changes the limit immediately, also for the current window.
    pub fn set_limit(&self, limit: u32) {
        let mut state = self.state();
        let now = state.now();
        state.refill(now);
        state.limit = limit;
    }

    /// Counts a request that arrives now. Returns a 200, or a rejection if the limit is reached.
    pub fn respond(&self) -> ScriptedResponse {
        let mut state = self.state();
        let now = state.now();
        ScriptedResponse::of_head(state.respond(now))
    }

    /// Counts a request that arrives `at` this time after the creation of the server, like [`respond`](Self::respond).
    /// Reads no clock, so that a simulation can use its own time. Times must not decrease from one call to the next.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::test_util::ServerLimit;
    /// let server = ServerLimit::fixed_window(1, Duration::from_secs(60));
    /// let statuses = [0, 59, 60].map(|at| server.respond_at(Duration::from_secs(at)).status().as_u16());
    /// assert_eq!(statuses, [200, 429, 200]);
    /// ```
    pub fn respond_at(&self, at: Duration) -> Response<()> {
        self.state().respond(at.as_secs_f64())
    }

    /// Returns how many requests were accepted.
    pub fn accepted(&self) -> u64 {
        self.state().accepted
    }

    /// Returns how many requests were rejected.
    pub fn rejected(&self) -> u64 {
        self.state().rejected
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

    fn respond(&mut self, now: f64) -> Response<()> {
        let is_accepted = self.accepts(now);
        self.accepted += u64::from(is_accepted);
        self.rejected += u64::from(!is_accepted);
        let mut response = Response::new(());
        *response.status_mut() = if is_accepted { StatusCode::OK } else { self.rejection };
        let capacity = match self.kind {
            Kind::TokenBucket { capacity: Some(capacity), .. } => capacity,
            _ => self.limit,
        };
        let (limit, window) = (self.limit, self.window);
        let (remaining, reset, next) = (self.remaining(now), self.reset(now), self.next(now));
        let state = LimitState { now, is_accepted, limit, window, capacity, remaining, reset, next };
        self.headers.add_to(response.headers_mut(), &state);
        response
    }
}
