//! Out and in again: what was written is read as it was, but for the key.

use std::{path::PathBuf, time::Duration};

use http::{HeaderName, StatusCode};
use proptest::{option, prelude::*, sample::select};
use tower_outbound::{
    ApiKey, Jitter, Quota,
    auth::{KeyPlacement, Origin},
    settings::{
        AttemptSettings, BackoffSettings, BudgetSettings, HttpVersion, IdempotencyKeyForm,
        IdempotencyKeySettings, InlineKey, LimitSettings, PresetName, RequestIdSettings, RetrySettings,
        ServiceSettings, TimeoutSettings, TransportSettings, from_variables,
    },
};

use crate::KEY;

/// Some fields of a default, which nobody outside can write as a literal.
macro_rules! set {
    ($type:ident { $($field:ident: $value:expr),* $(,)? }) => {
        ($(option::of($value),)*).prop_map(|($($field,)*)| {
            let mut settings = $type::default();
            $(settings.$field = $field;)*
            settings
        })
    };
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![any::<Duration>(), (0_u64..100_000).prop_map(Duration::from_millis)]
}

fn header() -> impl Strategy<Value = HeaderName> {
    "[a-z][a-z0-9-]{0,8}".prop_map(|name| name.parse().unwrap())
}

fn quota() -> impl Strategy<Value = Quota> {
    (1_u32.., 1_u64..10_000_000, any::<u32>(), 0_u32..=5).prop_map(|(limit, window, burst, margin)| {
        let window = Duration::from_micros(window);
        let quota = Quota::new(limit, window).unwrap().with_burst(1 + burst % (limit - 1).max(1)).unwrap();
        margin.checked_sub(1).map_or(quota, |margin| quota.with_margin(window * margin / 4).unwrap())
    })
}

fn backoff() -> impl Strategy<Value = BackoffSettings> {
    let jitter = (0_u8..=100).prop_map(|percent| Jitter::percent(percent).unwrap());
    set!(BackoffSettings { base: duration(), cap: duration(), jitter: jitter })
}

fn place() -> impl Strategy<Value = KeyPlacement> {
    prop_oneof![
        Just(KeyPlacement::bearer()),
        "x-[a-z-]{1,9}".prop_map(|name| KeyPlacement::header(name.parse().unwrap()).unwrap()),
        "[^\\pC\\s=&#?:]{1,9}".prop_map(|name| KeyPlacement::query(&name).unwrap()),
        "\\PC{0,9}".prop_map(|user| KeyPlacement::basic(&user.replace(':', "")).unwrap()),
    ]
}

prop_compose! {
    fn retry()(
        plain in set!(RetrySettings {
            max_attempts: any::<u32>(),
            max_retry_after: duration(),
            // A number of TOML ends at 63 bits.
            replay_limit: 0_usize..=i64::MAX as usize,
            retry_on: prop::collection::vec((100_u16..=999).prop_map(|status| StatusCode::from_u16(status).unwrap()), 0..3),
            never_on: prop::collection::vec(Just(StatusCode::CONFLICT), 0..3),
            honoured_idempotency_key: set!(IdempotencyKeySettings {
                form: select(vec![IdempotencyKeyForm::Bare, IdempotencyKeyForm::Quoted]),
                header: header(),
            }),
        }),
        backoff in backoff(),
        throttled_backoff in backoff(),
        budget in set!(BudgetSettings {
            enabled: any::<bool>(),
            capacity: any::<u32>(),
            retry_cost: any::<u32>(),
            throttled_cost: any::<u32>(),
            success_gain: any::<u32>(),
        }),
    ) -> RetrySettings {
        let mut retry: RetrySettings = plain;
        (retry.backoff, retry.throttled_backoff, retry.budget) = (backoff, throttled_backoff, budget);
        retry
    }
}

prop_compose! {
    fn service()(
        plain in set!(ServiceSettings {
            preset: select(vec![
                PresetName::CurrencyRates, PresetName::EmailDelivery, PresetName::RealtimeMessaging, PresetName::Custom,
            ]),
            name: "\\PC{0,9}",
            base_url: select(vec!["https://api.example.com/v1", "http://[::1]:8080", "https://host/it's"])
                .prop_map(|url| url.parse().unwrap()),
            allow_plaintext: any::<bool>(),
            allowed_origins: prop::collection::vec(
                select(vec!["https://a:444", "http://127.0.0.1", "http://[::1]:1"])
                    .prop_map(|url| Origin::parse(url).unwrap()),
                0..3,
            ),
            key_env: "\\PC{0,9}",
            key_file: "\\PC{0,9}".prop_map(PathBuf::from),
            key_file_interval: duration(),
            key_placement: place(),
        }),
        limit in set!(LimitSettings {
            quota: prop::collection::vec(quota(), 0..3),
            max_wait: duration(),
            max_queue: 0_usize..=i64::MAX as usize,
            starting_empty: any::<bool>(),
        }),
        retry in retry(),
        timeout in set!(TimeoutSettings { total: duration(), attempt: duration(), body_idle: duration() }),
        request_id in set!(RequestIdSettings {
            header: header(),
            server_headers: prop::collection::vec(header(), 0..3),
        }),
        attempt in set!(AttemptSettings { header: header() }),
        transport in set!(TransportSettings {
            connect_timeout: duration(),
            idle_timeout: duration(),
            http: select(vec![HttpVersion::Negotiated, HttpVersion::Http1, HttpVersion::Http2]),
            bundled_roots: any::<bool>(),
            native_roots: any::<bool>(),
            root_certificates: "\\PC{0,9}".prop_map(PathBuf::from),
        }),
    ) -> ServiceSettings {
        let mut service: ServiceSettings = plain;
        (service.limit, service.retry, service.timeout) = (limit, retry, timeout);
        (service.request_id, service.attempt, service.transport) = (request_id, attempt, transport);
        service
    }
}

