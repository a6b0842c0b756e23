//! The sample file in the documentation.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tower_outbound::{preset::StackConfig, stack::StackBuilder};

const SAMPLE: &str = include_str!("../../../src/preset/sample.toml");

/// The file format of an application with several services.
#[derive(Debug, Deserialize)]
struct Services {
    services: BTreeMap<String, StackConfig>,
}

/// Returns the path of every field below `path`, such as `retry.backoff.base`. The errors of unknown fields
/// list all names.
fn field_paths(path: &str) -> BTreeSet<String> {
    let Err(error) = toml::from_str::<StackConfig>(&format!("{path}bogus = 0")) else {
        panic!("{path}bogus is accepted")
    };
    let message = error.message();
    let Some(names) = message.strip_prefix("unknown field `bogus`, expected ") else {
        return BTreeSet::from([path.trim_end_matches('.').to_owned()]);
    };
    let names = names.split('`').skip(1).step_by(2);
    // These fields accept any value while parsing, so they list no names.
    let paths = |name| match name {
        "api_key" | "base_url" | "key_placement" => BTreeSet::from([String::from(name)]),
        name => field_paths(&format!("{path}{name}.")),
    };
    names.flat_map(paths).collect()
}

/// Returns the path of every value that is not a table.
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
fn the_sample_shows_every_field() {
    let fields = field_paths("");
    assert!(fields.len() > 40 && fields.contains("retry.throttled_backoff.jitter"), "{fields:?}");
    let sample: toml::Table = toml::from_str(SAMPLE).unwrap();
    let services = sample["services"].as_table().unwrap();
    let shown: BTreeSet<_> = services.values().flat_map(|service| value_paths("", service)).collect();
    assert_eq!(fields.difference(&shown).collect::<Vec<_>>(), [""; 0], "missing in the sample");
    assert_eq!(shown.difference(&fields).collect::<Vec<_>>(), [""; 0], "unknown fields in the sample");
}

#[test]
fn the_sample_shows_the_defaults() {
    let config: Services = toml::from_str(SAMPLE).unwrap();
    let minimal = super::parse("preset = 'currency_rates'\nbase_url = 'https://rates.example.com'");
    let settings = |config: &StackConfig| {
        let builder = StackBuilder::from_config(config).unwrap();
        let mut table: toml::Table = toml::from_str(&toml::to_string(config).unwrap()).unwrap();
        // The defaults of these fields depend on the preset. The builder's name and quotas show them.
        for field in ["name", "key_env", "key_file_interval", "limit"] {
            table.remove(field);
        }
        let timeout = table["timeout"].as_table_mut().unwrap();
        timeout.entry("attempt").or_insert("10s".into());
        (table, builder.name().to_owned(), builder.quotas().to_vec())
    };
    assert_eq!(settings(&config.services["rates"]), settings(&minimal));
}

#[test]
fn every_service_of_the_sample_is_valid() {
    let config: Services = toml::from_str(SAMPLE).unwrap();
    for (name, service) in &config.services {
        let preset = StackBuilder::from_config(service).unwrap();
        assert_eq!(preset.base_url().host().unwrap().split('.').next().unwrap(), name);
    }
    assert_eq!(
        StackBuilder::from_config(&config.services["mail"]).unwrap().quotas()[0].to_string(),
        "3000 per 60s, burst 300, margin 1s, sustains 44.26 per second"
    );
    config.services["orders"].layer().unwrap();
}
