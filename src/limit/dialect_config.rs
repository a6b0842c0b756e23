//! A dialect in a configuration file.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{Dialect, QuotaHeaders};
use crate::config::{InvalidConfig, text::List};

/// Configures a [`Dialect`] in a file. In code, use the setters of the dialect.
///
/// | field | default |
/// |---|---|
/// | `throttle_statuses` | `[]`: statuses that are read like a 429, such as `[430]` |
/// | `quotas` | `[]`: the headers of single quotas |
/// | `quotas.remaining` or `quotas.used` | one is required. The header with the remaining or the used permits |
/// | `quotas.reset`, `.limit`, `.resource`, `.window_header` | none. Other headers of the quota: see [`QuotaHeaders`] |
/// | `quotas.unit` | `requests`. Other values are `tokens`, `input_tokens`, `output_tokens`, `points`, `bytes` and `concurrency` |
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
    quotas: Vec<QuotaHeaders>,
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
            let added = dialect.with_quota_headers(quota.clone());
            dialect = added.map_err(|error| error.at_index(place).within("quotas"))?;
        }
        Ok(dialect)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.throttle_statuses.0.is_empty() && self.quotas.is_empty()
    }
}
