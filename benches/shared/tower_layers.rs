//! The layers of tower and tower-http, made to do what ours do.

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

/// What `tower::retry` leaves to its user, cut to what our layer does: what it sends again, how often, how late.
#[derive(Debug, Clone)]
pub struct Attempts {
    left: u32,
    backoff: ExponentialBackoff,
}

impl Attempts {
    /// Three, the first counted.
    pub fn new(backoff: &mut ExponentialBackoffMaker) -> Self {
        Self { left: 2, backoff: backoff.make_backoff() }
    }

    /// Whether an answer of that status is a reason to try again.
    pub fn fails(status: u16) -> bool {
        matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
    }
}

impl<B: Clone, R, E> Policy<Request<B>, Response<R>, E> for Attempts {
    type Future = <ExponentialBackoff as Backoff>::Future;

    fn retry(&mut self, _: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<Self::Future> {
        let failed = result.as_ref().map_or(true, |response| Self::fails(response.status().as_u16()));
        self.left = self.left.checked_sub(1).filter(|_| failed)?;
        Some(self.backoff.next_backoff())
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        request.method().is_idempotent().then(|| request.clone())
    }
}

/// With that back-off, or with tower's own.
pub fn tower_retry(backoff: Option<&mut ExponentialBackoffMaker>) -> RetryLayer<Attempts> {
    RetryLayer::new(Attempts::new(backoff.unwrap_or(&mut ExponentialBackoffMaker::default())))
}

/// Request id and log, outermost first.
pub type TheirLog = (
    SetRequestIdLayer<MakeRequestUuid>,
    TraceLayer<SharedClassifier<ServerErrorsAsFailures>>,
    PropagateRequestIdLayer,
);

/// A span and one line a call, at the level of ours. By default it is quiet at INFO.
pub fn their_log() -> TheirLog {
    let trace = TraceLayer::new_for_http()
        .make_span_with(DefaultMakeSpan::new().level(Level::INFO))
        .on_response(DefaultOnResponse::new().level(Level::INFO));
    (SetRequestIdLayer::x_request_id(MakeRequestUuid), trace, PropagateRequestIdLayer::x_request_id())
}

/// The key, not marked as sensitive unless it is asked to be.
pub fn their_key() -> AddAuthorizationLayer {
    AddAuthorizationLayer::bearer("s3cret")
}

/// Runs `work` with every line from INFO on written, as text, to nowhere.
pub fn at_info<T>(work: impl FnOnce() -> T) -> T {
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    let done = tracing::subscriber::with_default(subscriber, work);
    // Or what comes after would still ask whether somebody listens.
    tracing::callsite::rebuild_interest_cache();
    done
}
