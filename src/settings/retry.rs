use std::time::Duration;

use http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};

use super::{leaf, part::settings, text};
use crate::{
    error::InvalidConfig,
    policy::{Budget, ExponentialBackoff, Jitter},
    retry::{IdempotencyKey, RetryLayer},
};

settings! {
    /// What is sent again, how often and when: [`RetryLayer`].
    pub struct RetrySettings {
        /// The first one counted: [`RetryLayer::with_max_attempts`]. 3 by default.
        pub max_attempts: Option<u32>,
        /// The longest pause asked for by the server that is waited out. 120 s by default.
        #[serde(with = "text")]
        pub max_retry_after: Option<Duration>,
        /// The largest body, in bytes, that is kept to be sent again. 1048576 by default.
        pub replay_limit: Option<usize>,
        /// Statuses that are tried again besides those of the default ones: [`RetryLayer::retry_on`].
        #[serde(with = "text::list")]
        pub retry_on: Option<Vec<StatusCode>>,
        /// Statuses that are not: [`RetryLayer::never_on`], which goes before the others.
        #[serde(with = "text::list")]
        pub never_on: Option<Vec<StatusCode>>,
        /// After a failure that is not a throttling: [`ExponentialBackoff::transient`] where it says nothing.
        pub backoff: BackoffSettings,
        /// The backoff after a 429 or 529. Default: [`ExponentialBackoff::throttled`].
        pub throttled_backoff: BackoffSettings,
        /// What all calls together may spend on retries.
        pub budget: BudgetSettings,
        /// Puts a key on what is not idempotent, and says by that that **the server honours it**:
        /// [`RetryLayer::with_honoured_idempotency_key`]. Not by default.
        pub honoured_idempotency_key: Option<IdempotencyKeySettings>,
    }
}

settings! {
    /// [`ExponentialBackoff`].
    pub struct BackoffSettings {
        /// The longest wait before the first retry. Default: 100 ms, or 1 s after a 429 or 529.
        #[serde(with = "text")]
        pub base: Option<Duration>,
        /// The longest wait. 20 s by default.
        #[serde(with = "text")]
        pub cap: Option<Duration>,
        /// The part of each wait that is left to chance. `50%` by default.
        #[serde(with = "text")]
        pub jitter: Option<Jitter>,
    }
}

settings! {
    /// [`Budget`].
    pub struct BudgetSettings {
        /// Whether there is one; without it every call may use all its attempts: [`RetryLayer::without_budget`]. True by
        /// default.
        pub enabled: Option<bool>,
        /// What there is to spend. 500 by default.
        pub capacity: Option<u32>,
        /// What a retry costs. 14 by default.
        pub retry_cost: Option<u32>,
        /// What it costs after a throttle. 5 by default.
        pub throttled_cost: Option<u32>,
        /// What success at the first try gives back. 1 by default.
        pub success_gain: Option<u32>,
    }
}

settings! {
    /// [`IdempotencyKey`].
    pub struct IdempotencyKeySettings {
        /// Bare by default.
        pub form: Option<IdempotencyKeyForm>,
        /// `idempotency-key` by default.
        #[serde(with = "text")]
        pub header: Option<HeaderName>,
    }
}

/// Whether an idempotency key stands in quotes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdempotencyKeyForm {
    /// [`IdempotencyKey::bare`].
    #[default]
    Bare,
    /// [`IdempotencyKey::quoted`].
    Quoted,
}

impl RetrySettings {
    /// The layer, with its own defaults for what is not said.
    ///
    /// # Errors
    ///
    /// As the setters of [`RetryLayer`], [`ExponentialBackoff`] and [`Budget`].
    pub fn layer(&self) -> Result<RetryLayer, InvalidConfig> {
        let backoff = self.backoff.backoff(ExponentialBackoff::transient());
        let throttled = self.throttled_backoff.backoff(ExponentialBackoff::throttled());
        let mut layer = RetryLayer::new()
            .with_backoff(backoff.map_err(|error| error.within("backoff"))?)
            .with_throttled_backoff(throttled.map_err(|error| error.within("throttled_backoff"))?);
        if let Some(max_attempts) = self.max_attempts {
            layer = layer.with_max_attempts(max_attempts).map_err(|error| error.within("max_attempts"))?;
        }
        if let Some(longest) = self.max_retry_after {
            layer = layer.with_max_retry_after(longest);
        }
        if let Some(bytes) = self.replay_limit {
            layer = layer.with_replay_limit(bytes);
        }
        for status in self.retry_on.iter().flatten() {
            layer = layer.retry_on(*status);
        }
        // Last, because the last rule is evaluated first.
        for status in self.never_on.iter().flatten() {
            layer = layer.never_on(*status);
        }
        layer = match self.budget.budget().map_err(|error| error.within("budget"))? {
            Some(budget) => layer.with_budget(budget),
            None => layer.without_budget(),
        };
        if let Some(key) = &self.honoured_idempotency_key {
            layer = layer.with_honoured_idempotency_key(key.key());
        }
        Ok(layer)
    }
}

impl BackoffSettings {
    /// A back-off with the rest as in `default`.
    ///
    /// # Errors
    ///
    /// As [`ExponentialBackoff::new`].
    pub fn backoff(&self, default: ExponentialBackoff) -> Result<ExponentialBackoff, InvalidConfig> {
        let (base, cap) = (self.base.unwrap_or(default.base()), self.cap.unwrap_or(default.cap()));
        let backoff = ExponentialBackoff::new(base, cap).map_err(|error| leaf(error, "backoff "))?;
        Ok(backoff.with_jitter(self.jitter.unwrap_or(default.jitter())))
    }
}

impl BudgetSettings {
    /// A budget of its own; none when it is switched off.
    ///
    /// # Errors
    ///
    /// As the setters of [`Budget`].
    pub fn budget(&self) -> Result<Option<Budget>, InvalidConfig> {
        if self.enabled == Some(false) {
            return Ok(None);
        }
        let mut budget = Budget::new();
        // What is larger than the default has to be there before the costs, what is smaller after them.
        let capacity = self.capacity.unwrap_or(budget.left());
        if capacity > budget.left() {
            budget = budget.with_capacity(capacity).map_err(|error| leaf(error, "budget "))?;
        }
        let setters = [
            (self.retry_cost, Budget::with_retry_cost as fn(Budget, u32) -> Result<Budget, InvalidConfig>),
            (self.throttled_cost, Budget::with_throttled_cost),
            (self.success_gain, Budget::with_success_gain),
        ];
        for (amount, set) in setters {
            if let Some(amount) = amount {
                budget = set(budget, amount).map_err(|error| leaf(error, "budget "))?;
            }
        }
        budget.with_capacity(capacity).map(Some).map_err(|error| leaf(error, "budget "))
    }
}

impl IdempotencyKeySettings {
    /// The key.
    pub fn key(&self) -> IdempotencyKey {
        let key = match self.form.unwrap_or_default() {
            IdempotencyKeyForm::Bare => IdempotencyKey::bare(),
            IdempotencyKeyForm::Quoted => IdempotencyKey::quoted(),
        };
        match &self.header {
            Some(header) => key.with_header(header.clone()),
            None => key,
        }
    }
}
