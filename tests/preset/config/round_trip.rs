//! Tests that writing and reading a configuration preserves everything except the key.

use http::StatusCode;
use proptest::prelude::*;
use tower_outbound::{preset::StackConfig, retry::RetryLayer, stack::StackBuilder};

use super::{KEY, parse, parse_with_defaults};

const EVERY_FIELD: &str = "
    preset = 'email_delivery'
    name = 'mail'
    base_url = 'https://host/v1'
    allow_plaintext = true
    allowed_origins = ['https://a:444', 'http://[::1]:1']
    api_key_file = '/run/key'
    api_key_file_interval = '1m30s'
    key_placement = 'query:api;key'
    limit = { quota = ['10/1s, margin 250ms', '100/60s, burst 20'], initial_burst = 3, longest_pause = '2h', throttle_pause = '30s', max_wait = '250ms', max_queue = 7 }
    timeout = { total = '50s', attempt = '5s', body_idle = '6s' }
    request_id = { header = 'x-id', server_headers = ['x-a', 'x-b'] }
    attempt_span.header = 'x-attempt'
    transport = { connect_timeout = '1s', idle_timeout = '2s', http = 'http2' }
    dialect = { throttle_statuses = [400], quotas = [{ remaining = 'x-left', window = '9s', unit = 'points' }, { used = 'x-used', limit = 'x-most', window_header = 'x-window' }] }
    [retry]
    max_attempts = 5
    max_retry_after = '8s'
    replay_limit = 9
    retry_rejected = 'idempotent'
    retry_on = [409, 425]
    never_on = [503]
    backoff = { base = '1500ms', cap = '11s', jitter = '12%' }
    throttled_backoff = { base = '13ms', cap = '14s', jitter = '0%' }
    budget = { enabled = true, capacity = 900, retry_cost = 600, throttled_cost = 17, success_gain = 18 }
    honoured_idempotency_key = { quoted = true, header = 'x-token' }";

/// Returns the `Debug` text of a configuration, which shows every field.
fn debug_text(config: &StackConfig) -> String {
    format!("{config:#?}")
}

#[test]
fn writing_and_reading_preserves_a_configuration() {
    for text in
        [EVERY_FIELD, "", "base_url = 'https://host'", "retry.budget.enabled = false\nlimit.quota = []"]
    {
        let config = parse(text);
        let written = toml::to_string(&config).unwrap();
        assert_eq!(debug_text(&parse(&written)), debug_text(&config), "{written}");
        let written = serde_json::to_string(&config).unwrap();
        let read: StackConfig = serde_json::from_str(&written).unwrap();
        assert_eq!(debug_text(&read), debug_text(&config), "{written}");
    }
    assert_ne!(debug_text(&parse(EVERY_FIELD)), debug_text(&parse("")));
}

#[test]
fn only_the_last_retry_rule_for_each_status_is_serialized() {
    let [error, busy] = [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE];
    let layer = RetryLayer::new().never_on([error]).retry_on([busy]).retry_on([error]).never_on([busy]);
    let written = serde_json::to_value(&layer).unwrap();
    assert_eq!((&written["retry_on"], &written["never_on"]), (&["500"].into(), &["503"].into()), "{written}");
    let read: RetryLayer = serde_json::from_value(written).unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", RetryLayer::new().retry_on([error]).never_on([busy])));
}

#[test]
fn key_of_a_configuration_is_neither_serialized_nor_shown() {
    let config = parse_with_defaults("");
    let shown = [
        toml::to_string(&config).unwrap(),
        serde_json::to_string(&config).unwrap(),
        format!("{config:?} {config:#?}"),
    ];
    assert!(!shown.iter().any(|text| text.contains(KEY)), "{shown:?}");
    config.layer().unwrap();
    let text = format!(r#"{{"base_url": "https://host", "api_key": "{KEY} "}}"#);
    let config: StackConfig = serde_json::from_str(&text).unwrap();
    let error = StackBuilder::from_config(&config).unwrap_err();
    assert_eq!(error.path().as_deref(), Some("api_key"));
    assert!(!format!("{config:?} {error:?} {error}").contains(KEY));
}

#[test]
fn writing_and_reading_preserves_a_duration_of_any_length() {
    proptest!(|(nanos: u64, seconds in 0..u64::MAX)| {
        let written = std::time::Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).unwrap());
        let [whole, rest] = [written.as_secs(), u64::from(written.subsec_nanos())];
        let config = parse(&format!("limit.max_wait = '{whole}s{rest}ns'"));
        prop_assert_eq!(debug_text(&parse(&toml::to_string(&config).unwrap())), debug_text(&config));
    });
}

proptest! {
    /// Parses any text as a configuration and builds a stack from it. Both return a value or an error.
    #[test]
    fn parsing_a_configuration_of_any_text_does_not_panic(
        text in "\\PC{0,40}",
        name in proptest::sample::select(vec![
            "preset", "name", "base_url", "api_key", "key_placement", "allowed_origins", "limit.quota", "limit.max_queue",
            "timeout.total", "retry.retry_on", "retry.backoff.jitter", "retry.budget.enabled", "request_id.header", "é",
        ]),
        value in "(\\PC{0,9}|(bearer|header|query|basic)?:?\\PC{0,3})",
    ) {
        let _ = toml::from_str::<StackConfig>(&text);
        let _ = serde_json::from_str::<StackConfig>(&text);
        let file = format!("{name} = {}", toml::Value::from(value));
        if let Ok(config) = toml::from_str::<StackConfig>(&file) {
            let _ = StackBuilder::from_config(&config);
        }
    }
}
