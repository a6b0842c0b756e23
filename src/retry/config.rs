use std::{collections::BTreeMap, time::Duration};

use http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{IdempotencyKey, RetryDecision, RetryLayer, RetryRejected, classify::Rule, policy::AnyBackoff};
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

/// The fields of a [`RetryLayer`] in a configuration file.
#[derive(Serialize, Deserialize)]
#[serde(expecting = "a table", default, deny_unknown_fields)]
struct Fields {
    max_attempts: u32,
    max_retry_after: Written<Duration>,
    replay_limit: usize,
    retry_rejected: Written<RetryRejected>,
    retry_on: List<StatusCode>,
    never_on: List<StatusCode>,
    backoff: Backoff,
    throttled_backoff: Backoff,
    budget: Budget,
    honoured_idempotency_key: Option<IdempotencyKey>,
}

/// The fields of a backoff in a configuration file. A missing field has the value of the default backoff.
#[derive(Default, Serialize, Deserialize)]
#[serde(expecting = "a table", default, deny_unknown_fields)]
struct Backoff {
    base: Option<Written<Duration>>,
    cap: Option<Written<Duration>>,
    jitter: Option<Written<Jitter>>,
}

#[derive(Serialize, Deserialize)]
#[serde(expecting = "a table", default, deny_unknown_fields)]
struct Budget {
    enabled: bool,
    capacity: u32,
}

impl Default for Fields {
    fn default() -> Self {
        Self::from(&RetryLayer::new())
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::of(Some(&policy::Budget::new()))
    }
}

impl Serialize for RetryLayer {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Fields::from(self).serialize(to)
    }
}

impl<'de> Deserialize<'de> for RetryLayer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Fields::deserialize(from)?.layer().map_err(|error| D::Error::custom(error.in_file()))
    }
}

impl From<&RetryLayer> for Fields {
    fn from(layer: &RetryLayer) -> Self {
        let policy = &layer.policy;
        // If several rules concern a status, `collect` keeps the last rule, which takes precedence.
        let status = |rule: &Rule| match rule {
            Rule::Status(status, decision) => Some((*status, *decision)),
            Rule::If(_) => None,
        };
        let rules: BTreeMap<_, _> = policy.rules.iter().filter_map(status).collect();
        let statuses = |never: bool| {
            let matching = rules.iter().filter(|rule| (*rule.1 == RetryDecision::NotRetryable) == never);
            List(matching.map(|(status, _)| *status).collect())
        };
        Self {
            max_attempts: policy.max_attempts,
            max_retry_after: Written(policy.max_retry_after),
            replay_limit: policy.replay_limit,
            retry_rejected: Written(policy.retry_rejected),
            retry_on: statuses(false),
            never_on: statuses(true),
            backoff: Backoff::of(&policy.transient),
            throttled_backoff: Backoff::of(&policy.throttled),
            budget: Budget::of(policy.budget.as_ref()),
            honoured_idempotency_key: policy.idempotency_key.clone(),
        }
    }
}

impl Fields {
    fn layer(self) -> Result<RetryLayer, InvalidConfig> {
        let backoff = self.backoff.over(ExponentialBackoff::transient());
        let throttled = self.throttled_backoff.over(ExponentialBackoff::throttled());
        let budget = policy::Budget::new().with_capacity(self.budget.capacity);
        let budget = budget.map_err(|error| error.at("budget"))?;
        let mut layer = RetryLayer::new()
            .with_max_attempts(self.max_attempts)?
            .with_max_retry_after(self.max_retry_after.0)
            .with_replay_limit(self.replay_limit)
            .with_retry_rejected(self.retry_rejected.0)
            .with_backoff(backoff.map_err(|error| error.at("backoff"))?)
            .with_throttled_backoff(throttled.map_err(|error| error.at("throttled_backoff"))?);
        layer = if self.budget.enabled { layer.with_budget(budget) } else { layer.without_budget() };
        if let Some(key) = self.honoured_idempotency_key {
            layer = layer.with_honoured_idempotency_key(key);
        }
        // Adds `never_on` last, because the rule that was added last takes precedence.
        Ok(layer.retry_on(self.retry_on.0).never_on(self.never_on.0))
    }
}

impl Backoff {
    /// Returns the configuration of a backoff. All fields are `None` for a custom backoff.
    fn of(backoff: &AnyBackoff) -> Self {
        let AnyBackoff::Exponential(backoff) = backoff else { return Self::default() };
        let written = |duration| Some(Written(duration));
        Self { base: written(backoff.base), cap: written(backoff.cap), jitter: Some(Written(backoff.jitter)) }
    }

    fn over(&self, default: ExponentialBackoff) -> Result<ExponentialBackoff, InvalidConfig> {
        let base = self.base.map_or(default.base, |base| base.0);
        let cap = self.cap.map_or(default.cap, |cap| cap.0);
        let jitter = self.jitter.map_or(default.jitter, |jitter| jitter.0);
        Ok(ExponentialBackoff::new(base, cap)?.with_jitter(jitter))
    }
}

impl Budget {
    fn of(budget: Option<&policy::Budget>) -> Self {
        Self { enabled: budget.is_some(), capacity: budget.cloned().unwrap_or_default().capacity() }
    }
}
