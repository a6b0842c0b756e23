use std::{num::NonZeroU32, time::Duration};

use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::{
    Dialect, LocalLimiter, PermitRequest, QuotaHeaders, RateLimitLayer, SelectLimiter,
    core::{CoreSettings, PauseSettings},
};
use crate::{
    config::{
        InvalidConfig,
        text::{List, Written},
    },
    policy::{Quota, nanos},
};

/// Configures a limiter and its [`RateLimitLayer`] in a file. In code, use the setters of the limiter and the layer
/// instead.
///
/// | field | default |
/// |---|---|
/// | `quota` | that of the preset, otherwise none. A quota such as `100/60s`, or a list of quotas that apply at once. `[]` removes the quota of a preset |
/// | `initial_burst` | the quota's burst, or the whole limit of a [sliding window](crate::limit::LocalLimiter::sliding_window). The number of permits that are available at the start |
/// | `longest_pause` | `1h`: see [`with_longest_pause`](LocalLimiter::with_longest_pause) |
/// | `throttle_pause` | `1s`, or the pause that an adaptive limiter chooses: see [`with_throttle_pause`](LocalLimiter::with_throttle_pause) |
/// | `max_in_flight` | none: see [`with_max_in_flight`](LocalLimiter::with_max_in_flight) |
/// | `hold_after_cancel` | `0s`: see [`with_hold_after_cancel`](LocalLimiter::with_hold_after_cancel) |
/// | `in_flight_until_head` | `false`: see [`with_in_flight_until_head`](RateLimitLayer::with_in_flight_until_head) |
/// | `max_wait` | none, so a call may wait until its deadline |
/// | `max_queue` | 10,000 waiters |
///
/// In a file, a quota has the text format that `str::parse` accepts for a [`Quota`]. The defaults of its burst and
/// margin are those of [`Quota::new`].
///
/// ```
/// use tower_outbound::limit::{LocalLimiter, RateLimitConfig, RateLimitLayer};
///
/// let config: RateLimitConfig = toml::from_str("quota = '10/1s'\nmax_wait = '5s'")?;
/// let layer = RateLimitLayer::from_config(LocalLimiter::token_bucket([]).with_config(&config), &config);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(expecting = "a table", default, deny_unknown_fields)]
pub struct RateLimitConfig {
    quota: Option<List<Quota>>,
    initial_burst: Option<u32>,
    #[serde(deserialize_with = "longest_pause")]
    longest_pause: Option<Written<Duration>>,
    #[serde(deserialize_with = "throttle_pause")]
    throttle_pause: Option<Written<Duration>>,
    max_in_flight: Option<NonZeroU32>,
    hold_after_cancel: Option<Written<Duration>>,
    in_flight_until_head: bool,
    max_wait: Option<Written<Duration>>,
    max_queue: usize,
}

impl Default for RateLimitConfig {
    fn default() -> Self {
        let max_queue = PermitRequest::DEFAULT_MAX_QUEUE;
        Self {
            quota: None,
            initial_burst: None,
            longest_pause: None,
            throttle_pause: None,
            max_in_flight: None,
            hold_after_cancel: None,
            in_flight_until_head: false,
            max_wait: None,
            max_queue,
        }
    }
}

type Pause = Option<Written<Duration>>;

fn longest_pause<'de, D: Deserializer<'de>>(from: D) -> Result<Pause, D::Error> {
    pause(from, PauseSettings::with_longest)
}

fn throttle_pause<'de, D: Deserializer<'de>>(from: D) -> Result<Pause, D::Error> {
    pause(from, PauseSettings::with_throttled)
}

fn pause<'de, D: Deserializer<'de>>(
    from: D,
    check: impl FnOnce(PauseSettings, Duration) -> Result<PauseSettings, InvalidConfig>,
) -> Result<Pause, D::Error> {
    let pause = Pause::deserialize(from)?;
    pause.map(|pause| check(PauseSettings::DEFAULT, pause.0)).transpose().map_err(D::Error::custom)?;
    Ok(pause)
}

