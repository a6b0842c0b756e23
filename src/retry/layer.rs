use std::{fmt, sync::Arc, time::Duration};

use http::request;
use tower_layer::Layer;

use super::{
    Classify, IdempotencyKey, Outcome, Retry, Schedule, Standard, per_request::at_least_one,
    schedule::Backoff,
};
use crate::{
    body::DEFAULT_REPLAY_LIMIT,
    error::InvalidConfig,
    policy::{Budget, Cause, ExponentialBackoff, Verdict},
    random::Random,
};

/// Sends a request again when it failed in passing and sending it again can do no harm.
///
/// # Default
///
/// 3 attempts (as the AWS SDKs make); the back-offs of
/// [`ExponentialBackoff::transient`] and [`ExponentialBackoff::throttled`]; a `Retry-After` of up to 120 s
/// obeyed; bodies of up to 1 MiB sent again; a [`Budget`] of the AWS SDKs' numbers.
///
/// # Clone
///
/// Clones share the budget, and the source of jitter, so that no two of them draw the same.
#[derive(Debug, Clone)]
pub struct RetryLayer {
    pub(super) policy: Arc<Policy>,
}

/// What the layer was told, shared by all its services.
#[derive(Clone)]
pub(super) struct Policy {
    pub(super) max_attempts: u32,
    /// None for [`Standard`], which does not look at the request.
    classify: Option<Arc<dyn Classify>>,
    pub(super) idempotency_key: Option<IdempotencyKey>,
    idempotent: Option<Arc<IsIdempotent>>,
    pub(super) budget: Option<Budget>,
    pub(super) max_retry_after: Duration,
    pub(super) replay_limit: usize,
    pub(super) random: Arc<Random>,
    /// Of idempotency keys, which no seed may make repeat.
    pub(super) keys: Arc<Random>,
    transient: Backoff,
    throttled: Backoff,
}

type IsIdempotent = dyn Fn(&request::Parts) -> bool + Send + Sync;

impl Policy {
    /// Whether the layer was told so of requests like this.
    pub(super) fn is_idempotent(&self, head: &request::Parts) -> bool {
        self.idempotent.as_ref().is_some_and(|rule| rule(head))
    }

    /// Whether anybody but the next attempt wants the request.
    pub(super) fn shows_requests(&self) -> bool {
        self.classify.is_some()
    }

    /// `head` is there where this policy [shows](Self::shows_requests) it.
    pub(super) fn classify(&self, head: Option<&request::Parts>, outcome: &Outcome<'_>) -> Verdict {
        match (&self.classify, head) {
            (Some(classify), Some(head)) => classify.classify(head, outcome),
            _ => Standard.verdict(outcome),
        }
    }

    pub(super) fn backoff(&self, cause: Cause) -> &Backoff {
        match cause {
            Cause::Throttled => &self.throttled,
            Cause::Transient => &self.transient,
        }
    }
}

