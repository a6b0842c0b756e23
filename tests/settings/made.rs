//! What is made of settings is what the same setters make.

use std::time::Duration;

use http::{HeaderName, StatusCode};
use tower_outbound::{
    ApiKey, ExponentialBackoff, InvalidConfig, Jitter, Quota,
    attempt_span::AttemptSpanLayer,
    limit::{Limiter, PermitRequest, RateLimitLayer, TokenBucket},
    policy::Budget,
    preset::{self, StackBuilder},
    request_id::RequestIdLayer,
    retry::{IdempotencyKey, RetryLayer},
    settings::{LimitSettings, PresetName, ServiceSettings, TimeoutSettings},
};

use crate::{KEY, toml, with};

const SECOND: Duration = Duration::from_secs(1);

type Make = fn(&str) -> Result<StackBuilder, InvalidConfig>;

/// What `Debug` tells of a preset, which is all its numbers.
#[track_caller]
fn same(settings: &StackBuilder, code: &StackBuilder) {
    assert_eq!(format!("{settings:#?}"), format!("{code:#?}"));
    assert_eq!(settings.quotas(), code.quotas());
    assert_eq!((settings.name(), settings.base_url()), (code.name(), code.base_url()));
}

#[test]
fn nothing_said_is_the_preset_itself_and_so_are_its_defaults_written_out() {
    const URL: &str = "https://host/v1";
    let presets: [(&str, Make); 4] = [
        ("currency_rates", preset::currency_rates),
        ("email_delivery", preset::email_delivery),
        ("realtime_messaging", preset::realtime_messaging),
        ("custom", |url| StackBuilder::new("mine", url)),
    ];
    for (name, make) in presets {
        let own_name = if name == "custom" { "name = 'mine'" } else { "" };
        let settings = toml(&format!("preset = '{name}'\nbase_url = '{URL}'\n{own_name}"));
        let code = make(URL).unwrap();
        same(&settings.preset().unwrap(), &code);

        let effective = settings.effective().unwrap();
        // Said, it makes way for a shorter call no more.
        let said = code.clone().with_attempt_timeout(StackBuilder::DEFAULT_ATTEMPT_TIMEOUT);
        same(&effective.preset().unwrap(), &said);
        assert_eq!(effective.effective().unwrap(), effective);
        let transport = settings.transport.transport().unwrap();
        assert_eq!(format!("{transport:?}"), format!("{:?}", tower_outbound::client::Transport::new()));
        #[cfg(not(feature = "native-roots"))]
        assert_eq!(
            format!("{:?}", effective.transport.transport().unwrap()),
            format!("{:?}", tower_outbound::client::Transport::new())
        );
        // The variable that is named is the one that is read.
        let variable = effective.key_env.unwrap();
        if std::env::var_os(&variable).is_none() {
            assert!(code.layer().unwrap_err().value().contains(&variable), "{variable}");
        }
    }
}

