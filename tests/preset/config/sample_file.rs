//! Tests the sample configuration file in the documentation.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tower_outbound::{preset::StackConfig, stack::StackBuilder};

const SAMPLE: &str = include_str!("../../../src/preset/sample.toml");

/// The configuration file of an application that calls several services.
#[derive(Debug, Deserialize)]
struct Services {
    services: BTreeMap<String, StackConfig>,
}

/// Returns the path of every field below `path`, such as `retry.backoff.base`. The error for an unknown field lists the
/// names of all fields.
fn field_paths(path: &str) -> BTreeSet<String> {
    let Err(error) = toml::from_str::<StackConfig>(&format!("{path}bogus = 0")) else {
        panic!("the unknown field `{path}bogus` is accepted")
    };
    let message = error.message();
    let Some(names) = message.strip_prefix("unknown field `bogus`, expected ") else {
        return BTreeSet::from([path.trim_end_matches('.').to_owned()]);
    };
    let names = names.split('`').skip(1).step_by(2);
    // The parser accepts any value for `api_key`, `base_url`, `key_placement` and `proxy`, so no parse error lists subfields of
    // these fields.
    let paths = |name| match name {
        "api_key" | "base_url" | "key_placement" | "proxy" => BTreeSet::from([format!("{path}{name}")]),
        name => field_paths(&format!("{path}{name}.")),
    };
    names.flat_map(paths).collect()
}

/// Returns the path of every TOML value that is not a table.
fn value_paths(path: &str, value: &toml::Value) -> BTreeSet<String> {
    match value {
        toml::Value::Table(table) => {
            let below = |(name, value): (&String, &toml::Value)| match path {
                "" => value_paths(name, value),
                path => value_paths(&format!("{path}.{name}"), value),
            };
            table.iter().flat_map(below).collect()
        }
        _ => BTreeSet::from([path.to_owned()]),
    }
}

#[test]
fn sample_file_contains_every_field() {
    let fields = field_paths("");
    assert!(fields.len() > 40 && fields.contains("retry.throttled_backoff.jitter"), "{fields:?}");
    let sample: toml::Table = toml::from_str(SAMPLE).unwrap();
    let services = sample["services"].as_table().unwrap();
    let shown: BTreeSet<_> = services.values().flat_map(|service| value_paths("", service)).collect();
    assert_eq!(fields.difference(&shown).collect::<Vec<_>>(), [""; 0], "the sample file lacks fields");
    assert_eq!(
        shown.difference(&fields).collect::<Vec<_>>(),
        [""; 0],
        "the sample file contains unknown fields"
    );
}

#[test]
fn sample_file_shows_the_default_values() {
    let config: Services = toml::from_str(SAMPLE).unwrap();
    let minimal = super::parse("preset = 'currency_rates'\nbase_url = 'https://rates.example.com'");
    let settings = |config: &StackConfig| {
        let builder = StackBuilder::from_config(config).unwrap();
        let mut table: toml::Table = toml::from_str(&toml::to_string(config).unwrap()).unwrap();
        // The test removes the fields whose defaults depend on the preset, and compares the builder's name and
        // quotas instead.
        for field in ["name", "api_key_env", "limit"] {
            table.remove(field);
        }
        let timeout = table["timeout"].as_table_mut().unwrap();
        timeout.entry("attempt").or_insert("10s".into());
        (table, builder.name().to_owned(), builder.quotas().to_vec())
    };
    assert_eq!(settings(&config.services["rates"]), settings(&minimal));
}

#[test]
fn every_service_in_the_sample_file_is_valid() {
    let config: Services = toml::from_str(SAMPLE).unwrap();
    for (name, service) in &config.services {
        let preset = StackBuilder::from_config(service).unwrap();
        assert_eq!(preset.base_url().host().unwrap().split('.').next().unwrap(), name);
    }
    assert_eq!(
        StackBuilder::from_config(&config.services["mail"]).unwrap().quotas()[0].to_string(),
        "3000 per 60s, burst 300, margin 1s, sustains 49.18 per second"
    );
    config.services["orders"].layer().unwrap();
}