impl RetryLayer {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            policy: Arc::new(Policy {
                max_attempts: 3,
                classify: None,
                idempotency_key: None,
                idempotent: None,
                budget: Some(Budget::new()),
                transient: Backoff::Exponential(ExponentialBackoff::transient()),
                throttled: Backoff::Exponential(ExponentialBackoff::throttled()),
                max_retry_after: Duration::from_secs(120),
                replay_limit: DEFAULT_REPLAY_LIMIT,
                random: Arc::new(Random::from_entropy()),
                keys: Arc::new(Random::from_entropy()),
            }),
        }
    }

    /// At most `max_attempts` attempts, the first counted. 3 by default; 1 means that nothing is sent again, but for the
    /// one time after a 401 whose key is replaced, which does not count;
    /// [`RetryOverride::never`](super::RetryOverride::never) rules out that, too.
    ///
    /// # Errors
    ///
    /// When it is 0.
    pub fn with_max_attempts(self, max_attempts: u32) -> Result<Self, InvalidConfig> {
        let max_attempts = at_least_one(max_attempts)?;
        Ok(self.set(|policy| policy.max_attempts = max_attempts))
    }

    /// Judges the outcome of an attempt by this. [`Standard`] by default.
    pub fn with_classify(self, classify: impl Classify + 'static) -> Self {
        self.set(|policy| policy.classify = Some(Arc::new(classify)))
    }

    /// Says of which requests doing them twice is doing them once, whatever their method: a POST that only searches, a
    /// method of a gRPC service that only reads. They may be sent again after an attempt that may have been processed.
    /// Of one request it is said by [`RetryOverride::idempotent`](super::RetryOverride::idempotent).
    ///
    /// ```
    /// use tower_outbound::retry::RetryLayer;
    ///
    /// let layer = RetryLayer::new().with_idempotent(|head| head.uri.path() == "/v1/searches");
    /// ```
    pub fn with_idempotent(self, rule: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.set(|policy| policy.idempotent = Some(Arc::new(rule)))
    }

    /// Puts an idempotency key on each request whose method is not idempotent, and then sends it again like any other.
    ///
    /// By saying this you say that **the server honours such keys**: of one that does not know the header, a POST that is
    /// sent again asks for a second e-mail or a second payment. None of the presets' services is known to.
    pub fn with_honoured_idempotency_key(self, key: IdempotencyKey) -> Self {
        self.set(|policy| policy.idempotency_key = Some(key))
    }

    /// Sets the backoff after a transient failure. [`ExponentialBackoff::transient`] by default.
    pub fn with_backoff(self, backoff: ExponentialBackoff) -> Self {
        self.set(|policy| policy.transient = Backoff::Exponential(backoff))
    }

    /// Sets the backoff after a 429, a 529, or gRPC's `RESOURCE_EXHAUSTED`. [`ExponentialBackoff::throttled`] by default.
    pub fn with_throttled_backoff(self, backoff: ExponentialBackoff) -> Self {
        self.set(|policy| policy.throttled = Backoff::Exponential(backoff))
    }

    /// Back-offs of another make in place of [`with_backoff`](Self::with_backoff); a call that has used them up makes no
    /// further attempt. What the server asks for still goes before, and never shorter.
    pub fn with_schedule(self, schedule: impl Schedule + 'static) -> Self {
        self.set(|policy| policy.transient = Backoff::Other(Arc::new(schedule)))
    }

    /// The same in place of [`with_throttled_backoff`](Self::with_throttled_backoff).
    pub fn with_throttled_schedule(self, schedule: impl Schedule + 'static) -> Self {
        self.set(|policy| policy.throttled = Backoff::Other(Arc::new(schedule)))
    }

    /// Another budget, which may be shared with other layers for the same service.
    pub fn with_budget(self, budget: Budget) -> Self {
        self.set(|policy| policy.budget = Some(budget))
    }

    /// Every call may use all its attempts, however many fail: a service that is down gets three times the requests.
    pub fn without_budget(self) -> Self {
        self.set(|policy| policy.budget = None)
    }

    /// The longest pause asked for by the server that is waited out. When it asks for more, its answer is handed
    /// over at once. 120 s by default.
    pub fn with_max_retry_after(self, longest: Duration) -> Self {
        self.set(|policy| policy.max_retry_after = longest)
    }

    /// The largest body, in bytes, that is kept in memory to be sent again. 1 MiB by default; a larger one is
    /// sent once.
    pub fn with_replay_limit(self, bytes: usize) -> Self {
        self.set(|policy| policy.replay_limit = bytes)
    }

    /// Draws the jitter from this seed: the same delays in every run of a test.
    pub fn with_seed(self, seed: u64) -> Self {
        self.set(|policy| policy.random = Arc::new(Random::seeded(seed)))
    }

    fn set(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }
}

impl Default for RetryLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry::new(inner, Arc::clone(&self.policy))
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("max_attempts", &self.max_attempts)
            .field("idempotency_key", &self.idempotency_key)
            .field("budget", &self.budget)
            .field("transient", &self.transient)
            .field("throttled", &self.throttled)
            .field("max_retry_after", &self.max_retry_after)
            .field("replay_limit", &self.replay_limit)
            .finish_non_exhaustive()
    }
}
