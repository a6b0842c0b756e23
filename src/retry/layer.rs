use std::{sync::Arc, time::Duration};

use http::StatusCode;
use tower_layer::Layer;

use super::{
    AttemptResult, Backoff, Classify, IdempotencyKey, Retry, backoff::AnyBackoff, classify::Rule,
    overrides::at_least_one, policy::Policy,
};
use crate::{
    body::DEFAULT_REPLAY_LIMIT,
    call::RequestHead,
    config::InvalidConfig,
    policy::{Budget, ExponentialBackoff, RetryDecision},
    random::Random,
};

/// Retries a request after a temporary failure, if a retry is safe.
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::retry::RetryLayer;
///
/// let layer = RetryLayer::new().with_max_attempts(5)?.retry_on(StatusCode::CONFLICT);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Default
///
/// - 3 attempts, as the AWS SDKs make.
/// - The backoffs [`ExponentialBackoff::transient`] and [`ExponentialBackoff::throttled`].
/// - A `Retry-After` of up to 120 s is obeyed.
/// - Bodies of up to 1 MiB are replayed.
/// - A [`Budget`] with the numbers of the AWS SDKs.
///
/// # Clone
///
/// Clones share the budget and the source of jitter, so that no two of them draw the same jitter.
///
/// # Configuration
///
/// With the feature `serde` a file has these fields:
///
/// | field | default |
/// |---|---|
/// | `max_attempts` | 3 |
/// | `max_retry_after` | `120s` |
/// | `replay_limit` | 1 MiB, in bytes |
/// | `retry_on`, `never_on` | `[]`: statuses such as `[409, 425]`. `never_on` overrides `retry_on` |
/// | `backoff` | [`ExponentialBackoff::transient`]: `base`, `cap`, `jitter` |
/// | `throttled_backoff` | [`ExponentialBackoff::throttled`]: `base`, `cap`, `jitter` |
/// | `budget` | [`Budget::new`]: `enabled`, `capacity`, `retry_cost`, `throttled_cost`, `success_gain` |
/// | `honoured_idempotency_key` | none: `header`, `quoted` |
///
/// `Serialize` omits the other settings.
#[derive(Debug, Clone)]
pub struct RetryLayer {
    pub(super) policy: Arc<Policy>,
}

impl RetryLayer {
    /// Returns a layer with the defaults.
    pub fn new() -> Self {
        Self {
            policy: Arc::new(Policy {
                max_attempts: 3,
                classify: None,
                rules: Vec::new(),
                idempotency_key: None,
                idempotent: None,
                budget: Some(Budget::new()),
                transient: AnyBackoff::Exponential(ExponentialBackoff::transient()),
                throttled: AnyBackoff::Exponential(ExponentialBackoff::throttled()),
                max_retry_after: Duration::from_secs(120),
                replay_limit: DEFAULT_REPLAY_LIMIT,
                random: Arc::new(Random::from_entropy()),
                keys: Arc::new(Random::from_entropy()),
            }),
        }
    }

    /// Sets the number of attempts, including the first. 3 by default.
    ///
    /// 1 disables retries, except for the resend after a 401 whose key is replaced, which does not count.
    /// [`RetryOverride::without_retries`](super::RetryOverride::without_retries) disables that, too.
    ///
    /// # Errors
    ///
    /// Returns an error if the number is 0.
    pub fn with_max_attempts(self, max_attempts: u32) -> Result<Self, InvalidConfig> {
        let max_attempts = at_least_one(max_attempts)?;
        Ok(self.set(|policy| policy.max_attempts = max_attempts))
    }

    /// Also retries after this status, with the throttled backoff if it is 429 or 529.
    ///
    /// This rule, [`never_on`](Self::never_on) and [`retry_if`](Self::retry_if) are evaluated before the classifier, the
    /// last added one first.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_outbound::retry::RetryLayer;
    ///
    /// let layer = RetryLayer::new()
    ///     .retry_on(StatusCode::CONFLICT)
    ///     .never_on(StatusCode::INTERNAL_SERVER_ERROR);
    /// ```
    pub fn retry_on(self, status: StatusCode) -> Self {
        self.set(|policy| policy.rules.push(Rule::Status(status, RetryDecision::retry(Some(status)))))
    }

    /// Never retries after this status.
    pub fn never_on(self, status: StatusCode) -> Self {
        self.set(|policy| policy.rules.push(Rule::Status(status, RetryDecision::NotRetryable)))
    }

