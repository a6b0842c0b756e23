//! The file that the manual shows.

use std::collections::BTreeSet;

use tower_outbound::settings::ServiceSettings;

use crate::Config;

const SAMPLE: &str = include_str!("../../src/settings/sample.toml");

/// Every field that there is, as `retry.backoff.base`: what an unknown field of each table is said to have been.
fn fields(path: &str) -> BTreeSet<String> {
    let Err(error) = toml::from_str::<ServiceSettings>(&format!("{path}bogus = 0")) else {
        panic!("{path}bogus is read")
    };
    let message = error.message();
    let Some(names) = message.strip_prefix("unknown field `bogus`, expected ") else {
        return BTreeSet::from([path.trim_end_matches('.').to_owned()]);
    };
    let names = names.split('`').skip(1).step_by(2);
    // What takes everything has no fields.
    let inner = |name| match name {
        "api_key" => BTreeSet::from(["api_key".to_owned()]),
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
fn every_setting_stands_in_it() {
    let fields = fields("");
    assert!(fields.len() > 40 && fields.contains("retry.throttled_backoff.jitter"), "{fields:?}");
    let sample: toml::Table = toml::from_str(SAMPLE).unwrap();
    let services = sample["services"].as_table().unwrap();
    let shown: BTreeSet<_> = services.values().flat_map(|service| leaves("", service)).collect();
    assert_eq!(fields.difference(&shown).collect::<Vec<_>>(), [""; 0], "not in the sample");
    assert_eq!(shown.difference(&fields).collect::<Vec<_>>(), [""; 0], "in the sample alone");
}

#[test]
fn its_defaults_are_the_defaults() {
    let config: Config = toml::from_str(SAMPLE).unwrap();
    let short = "preset = 'currency_rates'\nbase_url = 'https://rates.example.com'";
    let mut effective = crate::toml(short).effective().unwrap();
    if !cfg!(feature = "rustls") {
        effective.transport.bundled_roots = Some(true);
    }
    assert_eq!(config.services["rates"], effective);
}

#[test]
fn each_of_its_services_makes_a_preset() {
    let config: Config = toml::from_str(SAMPLE).unwrap();
    for (name, service) in &config.services {
        let preset = service.preset().unwrap();
        assert_eq!(preset.base_url().host().unwrap().split('.').next().unwrap(), name);
    }
    assert_eq!(
        config.services["mail"].preset().unwrap().quotas()[0].to_string(),
        "3000 per 60s, burst 300, margin 1s, sustains 44.26 per second"
    );
    config.services["orders"].layer().unwrap();
}
