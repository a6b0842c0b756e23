//! A dialect in a configuration file.

use std::time::Duration;

use http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};

use super::{Dialect, QuotaHeaders, Unit};
use crate::config::{
    InvalidConfig,
    text::{List, Written},
};

/// Configures a [`Dialect`] in a file. In code, use the setters of the dialect.
///
/// | field | default |
/// |---|---|
/// | `throttle_statuses` | `[]`: statuses that are read like a 429, such as `[430]` |
/// | `quotas` | `[]`: the headers of single quotas |
/// | `quotas.remaining` or `quotas.used` | one is required. The header with the remaining or the used permits |
/// | `quotas.reset`, `.limit`, `.resource`, `.window_header` | none. Other headers of the quota: see [`QuotaHeaders`] |
/// | `quotas.unit` | `requests`. Other values are `tokens`, `points`, `bytes` and `concurrency` |
/// | `quotas.window` | none. The window, if no header states the reset or the window |
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
    quotas: Vec<QuotaConfig>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(expecting = "a table", default, deny_unknown_fields)]
struct QuotaConfig {
    remaining: Option<Written<HeaderName>>,
    used: Option<Written<HeaderName>>,
    reset: Option<Written<HeaderName>>,
    limit: Option<Written<HeaderName>>,
    resource: Option<Written<HeaderName>>,
    window_header: Option<Written<HeaderName>>,
    unit: Option<Written<Unit>>,
    window: Option<Written<Duration>>,
}

impl DialectConfig {
    /// Returns the dialect.
    ///
    /// # Errors
    ///
    /// Returns an error with its [path](InvalidConfig::path) if two quotas name the same header, if a quota has neither
    /// or both of `remaining` and `used`, if it lacks another header or a window that it needs, if its window is zero,
    /// or if a status is below 400.
    pub fn dialect(&self) -> Result<Dialect, InvalidConfig> {
        let mut dialect = Dialect::new();
        for (place, status) in self.throttle_statuses.0.iter().enumerate() {
            let added = dialect.with_throttle_status(*status);
            dialect = added.map_err(|error| error.at_index(place).within("throttle_statuses"))?;
        }
        for (place, quota) in self.quotas.iter().enumerate() {
            let added = quota.headers().and_then(|headers| dialect.with_quota_headers(headers));
            dialect = added.map_err(|error| error.at_index(place).within("quotas"))?;
        }
        Ok(dialect)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.throttle_statuses.0.is_empty() && self.quotas.is_empty()
    }
}

/// Adds a header to the headers of a quota.
type AddHeader = fn(QuotaHeaders, HeaderName) -> QuotaHeaders;

impl QuotaConfig {
    fn headers(&self) -> Result<QuotaHeaders, InvalidConfig> {
        let mut headers = match (&self.remaining, &self.used) {
            (Some(Written(name)), None) => QuotaHeaders::new(name.clone()),
            (None, Some(Written(name))) => QuotaHeaders::of_used(name.clone()),
            (remaining, _) => {
                let expected = "either `remaining` or `used`";
                let value = if remaining.is_some() { "both" } else { "none" };
                return Err(InvalidConfig::new("quota", value, expected));
            }
        };
        let others: [(_, AddHeader); 4] = [
            (&self.reset, QuotaHeaders::with_reset),
            (&self.limit, QuotaHeaders::with_limit),
            (&self.resource, QuotaHeaders::with_resource),
            (&self.window_header, QuotaHeaders::with_window_header),
        ];
        for (name, add) in others {
            headers = name.iter().fold(headers, |headers, Written(name)| add(headers, name.clone()));
        }
        if let Some(Written(unit)) = self.unit {
            headers = headers.with_unit(unit);
        }
        Ok(match self.window {
            Some(Written(window)) => headers.with_window(window),
            None => headers,
        })
    }
}
