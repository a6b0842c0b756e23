//! Settings from TOML, JSON or the environment: plain data, of which presets, clients and single layers are made.
//!
//! [`ServiceSettings`] is one service. How many there are, and under which names, is for the program's own file to say:
//!
//! ```
//! use std::collections::HashMap;
//! use serde::Deserialize;
//! use tower_outbound::{BoxError, settings::ServiceSettings};
//!
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config {
//!     services: HashMap<String, ServiceSettings>,
//! }
//!
//! # fn main() -> Result<(), BoxError> {
//! let file = r#"
//!     [services.mail]
//!     preset = "email_delivery"
//!     base_url = "https://mail.example.com"
//!     api_key = "s3cret"
//!     limit.quota = "3000/60s"
//!     timeout.total = "1m30s"
//! "#;
//! let config: Config = toml::from_str(file)?;
//! for (name, service) in &config.services {
//!     let client = service.client().map_err(|error| error.within(&format!("services.{name}")))?;
//! }
//!
//! // What only code can say is said to the preset.
//! let preset = config.services["mail"].preset()?.with_name("newsletter");
//! # Ok(())
//! # }
//! ```
//!
//! Whoever composes layers takes those of its parts: [`RetrySettings::layer`], [`LimitSettings::token_bucket`] and
//! [`LimitSettings::layer`], [`TimeoutSettings::total_layer`], [`RequestIdSettings::layer`], [`AttemptSettings::layer`],
//! [`ServiceSettings::auth_layer`], [`TransportSettings::transport`].
//!
//! # Forms
//!
//! | | written as |
//! |---|---|
//! | a duration | `60s`, `250ms`, `1m30s`: [`parse_duration`](crate::policy::parse_duration). A number without a unit is refused |
//! | a quota | `100/60s`, or `100/60s, burst 10, margin 1s`: `Quota` by `parse` |
//! | a jitter | `50%`: `Jitter` by `parse` |
//! | where the key goes | `bearer`, `header:x-api-key`, `query:api_key`, `basic:USER` |
//! | a list of headers, origins, statuses or quotas | a list; one of them alone; or a text with `;` between them, `[]` for none. An empty text is refused |
//!
//! # Environment
//!
//! The names are those of the file, in upper case and with `_` between the levels: with the prefix `RATES`,
//! `RATES_BASE_URL`, `RATES_API_KEY` or `RATES_KEY_FILE`, `RATES_LIMIT_QUOTA`, `RATES_RETRY_BACKOFF_BASE`. A variable with the
//! prefix that is no setting is refused, as a field that is none in a file. Two kinds are not taken for settings: what
//! `key_env` names, such as `RATES_KEY`, and, where no source of the key is given, the variable that the preset reads, such
//! as `EMAIL_DELIVERY_API_KEY` for that preset with the prefix `EMAIL`.
//!
//! So where several services are read from one environment, it is an error when
//!
//! - one's prefix and a `_` begin another's prefix: `EMAIL` is refused for the sake of `EMAIL_BULK_BASE_URL`;
//! - they begin the variable of another's key: `EMAIL`, with a key from elsewhere, for the sake of the
//!   `EMAIL_DELIVERY_API_KEY` that a service under `MAIL` reads;
//! - a preset's own variable begins with them, is set, and the key comes from elsewhere: it would be set in vain.
//!
//! The prefix, `_` and `API_KEY` are the setting `api_key`, also where a preset's variable is called so, as
//! `EMAIL_DELIVERY_API_KEY` with the prefix `EMAIL_DELIVERY`, but not where `key_env` names it.
//!
//! A file below, the environment above it, and each wins over what lies further down:
//!
//! ```
//! use tower_outbound::{BoxError, settings::ServiceSettings};
//!
//! # fn main() -> Result<(), BoxError> {
//! let file: ServiceSettings = toml::from_str(
//!     "preset = 'currency_rates'\nbase_url = 'https://rates.example.com'\ntimeout.total = '30s'",
//! )?;
//! // In a program: `file.with_env("RATES")?`.
//! let variables = [("RATES_API_KEY", "s3cret"), ("RATES_TIMEOUT_TOTAL", "20s")];
//! let rates = file.with_variables("RATES", &variables.map(|(name, value)| (name.to_owned(), value.to_owned())))?;
//! assert_eq!(rates.timeout.total.map(|limit| limit.as_secs()), Some(20));
//! # rates.client()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! A text that is no duration, quota, header or URL is refused when it is read, with the words of the parser that code
//! uses, and TOML and JSON say at which line. What can't work for its value, or together with another, is refused when
//! something is made of it, by the same setters: [`InvalidConfig`](crate::InvalidConfig), with the path of the setting, such as
//! `retry.backoff.base`; [`within`](crate::InvalidConfig::within) puts what is outside of it before it. A variable that can't be
//! read is an [`InvalidVariable`].
//!
//! # Secrets
//!
//! A key that stands among the settings is never written: `Serialize` leaves it out, `Debug` hides it, and no error of
//! this crate tells it. But whoever parses a file may quote it: `Display` of an error of the `toml` crate shows the line that
//! it is about, and with a misspelt name or a forgotten quote that may be the line with the key. Keep keys in files of their own
//! (`key_file`) or in the environment, or show such an error by its `message()` and the line by its `span()`, as
//! the repository's example `settings` does.
//!
//! # What is not here
//!
//! What takes code: classifiers and schedules of your own, key providers, signatures, makers of ids, costs, keyed limiters,
//! the propagation of traces, another clock. A preset has setters for them, and [`ServiceSettings::preset`] gives one. Nor is a
//! seed for tests here, or a URL of another origin without TLS that the key may go to.
//!
//! # Surprises
//!
//! - Each call of [`preset`](ServiceSettings::preset), [`layer`](ServiceSettings::layer) or
//!   [`client`](ServiceSettings::client) begins a limiter and a retry budget of its own. Make one, and clone it.
//! - Whoever gives a source of the key in one place takes back the sources further down: they are one setting.
//!
//! # Sample
//!
//! All settings, and the default of each that has one:
//!
//! ```toml
#![doc = include_str!("sample.toml")]
//! ```

mod effective;
mod env;
mod key;
mod layers;
mod limit;
mod make;
mod name;
mod part;
mod retry;
mod service;
mod text;
mod transport;

pub use self::env::{InvalidVariable, from_env, from_variables};
pub use self::key::{InlineKey, ServiceUrl};
pub use self::layers::{AttemptSettings, RequestIdSettings, TimeoutSettings};
pub use self::limit::LimitSettings;
pub use self::retry::{
    BackoffSettings, BudgetSettings, IdempotencyKeyForm, IdempotencyKeySettings, RetrySettings,
};
pub use self::service::{PresetName, ServiceSettings};
pub use self::transport::{HttpVersion, TransportSettings};
use crate::error::InvalidConfig;

/// Says where a setting stands whose field is called as in the file, but for what it is part of: `backoff base` is `base`.
fn leaf(error: InvalidConfig, part: &str) -> InvalidConfig {
    let name = error.field().strip_prefix(part).unwrap_or(error.field()).replace(' ', "_");
    error.within(&name)
}
