use std::{sync::Arc, time::Duration};

use http::StatusCode;

use super::{Classify, IdempotencyKey, Standard};
use crate::{
    body::DEFAULT_REPLAY_LIMIT,
    config::text::{List, Written},
    policy::{Budget, ExponentialBackoff},
};

/// The configuration of a [`RetryLayer`](super::RetryLayer), for files: see
/// [`RetryLayer::from_config`](super::RetryLayer::from_config). Code uses the layer's setters.
///
/// | field | default |
/// |---|---|
/// | `max_attempts` | 3, the first attempt included, as in the AWS SDKs |
/// | `max_retry_after` | `120s` |
/// | `replay_limit` | 1 MiB, in bytes |
/// | `retry_on`, `never_on` | `[]`: statuses such as `[409, 425]` |
/// | `backoff` | [`ExponentialBackoff::transient`]: `base`, `cap`, `jitter` |
/// | `throttled_backoff` | [`ExponentialBackoff::throttled`]: `base`, `cap`, `jitter` |
/// | `budget` | [`Budget::new`]: `enabled`, `capacity`, `retry_cost`, `throttled_cost`, `success_gain` |
/// | `honoured_idempotency_key` | none: `header`, `quoted` |
///
/// # Clone
///
/// Clones, and the layers made from them, share the budget.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RetryConfig {
    #[cfg_attr(feature = "serde", serde(deserialize_with = "form::max_attempts"))]
    pub(super) max_attempts: u32,
    pub(super) max_retry_after: Written<Duration>,
    pub(super) replay_limit: usize,
    pub(super) retry_on: List<StatusCode>,
    pub(super) never_on: List<StatusCode>,
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "form::of_backoff", deserialize_with = "form::transient")
    )]
    pub(super) backoff: ExponentialBackoff,
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "form::of_backoff", deserialize_with = "form::throttled")
    )]
    pub(super) throttled_backoff: ExponentialBackoff,
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "form::of_budget", deserialize_with = "form::budget")
    )]
    pub(super) budget: Option<Budget>,
    pub(super) honoured_idempotency_key: Option<IdempotencyKey>,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_retry_after: Written(Duration::from_secs(120)),
            replay_limit: DEFAULT_REPLAY_LIMIT,
            retry_on: List::default(),
            never_on: List::default(),
            backoff: ExponentialBackoff::transient(),
            throttled_backoff: ExponentialBackoff::throttled(),
            budget: Some(Budget::new()),
            honoured_idempotency_key: None,
        }
    }
}

impl RetryConfig {
    /// Returns a classifier for the statuses of this configuration, if there are any.
    pub(super) fn classify(&self) -> Option<Arc<dyn Classify>> {
        if self.retry_on.0.is_empty() && self.never_on.0.is_empty() {
            return None;
        }
        let mut classify: Arc<dyn Classify> = Arc::new(Standard);
        for status in &self.retry_on.0 {
            classify = Arc::new(classify.retry_on(*status));
        }
        // The rule that was added last decides first.
        for status in &self.never_on.0 {
            classify = Arc::new(classify.never_on(*status));
        }
        Some(classify)
    }
}

/// How files write the fields that have parts of their own.
#[cfg(feature = "serde")]
mod form {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::{
        config::text::Written,
        error::InvalidConfig,
        policy::{self, ExponentialBackoff, Jitter},
        retry::per_request::at_least_one,
    };

    pub(super) fn max_attempts<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        at_least_one(u32::deserialize(from)?).map_err(D::Error::custom)
    }

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Backoff {
        base: Option<Written<Duration>>,
        cap: Option<Written<Duration>>,
        jitter: Option<Written<Jitter>>,
    }

    impl Backoff {
        fn over(self, default: ExponentialBackoff) -> Result<ExponentialBackoff, InvalidConfig> {
            let base = self.base.map_or(default.base(), |base| base.0);
            let cap = self.cap.map_or(default.cap(), |cap| cap.0);
            let backoff = ExponentialBackoff::new(base, cap).map_err(|error| leaf(error, "backoff "))?;
            Ok(backoff.with_jitter(self.jitter.map_or(default.jitter(), |jitter| jitter.0)))
        }
    }

    pub(super) fn transient<'de, D: Deserializer<'de>>(from: D) -> Result<ExponentialBackoff, D::Error> {
        Backoff::deserialize(from)?.over(ExponentialBackoff::transient()).map_err(D::Error::custom)
    }

    pub(super) fn throttled<'de, D: Deserializer<'de>>(from: D) -> Result<ExponentialBackoff, D::Error> {
        Backoff::deserialize(from)?.over(ExponentialBackoff::throttled()).map_err(D::Error::custom)
    }

    pub(super) fn of_backoff<S: Serializer>(of: &ExponentialBackoff, to: S) -> Result<S::Ok, S::Error> {
        let (base, cap, jitter) = (Written(of.base()), Written(of.cap()), Written(of.jitter()));
        Backoff { base: Some(base), cap: Some(cap), jitter: Some(jitter) }.serialize(to)
    }

    #[derive(Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Budget {
        enabled: bool,
        capacity: u32,
        retry_cost: u32,
        throttled_cost: u32,
        success_gain: u32,
    }

    impl Default for Budget {
        fn default() -> Self {
            Self::of(Some(&policy::Budget::new()))
        }
    }

    impl Budget {
        fn of(budget: Option<&policy::Budget>) -> Self {
            let default = policy::Budget::new();
            let shown = budget.unwrap_or(&default);
            let [retry_cost, throttled_cost, success_gain] = shown.costs();
            Self {
                enabled: budget.is_some(),
                capacity: shown.capacity(),
                retry_cost,
                throttled_cost,
                success_gain,
            }
        }

        fn checked(&self) -> Result<policy::Budget, InvalidConfig> {
            let budget = policy::Budget::new();
            // The capacity last, because a small one is valid only with small costs.
            let large = self.capacity.max(budget.capacity());
            let budget = budget.with_capacity(large)?.with_retry_cost(self.retry_cost)?;
            let budget =
                budget.with_throttled_cost(self.throttled_cost)?.with_success_gain(self.success_gain)?;
            budget.with_capacity(self.capacity)
        }
    }

    pub(super) fn budget<'de, D: Deserializer<'de>>(from: D) -> Result<Option<policy::Budget>, D::Error> {
        let written = Budget::deserialize(from)?;
        let budget = written.checked().map_err(|error| D::Error::custom(leaf(error, "budget ")))?;
        Ok(written.enabled.then_some(budget))
    }

    pub(super) fn of_budget<S: Serializer>(
        budget: &Option<policy::Budget>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        Budget::of(budget.as_ref()).serialize(to)
    }

    /// Adds the path of a field to the error of a setter: `base` for the field `backoff base`.
    fn leaf(error: InvalidConfig, part: &str) -> InvalidConfig {
        let name = error.field().strip_prefix(part).unwrap_or(error.field()).replace(' ', "_");
        error.within(&name)
    }
}