/// The variables of a table, by the rule of the manual.
fn variables(prefix: &str, value: &toml::Value, found: &mut Vec<(String, String)>) {
    let text = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                variables(&format!("{prefix}_{}", name.to_ascii_uppercase()), value, found);
            }
        }
        toml::Value::Array(items) if items.is_empty() => found.push((prefix.to_owned(), "[]".to_owned())),
        toml::Value::Array(items) => {
            found.push((prefix.to_owned(), items.iter().map(text).collect::<Vec<_>>().join("; ")));
        }
        value => found.push((prefix.to_owned(), text(value))),
    }
}

/// A table without an entry can't be said by a variable.
fn said_by_variables(mut service: ServiceSettings) -> ServiceSettings {
    let key = service.retry.honoured_idempotency_key;
    service.retry.honoured_idempotency_key = key.filter(|key| *key != IdempotencyKeySettings::default());
    service
}

proptest! {
    #[test]
    fn what_was_written_is_read(service in service()) {
        let text = toml::to_string(&service).unwrap();
        let read: ServiceSettings = toml::from_str(&text).unwrap();
        prop_assert_eq!(&read, &service, "{}", text);
        let text = serde_json::to_string(&service).unwrap();
        prop_assert_eq!(&serde_json::from_str::<ServiceSettings>(&text).unwrap(), &service, "{}", text);

        let service = said_by_variables(service);
        let mut given = Vec::new();
        variables("APP", &toml::Value::try_from(&service).unwrap(), &mut given);
        prop_assert_eq!(from_variables::<ServiceSettings>("APP", &given).unwrap(), service, "{:?}", given);
    }

    #[test]
    fn the_key_is_not_written(mut service in service()) {
        let without = service.clone();
        service.api_key = Some(InlineKey::from(ApiKey::new(KEY).unwrap()));
        let shown = [
            toml::to_string(&service).unwrap(),
            serde_json::to_string(&service).unwrap(),
            format!("{service:?} {service:#?}"),
        ];
        prop_assert!(!shown.iter().any(|text| text.contains(KEY)), "{:?}", shown);
        let read: ServiceSettings = toml::from_str(&shown[0]).unwrap();
        prop_assert_eq!(read, without, "all else came back");
    }

    /// Whatever may be made of them, it is said and not panicked about.
    #[test]
    fn nothing_panics(
        service in service(),
        text in "\\PC{0,40}",
        name in select(vec![
            "PRESET", "BASE_URL", "API_KEY", "KEY_PLACEMENT", "ALLOWED_ORIGINS", "LIMIT_QUOTA", "LIMIT_MAX_QUEUE", "TIMEOUT_TOTAL",
            "RETRY_RETRY_ON", "RETRY_BACKOFF_JITTER", "RETRY_BUDGET_ENABLED", "REQUEST_ID_HEADER", "", "_", "RETRY_", "é",
        ]),
        value in "(\\PC{0,9}|(bearer|header|query|basic)?:?\\PC{0,3})",
    ) {
        let mut service: ServiceSettings = service;
        // The names that are kept are for the other tests, too.
        service.name = service.name.filter(|name| name.len() < 2);
        let _ = (service.preset().map(|_| ()), service.effective());
        let _ = toml::from_str::<ServiceSettings>(&text);
        let _ = serde_json::from_str::<ServiceSettings>(&text);
        let _ = from_variables::<ServiceSettings>("A", &[(format!("A_{name}"), value)]);
    }
}

#[test]
fn a_key_that_was_read_is_used_and_not_written() {
    for text in [format!(r#"{{"api_key": "{KEY}"}}"#), format!(r#"{{"api_key": "{KEY} "}}"#)] {
        let settings: ServiceSettings = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&settings).unwrap(), "{}");
        let key = settings.api_key.unwrap().key();
        assert!(!format!("{key:?}").contains(KEY));
        if let Ok(key) = key {
            assert_eq!(key.expose(), KEY);
        }
    }
}
