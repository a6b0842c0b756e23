//! Tests that each field of a configuration has the same effect as its setter in code, and that writing and reading a
//! configuration preserves everything except the key.

use std::time::Duration;

use http::{HeaderName, StatusCode};
use proptest::prelude::*;
use tower_outbound::{
    ApiKey, ExponentialBackoff, Jitter, Quota,
    attempt_span::AttemptSpanLayer,
    limit::{
        Dialect, Limiter, LocalLimiter, PermitRequest, QuotaHeaders, RateLimitConfig, RateLimitLayer, Unit,
    },
    preset::{self, StackConfig},
    request_id::RequestIdLayer,
    retry::{Budget, IdempotencyKey, RetryLayer, RetryRejected},
    stack::StackBuilder,
    timeout::TimeoutConfig,
};

use super::{KEY, builder, parse, parse_with_defaults};

const SECOND: Duration = Duration::from_secs(1);

/// Asserts that the configuration creates a builder that equals `code`. Compares the `Debug` texts, which show every
/// setting.
#[track_caller]
fn assert_same(config: &StackConfig, code: &StackBuilder) {
    let builder = StackBuilder::from_config(config).unwrap();
    assert_eq!(format!("{builder:#?}"), format!("{code:#?}"));
    assert_eq!(builder.quotas(), code.quotas());
    assert_eq!((builder.name(), builder.base_url()), (code.name(), code.base_url()));
}

#[test]
fn configuration_without_optional_fields_equals_its_preset() {
    const URL: &str = "https://host/v1";
    let custom: (&str, preset::Preset) = ("custom", |url| StackBuilder::new(url));
    for (name, preset) in preset::ALL.iter().chain([&custom]) {
        let config = parse(&format!("preset = '{name}'\nbase_url = '{URL}'"));
        let code = preset(URL).unwrap();
        assert_same(&config, &code);
        // The serialized configuration contains every default.
        assert_same(&parse(&toml::to_string(&config).unwrap()), &code);
        // The default source of the key is the preset's environment variable.
        let variable =
            if *name == "custom" { String::new() } else { format!("{}_API_KEY", name.to_uppercase()) };
        if std::env::var_os(&variable).is_none() {
            let error = config.layer().unwrap_err();
            assert_eq!(error.path().as_deref(), Some("api_key_env"));
            assert!(error.value().contains(&variable), "{error}");
        }
    }
    assert_eq!(builder("preset = 'custom'").name(), "rates.example.com");
}

const EVERY_FIELD: &str = "
    name = 'plan-b'
    allow_plaintext = true
    limit = { quota = ['10/1s', '100/60s, burst 20, margin 2s'], in_flight_until_head = true, max_wait = '3s', max_queue = 4 }
    timeout = { total = '50s', attempt = '5s', body_idle = '6s' }
    attempt_span.header = 'x-attempt'
    request_id = { header = 'x-id', server_headers = ['x-a', 'x-b'] }
    dialect = { throttle_statuses = [400], delay_headers = [{ name = 'x-wait' }, { name = 'x-wait-ms', millis = true }], permanent_headers = [{ name = 'x-code', value = 40112 }, { name = 'x-spent' }], quotas = [{ remaining = 'x-left', window = '9s', unit = 'points', reset = 'x-reset', limit = 'x-limit', resource = 'x-pool' }, { used = 'x-used', limit = 'x-most', window_header = 'x-window', millis = true }] }
    [retry]
    max_attempts = 7
    max_retry_after = '8s'
    replay_limit = 9
    retry_rejected = 'idempotent'
    backoff = { base = '10ms', cap = '11s', jitter = '12%' }
    throttled_backoff = { base = '13ms', cap = '14s', jitter = '0%' }
    budget = { capacity = 900 }
    honoured_idempotency_key = { quoted = true, header = 'x-token' }";