impl RateLimitConfig {
    /// Sets `quotas` if the configuration has no `quota` field.
    pub(crate) fn or_quotas(mut self, quotas: &[Quota]) -> Self {
        self.quota.get_or_insert_with(|| List(quotas.to_vec()));
        self
    }

    /// Returns the quotas.
    pub fn quotas(&self) -> &[Quota] {
        self.quota.as_ref().map_or(&[], |quotas| &quotas.0)
    }

    /// Returns `settings` with the fields that the configuration has.
    pub(crate) fn over(&self, settings: CoreSettings) -> CoreSettings {
        let CoreSettings { pauses, .. } = settings;
        CoreSettings {
            initial_burst: self.initial_burst.or(settings.initial_burst),
            pauses: PauseSettings {
                longest: self.longest_pause.map_or(pauses.longest, |pause| nanos(pause.0)),
                throttled: self.throttle_pause.map(|pause| nanos(pause.0)).or(pauses.throttled),
            },
            max_in_flight: self.max_in_flight.or(settings.max_in_flight),
            hold_after_cancel: self
                .hold_after_cancel
                .map_or(settings.hold_after_cancel, |hold| nanos(hold.0)),
            ..settings
        }
    }
}

impl LocalLimiter {
    /// Replaces the quotas and the settings whose fields a configuration has. Keeps the other settings, and the rule,
    /// such as a [token bucket](Self::token_bucket).
    pub fn with_config(self, config: &RateLimitConfig) -> Self {
        self.with_setup(|setup| {
            if let Some(List(quotas)) = &config.quota {
                setup.quotas = quotas.as_slice().into();
            }
            setup.settings = config.over(setup.settings);
        })
    }
}

impl<L: SelectLimiter> RateLimitLayer<L> {
    /// Creates a layer over `limiter`, with `max_wait`, `max_queue` and `in_flight_until_head` from `config`.
    pub fn from_config(limiter: L, config: &RateLimitConfig) -> Self {
        let layer = Self::new(limiter).with_max_queue(config.max_queue);
        let layer = if config.in_flight_until_head { layer.with_in_flight_until_head() } else { layer };
        match config.max_wait {
            Some(max_wait) => layer.with_max_wait(max_wait.0),
            None => layer,
        }
    }
}

/// Configures a [`Dialect`] in a file. In code, use the setters of the dialect.
///
/// | field | default |
/// |---|---|
/// | `throttle_statuses` | `[]`: statuses that are read like a 429, such as `[430]` |
/// | `delay_headers` | `[]`: the headers that state a delay, such as `[{ name = "x-wait" }]`: see [`with_delay_header`](Dialect::with_delay_header) |
/// | `delay_headers.millis` | `false`. Whether a number is in milliseconds |
/// | `permanent_headers` | `[]`: the headers of permanent throttles, such as `[{ name = "x-reason", value = "spend-cap" }]`: see [`with_permanent_header`](Dialect::with_permanent_header) |
/// | `permanent_headers.value` | any value |
/// | `quotas` | `[]`: the headers of single quotas |
/// | `quotas.remaining` or `quotas.used` | one is required. The header with the remaining or the used permits |
/// | `quotas.reset`, `.limit`, `.resource`, `.window_header` | none. Other headers of the quota: see [`QuotaHeaders`] |
/// | `quotas.unit` | `requests`. Other values are `tokens`, `input_tokens`, `output_tokens`, `points`, `bytes` and `concurrency` |
/// | `quotas.window` | none. The window, if no header states the reset or the window |
/// | `quotas.millis` | `false`. Whether the reset and the window are in milliseconds if they are numbers without a unit |
///
/// ```
/// use tower_outbound::limit::DialectConfig;
///
/// let config: DialectConfig = toml::from_str("
///     throttle_statuses = [430]
///     [[quotas]]
///     remaining = 'x-credits-left'
///     window = '60s'
///     unit = 'points'
/// ")?;
/// let dialect = config.dialect()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(expecting = "a table", default, deny_unknown_fields)]
pub struct DialectConfig {
    throttle_statuses: List<StatusCode>,
    delay_headers: Vec<DelayHeader>,
    permanent_headers: Vec<PermanentHeader>,
    quotas: Vec<QuotaHeaders>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(expecting = "a table", deny_unknown_fields)]
