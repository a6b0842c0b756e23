//! Configuration from files: its effect, its errors, and the redaction of keys.
#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod made;
mod rejected;
mod round;
// The sample has the fields of all features.
#[cfg(feature = "native-roots")]
mod sample;

use tower_outbound::{preset::StackConfig, stack::StackBuilder};

pub(crate) const KEY: &str = "k3y-of-the-tests";

#[track_caller]
pub(crate) fn toml(text: &str) -> StackConfig {
    toml::from_str(text).unwrap()
}

/// A service with a key and a URL. `text` may override them.
#[track_caller]
pub(crate) fn with(text: &str) -> StackConfig {
    let base =
        format!("preset = 'currency_rates'\nbase_url = 'https://rates.example.com'\napi_key = '{KEY}'");
    let mut table: toml::Table = toml::from_str(&base).unwrap();
    let given: toml::Table = toml::from_str(text).unwrap();
    if given.contains_key("key_env") || given.contains_key("key_file") {
        table.remove("api_key");
    }
    table.extend(given);
    table.try_into().unwrap()
}

#[track_caller]
pub(crate) fn builder(text: &str) -> StackBuilder {
    StackBuilder::from_config(&with(text)).unwrap()
}