#[test]
fn every_field_has_the_same_effect_as_its_setter() {
    let config = parse_with_defaults(EVERY_FIELD);
    let header = |name| HeaderName::from_static(name);
    let ms = Duration::from_millis;
    let backoff = |base, cap, jitter| {
        let backoff = ExponentialBackoff::new(ms(base), cap * SECOND).unwrap();
        backoff.with_jitter(Jitter::percent(jitter).unwrap())
    };
    let retry = RetryLayer::new()
        .with_max_attempts(7)
        .unwrap()
        .with_max_retry_after(8 * SECOND)
        .with_replay_limit(9)
        .with_retry_rejected(RetryRejected::Idempotent)
        .with_backoff(backoff(10, 11, 12))
        .with_throttled_backoff(backoff(13, 14, 0))
        .with_budget(Budget::new().with_capacity(900).unwrap())
        .with_honoured_idempotency_key(IdempotencyKey::quoted().with_header(header("x-token")));
    let credits = QuotaHeaders::new(header("x-left"))
        .with_unit(Unit::Points)
        .with_reset(header("x-reset"))
        .with_limit(header("x-limit"))
        .with_resource(header("x-pool"))
        .with_window(9 * SECOND);
    let dialect = Dialect::new().with_throttle_status(StatusCode::BAD_REQUEST).unwrap();
    let used = QuotaHeaders::of_used(header("x-used")).with_limit(header("x-most"));
    let used = used.with_window_header(header("x-window")).with_millis();
    let dialect = dialect.with_quota_headers(credits).unwrap().with_quota_headers(used).unwrap();
    let dialect = dialect.with_delay_header(header("x-wait")).unwrap();
    let dialect = dialect.with_delay_header_in_millis(header("x-wait-ms")).unwrap();
    let code = http::HeaderValue::from_static("40112");
    let dialect = dialect.with_permanent_header(header("x-code"), code).unwrap();
    let dialect = dialect.with_permanent_header(header("x-spent"), None).unwrap();
    let quotas = [
        Quota::per_second(10).unwrap(),
        Quota::per_minute(100).unwrap().with_burst(20).unwrap().with_margin(2 * SECOND).unwrap(),
    ];
    let code = preset::currency_rates("https://rates.example.com")
        .unwrap()
        .with_api_key(ApiKey::new(KEY).unwrap())
        .with_name("plan-b")
        .with_plaintext()
        .with_quotas(quotas)
        .with_limit(|layer| layer.with_max_wait(3 * SECOND).with_max_queue(4).with_in_flight_until_head())
        .with_total_timeout(50 * SECOND)
        .with_attempt_timeout(5 * SECOND)
        .with_body_idle_timeout(6 * SECOND)
        .with_attempt_span(AttemptSpanLayer::new().with_attempt_header(header("x-attempt")))
        .with_request_id(
            RequestIdLayer::new()
                .with_header(header("x-id"))
                .with_server_headers([header("x-a"), header("x-b")]),
        )
        .with_retry(retry.clone())
        .with_dialect(dialect);
    assert_same(&config, &code);

    // Retry, rate limit and timeout layers can also be configured without a preset.
    let config: RetryLayer = toml::from_str("max_attempts = 7").unwrap();
    let layer = RetryLayer::new().with_max_attempts(7).unwrap();
    assert_eq!(format!("{config:?}"), format!("{layer:?}"));
    let config: RateLimitConfig = toml::from_str("quota = '10/1s'\nmax_wait = '3s'\nmax_queue = 4").unwrap();
    let bucket = LocalLimiter::token_bucket(Quota::per_second(10).unwrap());
    let layer = RateLimitLayer::new(bucket).with_max_wait(3 * SECOND).with_max_queue(4);
    assert_eq!(
        format!(
            "{:?}",
            RateLimitLayer::from_config(LocalLimiter::token_bucket([]).with_config(&config), &config)
        ),
        format!("{layer:?}")
    );
    let config: TimeoutConfig = toml::from_str("total = '50s'\nattempt = '5s'\nbody_idle = '6s'").unwrap();
    assert!(format!("{:?}", config.total_layer().unwrap()).contains("50s"));
    assert!(format!("{:?}", config.attempt_layer().unwrap()).contains("5s"));
    assert!(format!("{:?}", config.body_idle_layer().unwrap()).contains("6s"));
    assert!(format!("{:?}", TimeoutConfig::default().body_idle_layer().unwrap()).contains("None"));
}

#[test]
fn config_and_from_str_parse_a_quota_identically() {
    for (text, expected) in [
        ("10/1s", "10/1s, burst 1, margin 62500us"),
        ("10/1s, margin 0s", "10/1s, burst 1, margin 0s"),
        ("100/60s", "100/60s, burst 10, margin 1s"),
        ("100/60s, margin 250ms", "100/60s, burst 10, margin 250ms"),
        ("100/60s, burst 20, margin 2s", "100/60s, burst 20, margin 2s"),
        ("2/200ms", "2/200ms, burst 1, margin 12500us"),
        ("30000 tokens/60s", "30000 tokens/60s, burst 3000, margin 1s"),
        ("500 output_tokens/60s, burst 20", "500 output_tokens/60s, burst 20, margin 1s"),
    ] {
        assert_quotas(&parse_with_defaults(&format!("limit.quota = '{text}'")), &[text.parse().unwrap()]);
        assert_eq!(format!("{:#}", text.parse::<Quota>().unwrap()), expected);
    }
    let both = ["6/60s, margin 7s", "60/1h"].map(|text| text.parse().unwrap());
    assert_quotas(&parse_with_defaults("limit.quota = ['6/60s, margin 7s', '60/1h']"), &both);
    assert_quotas(&parse_with_defaults("limit.quota = []"), &[]);
    assert_quotas(&parse_with_defaults(""), &[Quota::per_minute(100).unwrap()]);
    assert_quotas(&parse_with_defaults("preset = 'email_delivery'"), &[Quota::per_minute(1_000).unwrap()]);
    assert_quotas(&parse_with_defaults("preset = 'realtime_messaging'"), &[]);
}

