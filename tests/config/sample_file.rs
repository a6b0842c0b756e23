//! The sample file that the documentation shows.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tower_outbound::{preset::StackConfig, stack::StackBuilder};

const SAMPLE: &str = include_str!("../../src/preset/sample.toml");

/// A user's own file.
#[derive(Debug, Deserialize)]
struct Services {
    services: BTreeMap<String, StackConfig>,
}

/// Returns every field, such as `retry.backoff.base`, as the errors of unknown fields list them.
fn fields(path: &str) -> BTreeSet<String> {
    let Err(error) = toml::from_str::<StackConfig>(&format!("{path}bogus = 0")) else {
        panic!("{path}bogus is read")
    };
    let message = error.message();
    let Some(names) = message.strip_prefix("unknown field `bogus`, expected ") else {
        return BTreeSet::from([path.trim_end_matches('.').to_owned()]);
    };
    let names = names.split('`').skip(1).step_by(2);
    // Some accept any value, so they have no fields.
    let inner = |name| match name {
        "api_key" | "base_url" | "key_placement" => BTreeSet::from([String::from(name)]),
        name => fields(&format!("{path}{name}.")),
    };
    names.flat_map(inner).collect()
}

fn leaves(path: &str, value: &toml::Value) -> BTreeSet<String> {
    match value {
        toml::Value::Table(table) => {
            let below = |(name, value): (&String, &toml::Value)| match path {
                "" => leaves(name, value),
                path => leaves(&format!("{path}.{name}"), value),
            };
            table.iter().flat_map(below).collect()
        }
        _ => BTreeSet::from([path.to_owned()]),
    }
}

#[test]
fn shows_every_field() {
    let fields = fields("");
    assert!(fields.len() > 40 && fields.contains("retry.throttled_backoff.jitter"), "{fields:?}");
    let sample: toml::Table = toml::from_str(SAMPLE).unwrap();
    let services = sample["services"].as_table().unwrap();
    let shown: BTreeSet<_> = services.values().flat_map(|service| leaves("", service)).collect();
    assert_eq!(fields.difference(&shown).collect::<Vec<_>>(), [""; 0], "not in the sample");
    assert_eq!(shown.difference(&fields).collect::<Vec<_>>(), [""; 0], "in the sample alone");
}

#[test]
fn shows_the_defaults() {
    let config: Services = toml::from_str(SAMPLE).unwrap();
    let short = crate::toml("preset = 'currency_rates'\nbase_url = 'https://rates.example.com'");
    let shown = |config: &StackConfig| {
        let builder = StackBuilder::from_config(config).unwrap();
        let mut table: toml::Table = toml::from_str(&toml::to_string(config).unwrap()).unwrap();
        // The preset gives their defaults, which the builder shows.
        for field in ["name", "key_env", "key_file_interval", "limit"] {
            table.remove(field);
        }
        let timeout = table["timeout"].as_table_mut().unwrap();
        timeout.entry("attempt").or_insert("10s".into());
        (table, builder.name().to_owned(), builder.quotas().to_vec())
    };
    assert_eq!(shown(&config.services["rates"]), shown(&short));
}

#[test]
fn makes_a_builder_of_each_service() {
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