#[test]
fn every_setting_does_what_its_setter_does() {
    let settings = with(
        "name = 'plan-b'
        allow_plaintext = true
        limit = { quota = ['10/1s', '100/60s, burst 20, margin 2s'], max_wait = '3s', max_queue = 4 }
        timeout = { total = '50s', attempt = '5s', body_idle = '6s' }
        attempt.header = 'x-attempt'
        request_id = { header = 'x-id', server_headers = ['x-a', 'x-b'] }
        [retry]
        max_attempts = 7
        max_retry_after = '8s'
        replay_limit = 9
        backoff = { base = '10ms', cap = '11s', jitter = '12%' }
        throttled_backoff = { base = '13ms', cap = '14s', jitter = '0%' }
        budget = { capacity = 900, retry_cost = 600, throttled_cost = 17, success_gain = 18 }
        honoured_idempotency_key = { form = 'quoted', header = 'x-token' }",
    );
    let header = |name| HeaderName::from_static(name);
    let ms = Duration::from_millis;
    let budget = Budget::new().with_capacity(900).unwrap().with_retry_cost(600).unwrap();
    let budget = budget.with_throttled_cost(17).unwrap().with_success_gain(18).unwrap();
    let backoff = |base, cap, jitter| {
        let backoff = ExponentialBackoff::new(ms(base), cap * SECOND).unwrap();
        backoff.with_jitter(Jitter::percent(jitter).unwrap())
    };
    let retry = RetryLayer::new()
        .with_max_attempts(7)
        .unwrap()
        .with_max_retry_after(8 * SECOND)
        .with_replay_limit(9)
        .with_backoff(backoff(10, 11, 12))
        .with_throttled_backoff(backoff(13, 14, 0))
        .with_budget(budget)
        .with_honoured_idempotency_key(IdempotencyKey::quoted().with_header(header("x-token")));
    let quotas = [
        Quota::per_second(10).unwrap(),
        Quota::per_minute(100).unwrap().with_burst(20).unwrap().with_margin(2 * SECOND).unwrap(),
    ];
    let code = preset::currency_rates("https://rates.example.com")
        .unwrap()
        .with_api_key(ApiKey::new(KEY).unwrap())
        .with_name("plan-b")
        .allow_plaintext()
        .with_quotas(quotas)
        .with_limit(|layer| layer.with_max_wait(3 * SECOND).with_max_queue(4))
        .with_total_timeout(50 * SECOND)
        .with_attempt_timeout(5 * SECOND)
        .with_body_idle_timeout(6 * SECOND)
        .with_attempt(AttemptSpanLayer::new().with_attempt_header(header("x-attempt")))
        .with_request_id(
            RequestIdLayer::new()
                .with_header(header("x-id"))
                .with_server_headers([header("x-a"), header("x-b")]),
        )
        .with_retry(retry.clone());
    same(&settings.preset().unwrap(), &code);

    // And the layers alone.
    assert_eq!(format!("{:?}", settings.retry.layer().unwrap()), format!("{retry:?}"));
    let bucket = settings.limit.token_bucket();
    let layer = RateLimitLayer::new(TokenBucket::all_of(quotas)).with_max_wait(3 * SECOND).with_max_queue(4);
    assert_eq!(format!("{:?}", settings.limit.layer(bucket)), format!("{layer:?}"));
    assert!(format!("{:?}", settings.timeout.total_layer().unwrap()).contains("50s"));
    assert!(format!("{:?}", settings.timeout.attempt_layer().unwrap()).contains("5s"));
    assert!(format!("{:?}", settings.timeout.body_idle_layer().unwrap()).contains("6s"));
    assert!(format!("{:?}", TimeoutSettings::default().body_idle_layer().unwrap()).contains("None"));
    let origins = with("allowed_origins = ['https://a', 'https://b']").auth_layer().unwrap();
    let shown = format!("{origins:?}");
    assert!(["rates.example.com", "\"a\"", "\"b\""].iter().all(|host| shown.contains(host)), "{shown}");
}

#[test]
fn a_budget_can_be_switched_off_or_smaller_than_its_default_costs() {
    assert!(with("retry.budget.enabled = false").retry.budget.budget().unwrap().is_none());
    let small = with("retry.budget = { capacity = 5, retry_cost = 3, throttled_cost = 2, success_gain = 1 }");
    assert_eq!(small.retry.budget.budget().unwrap().unwrap().left(), 5);
}

