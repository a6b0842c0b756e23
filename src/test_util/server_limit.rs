use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Response, StatusCode};

use super::{
    count::{Count, Kind},
    limit_headers::LimitHeaders,
    scripted_response::ScriptedResponse,
};

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
#[must_use]
pub struct ServerLimit {
    count: Arc<Mutex<Count>>,
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
        Self { count: Arc::new(Mutex::new(Count::new(kind, limit, window))) }
    }

    /// Sets the headers of the responses.
    pub fn with_headers(self, headers: LimitHeaders) -> Self {
        self.count().headers = headers;
        self
    }

    /// Sets the status of the responses to rejected requests, 429 by default. nginx rejects requests with a 503 by
    /// default.
    pub fn with_rejection(self, status: StatusCode) -> Self {
        self.count().rejection = status;
        self
    }

    /// Rejects all requests for this time after a request that exceeds the limit, like rate-limiter-flexible,
    /// Cloudflare and Airtable. The limit does not count the requests that the block rejects. By default, there is no
    /// block.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::test_util::ServerLimit;
    /// let second = Duration::from_secs(1);
    /// let server = ServerLimit::fixed_window(1, second).with_block(30 * second);
    /// let statuses = [0, 0, 29, 30].map(|at| server.respond_at(at * second).status().as_u16());
    /// assert_eq!(statuses, [200, 429, 429, 200]);
    /// ```
    pub fn with_block(self, duration: Duration) -> Self {
        self.count().block = Some((duration.as_secs_f64(), false));
        self
    }

    /// Rejects all requests for this time after a request that exceeds the limit, like
    /// [`with_block`](Self::with_block). Each rejected request starts the time again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::test_util::ServerLimit;
    /// let second = Duration::from_secs(1);
    /// let server = ServerLimit::fixed_window(1, second).with_extending_block(30 * second);
    /// let statuses = [0, 0, 29, 58, 88].map(|at| server.respond_at(at * second).status().as_u16());
    /// assert_eq!(statuses, [200, 429, 429, 429, 200]);
    /// ```
    pub fn with_extending_block(self, duration: Duration) -> Self {
        self.count().block = Some((duration.as_secs_f64(), true));
        self
    }

    /// Changes the limit immediately, also for the current window.
    pub fn set_limit(&self, limit: u32) {
        let mut count = self.count();
        let now = count.now();
        count.set_limit(limit, now);
    }

    /// Counts a request that arrives now. Returns a 200, or a rejection if the limit is reached.
    pub fn respond(&self) -> ScriptedResponse {
        let mut count = self.count();
        let now = count.now();
        ScriptedResponse::of_head(count.respond(now))
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
        self.count().respond(at.as_secs_f64())
    }

    /// Returns how many requests were accepted.
    pub fn accepted(&self) -> u64 {
        self.count().accepted
    }

    /// Returns how many requests were rejected.
    pub fn rejected(&self) -> u64 {
        self.count().rejected
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