/// Asserts that a configuration has the expected quotas, even after it is serialized and parsed again.
#[track_caller]
fn assert_quotas(config: &StackConfig, expected: &[Quota]) {
    let quotas = |config| StackBuilder::from_config(config).unwrap().quotas().to_vec();
    assert_eq!(quotas(config), expected, "{config:?}");
    let written = toml::to_string(config).unwrap();
    assert_eq!(quotas(&parse(&written)), expected, "{written}");
}

#[tokio::test(start_paused = true)]
async fn initial_burst_of_0_delays_the_first_permit() {
    let wait = async |text: &str| {
        let limit: RateLimitConfig = toml::from_str(text).unwrap();
        let start = tokio::time::Instant::now();
        for limiter in [LocalLimiter::token_bucket([]), LocalLimiter::sliding_window([])] {
            limiter.with_config(&limit).acquire_with(&PermitRequest::new()).await.unwrap();
        }
        start.elapsed()
    };
    assert!(wait("quota = '10/1s'").await.is_zero());
    assert!(wait("quota = '10/1s'\ninitial_burst = 0").await >= SECOND);
    let shown = |text| format!("{:?}", builder(text));
    assert_ne!(shown("limit.initial_burst = 0"), shown(""));
}

#[tokio::test(start_paused = true)]
async fn configuration_sets_the_retried_statuses_with_retry_on_and_never_on() {
    use tower::{Layer, ServiceExt, service_fn};
    let attempts = async |status: u16, text: &str| {
        let count = std::sync::atomic::AtomicU32::new(0);
        let inner = service_fn(|_| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let response = http::Response::builder().status(StatusCode::from_u16(status).unwrap());
            std::future::ready(response.body(http_body_util::Empty::<bytes::Bytes>::new()))
        });
        let service = toml::from_str::<RetryLayer>(text).unwrap().layer(inner);
        let request = http::Request::get("https://host/").body(http_body_util::Empty::<bytes::Bytes>::new());
        service.oneshot(request.unwrap()).await.unwrap();
        count.into_inner()
    };
    assert_eq!(attempts(409, "").await, 1);
    assert_eq!(attempts(409, "retry_on = [425, 409]").await, 3);
    assert_eq!(attempts(409, "retry_on = 409\nnever_on = 409").await, 1);
    assert_eq!(attempts(503, "").await, 3);
    assert_eq!(attempts(503, "never_on = '503'").await, 1);
}

#[test]
fn name_may_be_any_visible_ascii_text_of_at_most_253_characters() {
    let name = |name: &str| {
        let config = parse_with_defaults(&format!("name = {}", toml::Value::from(name)));
        config.layer()?;
        StackBuilder::from_config(&config).map(|builder| builder.name().to_owned())
    };
    assert_eq!(name("tenant-7").unwrap(), "tenant-7");
    for invalid in ["a b", "é", "line\n", &"x".repeat(254)] {
        assert_eq!(name(invalid).unwrap_err().path().as_deref(), Some("name"), "{invalid}");
    }
    assert_eq!(builder("").name(), "currency_rates");
}

/// A preset has an environment variable for its key. `no_credential` replaces this variable, and requires no TLS.
#[test]
fn configuration_may_have_no_credential() {
    let url = "http://rates.example.com";
    for preset in ["currency_rates", "custom"] {
        let text = format!("preset = '{preset}'\nbase_url = '{url}'");
        let config = parse(&format!("{text}\nno_credential = true"));
        config.layer().unwrap();
        assert!(parse(&text).layer().is_err());
        parse(&toml::to_string(&config).unwrap()).layer().unwrap();
    }
}

/// Returns the `Debug` text of a configuration, which shows every field.
fn debug_text(config: &StackConfig) -> String {
    format!("{config:#?}")
}

#[test]
fn writing_and_reading_preserves_a_configuration() {
    let others = "preset = 'email_delivery'\nbase_url = 'https://host/v1'\nallowed_origins = ['https://a:444', 'http://[::1]:1']
        api_key_file = '/run/key'\nkey_placement = 'query:api;key'
        retry.retry_on = [409, 425]\nretry.never_on = [503]\nretry.budget.enabled = false\nlimit.quota = []
        limit.longest_pause = '2h'\ntransport = { connect_timeout = '1s', http = 'http2' }";
    for text in [EVERY_FIELD, others, ""] {
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

#[test]
fn only_the_last_retry_rule_for_each_status_is_serialized() {
    let [error, busy] = [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE];
    let layer = RetryLayer::new().never_on([error]).retry_on([busy]).retry_on([error]).never_on([busy]);
    let written = serde_json::to_value(&layer).unwrap();
    assert_eq!((&written["retry_on"], &written["never_on"]), (&["500"].into(), &["503"].into()), "{written}");
    let read: RetryLayer = serde_json::from_value(written).unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", RetryLayer::new().retry_on([error]).never_on([busy])));
}