#[test]
fn file_and_code_give_the_same_quota_for_the_same_text() {
    for (text, expected) in [
        ("10/1s", "10/1s, burst 1, margin 62500us"),
        ("10/1s, margin 0s", "10/1s, burst 1, margin 0s"),
        ("100/60s", "100/60s, burst 10, margin 1s"),
        ("100/60s, margin 250ms", "100/60s, burst 10, margin 250ms"),
        ("100/60s, burst 20, margin 2s", "100/60s, burst 20, margin 2s"),
        ("2/200ms", "2/200ms, burst 1, margin 12500us"),
    ] {
        assert_quotas(&with(&format!("limit.quota = '{text}'")), &[text.parse().unwrap()]);
        assert_eq!(format!("{:#}", text.parse::<Quota>().unwrap()), expected);
    }
    let both = ["6/60s, margin 7s", "60/1h"].map(|text| text.parse().unwrap());
    assert_quotas(&with("limit.quota = ['6/60s, margin 7s', '60/1h']"), &both);
    assert_quotas(&with("limit.quota = []"), &[]);
    assert_quotas(&with(""), &[Quota::per_minute(100).unwrap()]);
    assert_quotas(&with("preset = 'email_delivery'"), &[Quota::per_minute(1_000).unwrap()]);
    assert_quotas(&with("preset = 'realtime_messaging'"), &[]);
}

/// Checks the preset, also after its effective settings were written and read.
#[track_caller]
fn assert_quotas(settings: &ServiceSettings, expected: &[Quota]) {
    assert_eq!(settings.preset().unwrap().quotas(), expected, "{:?}", settings.limit);
    let written = toml::to_string(&settings.effective().unwrap()).unwrap();
    assert_eq!(toml(&written).preset().unwrap().quotas(), expected, "{written}");
}

#[tokio::test(start_paused = true)]
async fn a_limiter_may_start_empty() {
    let wait = async |text: &str| {
        let limit: LimitSettings = toml::from_str(text).unwrap();
        let start = tokio::time::Instant::now();
        limit.token_bucket().acquire_with(&PermitRequest::new()).await.unwrap();
        limit.sliding_window().acquire_with(&PermitRequest::new()).await.unwrap();
        start.elapsed()
    };
    assert!(wait("quota = '10/1s'").await.is_zero());
    assert!(wait("quota = '10/1s'\nstarting_empty = true").await >= SECOND);
    let shown = |text| format!("{:?}", with(text).preset().unwrap());
    assert_ne!(shown("limit.starting_empty = true"), shown(""));
}

#[tokio::test(start_paused = true)]
async fn statuses_of_ones_own_are_tried_again_or_not() {
    use tower::{Layer, ServiceExt, service_fn};
    let attempts = async |status: u16, text: &str| {
        let count = std::sync::atomic::AtomicU32::new(0);
        let inner = service_fn(|_| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let response = http::Response::builder().status(StatusCode::from_u16(status).unwrap());
            std::future::ready(response.body(http_body_util::Empty::<bytes::Bytes>::new()))
        });
        let service = with(text).retry.layer().unwrap().layer(inner);
        let request = http::Request::get("https://host/").body(http_body_util::Empty::<bytes::Bytes>::new());
        service.oneshot(request.unwrap()).await.unwrap();
        count.into_inner()
    };
    assert_eq!(attempts(409, "").await, 1);
    assert_eq!(attempts(409, "retry.retry_on = [425, 409]").await, 3);
    assert_eq!(attempts(409, "retry = { retry_on = 409, never_on = 409 }").await, 1);
    assert_eq!(attempts(503, "").await, 3);
    assert_eq!(attempts(503, "retry.never_on = '503'").await, 1);
}

#[test]
fn names_a_service_by_any_visible_text() {
    let name = |name: &str| {
        let mut settings = with("");
        settings.name = Some(name.to_owned());
        settings.preset().map(|preset| preset.name().to_owned())
    };
    // More names than a capped interner would accept.
    for number in 0..2_000 {
        let tenant = format!("tenant-{number}");
        assert_eq!(name(&tenant).unwrap(), tenant);
    }
    for bad in ["a b", "é", "line\n", &"x".repeat(65)] {
        assert_eq!(name(bad).unwrap_err().path(), Some("name"), "{bad}");
    }
    assert_eq!(with("").preset().unwrap().name(), "currency_rates");
    assert_eq!(with("").preset, Some(PresetName::CurrencyRates));
}
