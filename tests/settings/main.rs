//! Settings from files and variables: what they make, what they refuse and in which words, and that no key comes back.
#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod environment;
mod made;
mod refused;
mod round;
mod sample;

use std::collections::BTreeMap;

use serde::Deserialize;
use tower_outbound::settings::ServiceSettings;

pub(crate) const KEY: &str = "k3y-of-the-tests";

/// What a user's own file may look like.
#[derive(Debug, Deserialize)]
pub(crate) struct Config {
    pub(crate) services: BTreeMap<String, ServiceSettings>,
}

#[track_caller]
pub(crate) fn toml(text: &str) -> ServiceSettings {
    toml::from_str(text).unwrap()
}

/// A service with a key and an address, and this besides.
#[track_caller]
pub(crate) fn with(text: &str) -> ServiceSettings {
    let given = toml(text);
    let base =
        format!("preset = 'currency_rates'\nbase_url = 'https://rates.example.com'\napi_key = '{KEY}'");
    given.over(toml(&base))
}
