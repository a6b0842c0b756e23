use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{IdempotencyKey, RetryLayer};
use crate::{
    config::{
        InvalidConfig,
        text::{List, Written},
    },
    policy::{
        self,
        backoff::{ExponentialBackoff, Jitter},
    },
};

/// The configuration of a [`RetryLayer`], read from a file. Code uses the layer's setters, which also validate a file.
///
/// | field | default |
/// |---|---|
/// | `max_attempts` | 3, the first attempt included, as in the AWS SDKs |
/// | `max_retry_after` | `120s` |
/// | `replay_limit` | 1 MiB, in bytes |
/// | `retry_on`, `never_on` | `[]`: statuses such as `[409, 425]` |
/// | `backoff` | [`ExponentialBackoff::transient`]: `base`, `cap`, `jitter` |
/// | `throttled_backoff` | [`ExponentialBackoff::throttled`]: `base`, `cap`, `jitter` |
/// | `budget` | [`Budget::new`](super::Budget::new): `enabled`, `capacity`, `retry_cost`, `throttled_cost`, `success_gain` |
/// | `honoured_idempotency_key` | none: `header`, `quoted` |
///
/// # Clone
///
/// Clones, and the layers made from them, share the budget.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct RetryConfig {
    fields: Fields,
    layer: RetryLayer,
}

impl RetryLayer {
    /// Creates a layer from its configuration. Layers made from one configuration share its budget.
    pub fn from_config(config: &RetryConfig) -> Self {
        config.layer.clone()
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(expecting = "struct RetryConfig", default, deny_unknown_fields)]
struct Fields {
    max_attempts: u32,
    max_retry_after: Written<Duration>,
    replay_limit: usize,
    retry_on: List<StatusCode>,
    never_on: List<StatusCode>,
    backoff: Backoff,
    throttled_backoff: Backoff,
    budget: Budget,
    honoured_idempotency_key: Option<IdempotencyKey>,
}

/// A part that is not given is that of the default backoff.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Backoff {
    base: Option<Written<Duration>>,
    cap: Option<Written<Duration>>,
    jitter: Option<Written<Jitter>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Budget {
    enabled: bool,
    capacity: u32,
    retry_cost: u32,
    throttled_cost: u32,
    success_gain: u32,
}

impl Default for Fields {
    fn default() -> Self {
        let layer = RetryLayer::new();
        Self {
            max_attempts: layer.policy.max_attempts,
            max_retry_after: Written(layer.policy.max_retry_after),
            replay_limit: layer.policy.replay_limit,
            retry_on: List::default(),
            never_on: List::default(),
            backoff: Backoff::of(ExponentialBackoff::transient()),
            throttled_backoff: Backoff::of(ExponentialBackoff::throttled()),
            budget: Budget::default(),
            honoured_idempotency_key: None,
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        let budget = policy::Budget::new();
        let policy::Budget { retry_cost, throttled_cost, success_gain, .. } = budget;
        Self { enabled: true, capacity: budget.capacity(), retry_cost, throttled_cost, success_gain }
    }
}

impl TryFrom<Fields> for RetryConfig {
    type Error = InvalidConfig;

    fn try_from(fields: Fields) -> Result<Self, InvalidConfig> {
        let backoff = fields.backoff.over(ExponentialBackoff::transient());
        let throttled = fields.throttled_backoff.over(ExponentialBackoff::throttled());
        let mut layer = RetryLayer::new()
            .with_max_attempts(fields.max_attempts)
            .map_err(|error| error.within("max_attempts"))?
            .with_max_retry_after(fields.max_retry_after.0)
            .with_replay_limit(fields.replay_limit)
            .with_backoff(backoff.map_err(|error| error.within("backoff"))?)
            .with_throttled_backoff(throttled.map_err(|error| error.within("throttled_backoff"))?);
        let budget = fields.budget.checked().map_err(|error| leaf(error, "budget ").within("budget"))?;
        layer = if fields.budget.enabled { layer.with_budget(budget) } else { layer.without_budget() };
        if let Some(key) = &fields.honoured_idempotency_key {
            layer = layer.with_honoured_idempotency_key(key.clone());
        }
        for status in &fields.retry_on.0 {
            layer = layer.retry_on(*status);
        }
        // The rule that was added last decides first.
        for status in &fields.never_on.0 {
            layer = layer.never_on(*status);
        }
        Ok(Self { fields, layer })
    }
}

impl From<RetryConfig> for Fields {
    fn from(config: RetryConfig) -> Self {
        config.fields
    }
}

impl Backoff {
    fn of(backoff: ExponentialBackoff) -> Self {
        let written = |duration| Some(Written(duration));
        Self { base: written(backoff.base), cap: written(backoff.cap), jitter: Some(Written(backoff.jitter)) }
    }

    fn over(&self, default: ExponentialBackoff) -> Result<ExponentialBackoff, InvalidConfig> {
        let base = self.base.map_or(default.base, |base| base.0);
        let cap = self.cap.map_or(default.cap, |cap| cap.0);
        let backoff = ExponentialBackoff::new(base, cap).map_err(|error| leaf(error, "backoff "))?;
        Ok(backoff.with_jitter(self.jitter.map_or(default.jitter, |jitter| jitter.0)))
    }
}

impl Budget {
    fn checked(&self) -> Result<policy::Budget, InvalidConfig> {
        let budget = policy::Budget::new();
        // The capacity last, because a small one is valid only with small costs.
        let large = self.capacity.max(budget.capacity());
        let budget = budget.with_capacity(large)?.with_retry_cost(self.retry_cost)?;
        let budget = budget.with_throttled_cost(self.throttled_cost)?.with_success_gain(self.success_gain)?;
        budget.with_capacity(self.capacity)
    }
}

/// Adds the path of a field to the error of a setter: `base` for the field `backoff base`.
fn leaf(error: InvalidConfig, part: &str) -> InvalidConfig {
    let name = error.field().strip_prefix(part).unwrap_or(error.field()).replace(' ', "_");
    error.within(&name)
}
