//! Tests configuration files: the effect of each field, errors, serialization, and the redaction of keys.

mod errors;
mod fields;
// The base URL of these configurations has TLS.
#[cfg(feature = "rustls")]
mod reload;
// The sample file contains fields that exist only with all features.
#[cfg(all(feature = "decompression", feature = "native-roots", feature = "proxy"))]
mod sample_file;

use tower_outbound::{preset::StackConfig, stack::StackBuilder};

pub(crate) const KEY: &str = "k3y-of-the-tests";

#[track_caller]
pub(crate) fn parse(text: &str) -> StackConfig {
    toml::from_str(text).unwrap()
}

/// Parses `text` together with a preset, a base URL and a key, which `text` may override.
#[track_caller]
pub(crate) fn parse_with_defaults(text: &str) -> StackConfig {
    let defaults =
        format!("preset = 'currency_rates'\nbase_url = 'https://rates.example.com'\napi_key = '{KEY}'");
    let mut table: toml::Table = toml::from_str(&defaults).unwrap();
    let overrides: toml::Table = toml::from_str(text).unwrap();
    if ["api_key_env", "api_key_file", "no_credential"].iter().any(|field| overrides.contains_key(*field)) {
        table.remove("api_key");
    }
    table.extend(overrides);
    table.try_into().unwrap()
}

#[track_caller]
pub(crate) fn builder(text: &str) -> StackBuilder {
    StackBuilder::from_config(&parse_with_defaults(text)).unwrap()
}
