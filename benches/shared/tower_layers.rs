//! The layers of tower and tower-http, configured like the layers of this crate.

use http::{Request, Response};
use tower::retry::{
    Policy, RetryLayer,
    backoff::{Backoff, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff},
};
use tower_http::{
    auth::AddAuthorizationLayer,
    classify::{ServerErrorsAsFailures, SharedClassifier},
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    trace::{DefaultMakeSpan, DefaultOnResponse, TraceLayer},
};
use tracing::Level;

/// A retry policy for `tower::retry` that is equivalent to `RetryLayer`: the same number of attempts, idempotency rule
/// and retried statuses.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    left: u32,
    backoff: ExponentialBackoff,
}

impl RetryPolicy {
    /// Creates a policy that allows three attempts.
    pub fn new(backoff: &mut ExponentialBackoffMaker) -> Self {
        Self { left: 2, backoff: backoff.make_backoff() }
    }

    /// Returns whether the policy retries a response with this status.
    pub fn is_retryable(status: u16) -> bool {
        matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
    }
}

impl<B: Clone, R, E> Policy<Request<B>, Response<R>, E> for RetryPolicy {
    type Future = <ExponentialBackoff as Backoff>::Future;

    fn retry(&mut self, _: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<Self::Future> {
        let failed = result.as_ref().map_or(true, |response| Self::is_retryable(response.status().as_u16()));
        self.left = self.left.checked_sub(1).filter(|_| failed)?;
        Some(self.backoff.next_backoff())
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        request.method().is_idempotent().then(|| request.clone())
    }
}

/// Creates tower's retry layer with the given backoff, or with tower's default backoff.
pub fn tower_retry(backoff: Option<&mut ExponentialBackoffMaker>) -> RetryLayer<RetryPolicy> {
    RetryLayer::new(RetryPolicy::new(backoff.unwrap_or(&mut ExponentialBackoffMaker::default())))
}

/// The type of tower-http's layers for request id and log, outermost first.
pub type TowerHttpLog = (
    SetRequestIdLayer<MakeRequestUuid>,
    TraceLayer<SharedClassifier<ServerErrorsAsFailures>>,
    PropagateRequestIdLayer,
);

/// Creates tower-http's layers for request id and log.
///
/// The layers create a span and log an event for each call at INFO, as `RequestIdLayer` does. tower-http's default
/// level is DEBUG.
pub fn tower_http_log() -> TowerHttpLog {
    let trace = TraceLayer::new_for_http()
        .make_span_with(DefaultMakeSpan::new().level(Level::INFO))
        .on_response(DefaultOnResponse::new().level(Level::INFO));
    (SetRequestIdLayer::x_request_id(MakeRequestUuid), trace, PropagateRequestIdLayer::x_request_id())
}

/// Creates tower-http's layer that sends a bearer token.
pub fn tower_http_auth() -> AddAuthorizationLayer {
    AddAuthorizationLayer::bearer("s3cret")
}

/// Runs `work` with a tracing subscriber that formats all events from INFO on and discards the text.
pub fn at_info<T>(work: impl FnOnce() -> T) -> T {
    at_level(Level::INFO, work)
}

/// Runs `work` with a tracing subscriber that formats all spans and events from `level` on and discards the text.
pub fn at_level<T>(level: Level, work: impl FnOnce() -> T) -> T {
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::sink).finish();
    let done = tracing::subscriber::with_default(subscriber, work);
    // Clears the subscriber's cached interest, so that rows measured later do not check every event.
    tracing::callsite::rebuild_interest_cache();
    done
}
