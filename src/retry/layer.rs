use std::{sync::Arc, time::Duration};

use http::{HeaderName, StatusCode};
use tower_layer::Layer;

use super::{
    AttemptResult, Backoff, Classify, IdempotencyKey, Retry, RetryRejected,
    classify::Rule,
    policy::{AnyBackoff, Policy, at_least_one},
};
use crate::{
    body::DEFAULT_REPLAY_LIMIT,
    call::RequestHead,
    config::InvalidConfig,
    policy::{Budget, ExponentialBackoff, RetryDecision, dialect::Dialect},
    random::Random,
};

/// Retries a request after a temporary failure, if a retry is safe.
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::retry::RetryLayer;
///
/// let layer = RetryLayer::new().with_max_attempts(5)?.retry_on([StatusCode::CONFLICT]);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Default
///
/// - At most 3 attempts, like the AWS SDKs.
/// - The backoffs are [`ExponentialBackoff::transient`] and [`ExponentialBackoff::throttled`].
/// - The layer waits for a `Retry-After` of up to 120 s.
/// - Bodies of up to 1 MiB are recorded and can be replayed.
/// - The [`Budget`] has the costs and the capacity of the AWS SDKs.
///
/// # Clone
///
/// All clones of the layer share the budget and the random source of the jitter, so that the delays of their retries
/// differ.
///
/// # Configuration
///
/// With the feature `serde`, a configuration file has these fields:
///
/// | field | default |
/// |---|---|
/// | `max_attempts` | 3 |
/// | `max_retry_after` | `120s` |
/// | `replay_limit` | 1 MiB, in bytes |
/// | `retry_rejected` | `any_method`. The other value is `idempotent` |
/// | `retry_on`, `never_on` | `[]`: statuses such as `[409, 425]`. `never_on` overrides `retry_on` |
/// | `backoff` | [`ExponentialBackoff::transient`]: `base`, `cap`, `jitter` |
/// | `throttled_backoff` | [`ExponentialBackoff::throttled`]: `base`, `cap`, `jitter` |
/// | `budget` | [`Budget::new`]: `enabled`, `capacity` |
/// | `honoured_idempotency_key` | none: `header`, `quoted` |
///
/// `Serialize` omits the settings that have no field in a configuration file.
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
                retry_rejected: RetryRejected::default(),
                dialect: Dialect::new(),
                transient: AnyBackoff::Exponential(ExponentialBackoff::transient()),
                throttled: AnyBackoff::Exponential(ExponentialBackoff::throttled()),
                max_retry_after: Duration::from_secs(120),
                replay_limit: DEFAULT_REPLAY_LIMIT,
                random: Arc::new(Random::from_entropy()),
                keys: Arc::new(Random::from_entropy()),
                order_warning: Arc::default(),
            }),
        }
    }

    /// Sets the maximum number of attempts, including the first. 3 by default.
    ///
    /// 1 disables retries, but not the resend after a 401. If the key is replaced, the request is resent once, which is
    /// not counted as an attempt. [`RetryOverride::without_retries`](super::RetryOverride::without_retries) disables
    /// both.
    ///
    /// # Errors
    ///
    /// Returns an error if the number is 0. No other setter of this layer validates its argument.
    /// [`StackBuilder::with_max_attempts`](crate::stack::StackBuilder::with_max_attempts) has no `Result`: its `layer`
    /// and `client` return the error.
    pub fn with_max_attempts(self, max_attempts: u32) -> Result<Self, InvalidConfig> {
        let max_attempts = at_least_one(max_attempts)?;
        Ok(self.set(|policy| policy.max_attempts = max_attempts))
    }

    /// Also retries a request after these statuses if a [retry is safe](super#when-a-request-is-retried), with the
    /// throttled backoff after 429 and 529. To declare a POST idempotent, see
    /// [`with_idempotent`](Self::with_idempotent) and [`RetryOverride`](crate::retry::RetryOverride).
    ///
    /// The rules of this method, [`never_on`](Self::never_on) and [`retry_if`](Self::retry_if) are evaluated before the
    /// classifier, the last rule first. The first rule that matches decides. If no rule matches, the classifier
    /// decides.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_outbound::retry::RetryLayer;
    ///
    /// let layer = RetryLayer::new()
    ///     .retry_on([StatusCode::CONFLICT, StatusCode::TOO_EARLY])
    ///     .never_on([StatusCode::INTERNAL_SERVER_ERROR]);
    /// ```
    pub fn retry_on(self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        let rule = |status| Rule::Status(status, RetryDecision::retry(Some(status)));
        self.set(|policy| policy.rules.extend(statuses.into_iter().map(rule)))
    }

    /// Never retries after these statuses.
    pub fn never_on(self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        let rule = |status| Rule::Status(status, RetryDecision::NotRetryable);
        self.set(|policy| policy.rules.extend(statuses.into_iter().map(rule)))
    }

    /// Also retries a request if `condition` returns `true` and a retry is safe. If it returns `false`, the other rules
    /// apply. The condition is evaluated after every attempt, including one that ended in an error.
    ///
    /// The retry waits for the throttled backoff after a 429 or 529, otherwise for the transient one.
    ///
    /// ```
    /// use tower_outbound::retry::RetryLayer;
    ///
    /// let layer = RetryLayer::new().retry_if(|request, attempt| {
    ///     request.uri.path() == "/v1/jobs" && attempt.header("x-busy").is_some()
    /// });
    /// ```
    pub fn retry_if(
        self,
        condition: impl Fn(RequestHead<'_>, &AttemptResult<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|policy| policy.rules.push(Rule::If(Arc::new(condition))))
    }

    /// Replaces the classifier, which is [`DefaultClassifier`](super::DefaultClassifier) by default.
    pub fn with_classify(self, classify: impl Classify + 'static) -> Self {
        self.set(|policy| policy.classify = Some(Arc::new(classify)))
    }

    /// Declares requests idempotent regardless of their method, such as a POST that only searches or a gRPC method that
    /// only reads.
    ///
    /// A later call replaces the rule. The layer also retries such a request after the server may have processed it. To
    /// declare a single request, use [`RetryOverride::with_idempotent`](super::RetryOverride::with_idempotent).
    ///
    /// ```
    /// use tower_outbound::retry::RetryLayer;
    ///
    /// let layer = RetryLayer::new().with_idempotent(|head| head.uri.path() == "/v1/searches");
    /// ```
    pub fn with_idempotent(self, rule: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.set(|policy| policy.idempotent = Some(Arc::new(rule)))
    }

    /// Sets which requests are retried after the server has [rejected](crate::call::Delivery#rejected-requests) them,
    /// such as with a 429. Default: [`RetryRejected::AnyMethod`].
    ///
    /// Use [`RetryRejected::Idempotent`] if a 429 does not prove that a POST was not processed:
    ///
    /// - The service sends a 429 after it has processed or stored a request.
    /// - A gateway passes on the 429 of a server behind it, after the gateway has processed a part of the request.
    /// - A client below the layer follows redirects or retries on its own, so the 429 may belong to another request.
    ///
    /// ```
    /// use tower_outbound::retry::{RetryLayer, RetryRejected};
    ///
    /// let layer = RetryLayer::new().with_retry_rejected(RetryRejected::Idempotent);
    /// ```
    pub fn with_retry_rejected(self, requests: RetryRejected) -> Self {
        self.set(|policy| policy.retry_rejected = requests)
    }

    /// Sets how the service reports that it throttles requests, and which delay it requests. Give the rate-limit layer
    /// the same dialect.
    pub fn with_dialect(self, dialect: Dialect) -> Self {
        self.set(|policy| policy.dialect = dialect)
    }

    /// Adds an idempotency key to each request whose method is not idempotent, and treats the request as idempotent.
    ///
    /// Use this only if **the server honours idempotency keys**. If the server ignores the header, a retried POST sends
    /// a second e-mail or makes a second payment. No preset's service is known to honour idempotency keys.
    ///
    /// A retry above the client or the request id layer starts a new call with a new key: see [`IdempotencyKey`].
    pub fn with_honoured_idempotency_key(self, key: IdempotencyKey) -> Self {
        self.set(|policy| policy.idempotency_key = Some(key))
    }

    pub(crate) fn idempotency_key_header(&self) -> Option<&HeaderName> {
        self.policy.idempotency_key.as_ref().map(IdempotencyKey::header)
    }

    /// Sets the backoff after a transient failure. The default is [`ExponentialBackoff::transient`].
    pub fn with_backoff(self, backoff: ExponentialBackoff) -> Self {
        self.set(|policy| policy.transient = AnyBackoff::Exponential(backoff))
    }

    /// Sets the backoff after a throttled response: a 429, 529, 509 or 420, a 403 or 418 that states a delay above zero
    /// or an empty quota, a status of the [dialect](Self::with_dialect), or gRPC's `RESOURCE_EXHAUSTED`. The default is
    /// [`ExponentialBackoff::throttled`].
    pub fn with_throttled_backoff(self, backoff: ExponentialBackoff) -> Self {
        self.set(|policy| policy.throttled = AnyBackoff::Exponential(backoff))
    }

    /// Replaces the transient backoff with a custom backoff. When the custom backoff returns no further delay, the call
    /// makes no further attempt. The maximum number of attempts still applies: the default of 3 uses two delays.
    ///
    /// If the server requests a longer delay, the layer waits for that delay instead.
    pub fn with_custom_backoff(self, backoff: impl Backoff + 'static) -> Self {
        self.set(|policy| policy.transient = AnyBackoff::Custom(Arc::new(backoff)))
    }

    /// Replaces the throttled backoff with a custom backoff: see [`with_custom_backoff`](Self::with_custom_backoff).
    pub fn with_custom_throttled_backoff(self, backoff: impl Backoff + 'static) -> Self {
        self.set(|policy| policy.throttled = AnyBackoff::Custom(Arc::new(backoff)))
    }

    /// Replaces the budget. Several layers for the same server may share one budget.
    pub fn with_budget(self, budget: Budget) -> Self {
        self.set(|policy| policy.budget = Some(budget))
    }

    /// Removes the budget, so that every call may use all its attempts. With the default of 3 attempts, a server that
    /// is down receives three times as many requests.
    pub fn without_budget(self) -> Self {
        self.set(|policy| policy.budget = None)
    }

    /// Sets the longest delay that the server may request. If a response requests a longer delay, the call returns this
    /// response immediately. Default: 120 s.
    pub fn with_max_retry_after(self, longest: Duration) -> Self {
        self.set(|policy| policy.max_retry_after = longest)
    }

    /// Sets how many bytes of a request's body are kept in memory for a replay. A request with a larger body is not
    /// retried once this body was read, unless [`Body::from_fn`](crate::Body::from_fn) can create it again. 1 MiB by
    /// default.
    pub fn with_replay_limit(self, bytes: usize) -> Self {
        self.set(|policy| policy.replay_limit = bytes)
    }

    /// Seeds the jitter, so that the delays of a test are the same in every run.
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