    /// Also retries if `condition` returns `true`. It is called after every attempt, also after an error.
    ///
    /// The backoff is the throttled one after a 429 or 529, otherwise the transient one.
    ///
    /// ```
    /// use tower_outbound::retry::RetryLayer;
    ///
    /// let layer = RetryLayer::new().retry_if(|request, attempt| {
    ///     let busy = |headers: &http::HeaderMap| headers.contains_key("x-busy");
    ///     request.uri.path() == "/v1/jobs" && attempt.headers.is_some_and(busy)
    /// });
    /// ```
    pub fn retry_if(
        self,
        condition: impl Fn(RequestHead<'_>, &AttemptResult<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|policy| policy.rules.push(Rule::If(Arc::new(condition))))
    }

    /// Replaces the classifier. [`DefaultClassifier`](super::DefaultClassifier) by default.
    pub fn with_classify(self, classify: impl Classify + 'static) -> Self {
        self.set(|policy| policy.classify = Some(Arc::new(classify)))
    }

    /// Declares requests idempotent, whatever their method: a POST that only searches, or a gRPC method that only reads.
    ///
    /// Such a request is also retried after an attempt that may have been processed.
    /// [`RetryOverride::with_idempotent`](super::RetryOverride::with_idempotent) declares a single request.
    ///
    /// ```
    /// use tower_outbound::retry::RetryLayer;
    ///
    /// let layer = RetryLayer::new().with_idempotent(|head| head.uri.path() == "/v1/searches");
    /// ```
    pub fn with_idempotent(self, rule: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.set(|policy| policy.idempotent = Some(Arc::new(rule)))
    }

    /// Adds an idempotency key to each request whose method is not idempotent, and retries it like an idempotent one.
    ///
    /// Use this only if **the server honours such keys**. On a server that ignores the header, a retried POST sends a
    /// second e-mail or makes a second payment. None of the presets' services is known to honour them.
    pub fn with_honoured_idempotency_key(self, key: IdempotencyKey) -> Self {
        self.set(|policy| policy.idempotency_key = Some(key))
    }

    /// Sets the backoff after a transient failure. [`ExponentialBackoff::transient`] by default.
    pub fn with_backoff(self, backoff: ExponentialBackoff) -> Self {
        self.set(|policy| policy.transient = AnyBackoff::Exponential(backoff))
    }

    /// Sets the backoff after a 429, a 529, or gRPC's `RESOURCE_EXHAUSTED`. [`ExponentialBackoff::throttled`] by default.
    pub fn with_throttled_backoff(self, backoff: ExponentialBackoff) -> Self {
        self.set(|policy| policy.throttled = AnyBackoff::Exponential(backoff))
    }

    /// Replaces the transient backoff. A call whose backoff ends makes no further attempt.
    ///
    /// A longer delay that the server requests replaces a delay of the backoff.
    pub fn with_custom_backoff(self, backoff: impl Backoff + 'static) -> Self {
        self.set(|policy| policy.transient = AnyBackoff::Custom(Arc::new(backoff)))
    }

    /// Replaces the throttled backoff.
    pub fn with_custom_throttled_backoff(self, backoff: impl Backoff + 'static) -> Self {
        self.set(|policy| policy.throttled = AnyBackoff::Custom(Arc::new(backoff)))
    }

    /// Replaces the budget. Layers for the same server may share one.
    pub fn with_budget(self, budget: Budget) -> Self {
        self.set(|policy| policy.budget = Some(budget))
    }

    /// Removes the budget, so that every call may use all its attempts. A service that is down then gets three times the
    /// requests.
    pub fn without_budget(self) -> Self {
        self.set(|policy| policy.budget = None)
    }

    /// Sets the longest delay that the server may request. A response that requests more is returned at once. 120 s by
    /// default.
    pub fn with_max_retry_after(self, longest: Duration) -> Self {
        self.set(|policy| policy.max_retry_after = longest)
    }

    /// Sets the largest body, in bytes, that is kept in memory for a replay. A request with a larger one is not retried.
    /// 1 MiB by default.
    pub fn with_replay_limit(self, bytes: usize) -> Self {
        self.set(|policy| policy.replay_limit = bytes)
    }

    /// Seeds the jitter, so that every run of a test has the same delays.
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
        Retry { inner, policy: Arc::clone(&self.policy) }
    }
}