struct DelayHeader {
    name: Written<HeaderName>,
    #[serde(default)]
    millis: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(expecting = "a table", deny_unknown_fields)]
struct PermanentHeader {
    name: Written<HeaderName>,
    value: Option<Written<HeaderValue>>,
}

impl DialectConfig {
    /// Returns the dialect.
    ///
    /// # Errors
    ///
    /// Returns an error with its [path](InvalidConfig::path) if
    ///
    /// - two quotas or delays have the same header, or two permanent throttles the same header and value.
    /// - a quota has neither or both of `remaining` and `used`, or lacks another header or a window that it needs.
    /// - the window of a quota is zero, or a status is below 400.
    pub fn dialect(&self) -> Result<Dialect, InvalidConfig> {
        let dialect = Dialect::new();
        let dialect = add(dialect, "throttle_statuses", &self.throttle_statuses.0, |dialect, status| {
            dialect.with_throttle_status(*status)
        })?;
        let dialect = add(dialect, "delay_headers", &self.delay_headers, |dialect, row| {
            let name = row.name.0.clone();
            if row.millis {
                dialect.with_delay_header_in_millis(name)
            } else {
                dialect.with_delay_header(name)
            }
        })?;
        let dialect = add(dialect, "permanent_headers", &self.permanent_headers, |dialect, row| {
            let value = row.value.as_ref().map(|Written(value)| value.clone());
            dialect.with_permanent_header(row.name.0.clone(), value)
        })?;
        add(dialect, "quotas", &self.quotas, |dialect, quota| dialect.with_quota_headers(quota.clone()))
    }
}

/// Adds the rows of a list to a dialect. The error of a row has its path.
fn add<T>(
    dialect: Dialect,
    list: &'static str,
    rows: &[T],
    one: impl Fn(Dialect, &T) -> Result<Dialect, InvalidConfig>,
) -> Result<Dialect, InvalidConfig> {
    rows.iter().enumerate().try_fold(dialect, |dialect, (place, row)| {
        one(dialect, row).map_err(|error| error.at_index(place).within(list))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::core::Rule;

    #[test]
    fn configuration_changes_only_the_settings_whose_fields_it_has() {
        let own = CoreSettings {
            initial_burst: Some(0),
            pauses: PauseSettings { longest: 1, throttled: Some(2) },
            max_in_flight: NonZeroU32::new(3),
            hold_after_cancel: 4,
            lower_share: Some(5),
            obeys_remaining: true,
            ..CoreSettings::new(Rule::TokenBucket)
        };
        let second = 1_000_000_000;
        for (text, expected) in [
            ("max_wait = '5s'", own),
            ("initial_burst = 9", CoreSettings { initial_burst: Some(9), ..own }),
            (
                "longest_pause = '1s'",
                CoreSettings { pauses: PauseSettings { longest: second, ..own.pauses }, ..own },
            ),
            (
                "throttle_pause = '1s'",
                CoreSettings { pauses: PauseSettings { throttled: Some(second), ..own.pauses }, ..own },
            ),
            ("max_in_flight = 9", CoreSettings { max_in_flight: NonZeroU32::new(9), ..own }),
            ("hold_after_cancel = '1s'", CoreSettings { hold_after_cancel: second, ..own }),
        ] {
            let config = toml::from_str(text).unwrap();
            let limiter = LocalLimiter::token_bucket([]).with(|settings| *settings = own);
            assert_eq!(limiter.with_config(&config).shared.setup.settings, expected, "{text}");
        }
    }
}
