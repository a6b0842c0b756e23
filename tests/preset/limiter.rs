//! Tests the limiter of a preset. The limiter may be shared between clients, replaced, custom, or keyed by tenant.

use tower_outbound::{
    limit::{AnyLimiter, Keyed, LocalLimiter},
    stack::Pool,
};

use super::*;

#[tokio::test]
async fn all_clones_and_clients_of_a_preset_share_one_limiter() {
    let server = server().await;
    let preset = preset_with_key(&server.url()).with_quota(hourly_quota());
    let (first, second) = (preset.client().unwrap(), preset.clone().client().unwrap());
    assert_eq!(status(&first, "/").await.unwrap(), 200);
    assert_eq!(status(&second, "/").await.unwrap(), 200);
    for client in [&first, &second, &first.clone(), &preset.client().unwrap()] {
        let error = status(client, "/").await.unwrap_err();
        assert!(error.is_rate_limited(), "{error:?}");
        let wait = error.retry_after().unwrap();
        assert!(wait > HOUR - MINUTE && wait <= HOUR, "{wait:?}");
        assert_eq!(error.report().unwrap().attempts()[0].outcome, Some(Outcome::Refused));
    }
    assert_eq!(server.seen().len(), 2);
}

fn limiter(preset: &StackBuilder) -> &LocalLimiter {
    preset.limiter().downcast_ref().unwrap()
}

#[test]
fn preset_derived_from_another_shares_its_limiter_unless_it_has_another_credential_or_quota() {
    let preset = preset_with_key("https://host").with_quota(hourly_quota());
    let derived = [
        ("a clone", preset.clone(), 1),
        ("another timeout", preset.clone().with_total_timeout(HOUR), 1),
        ("another key", preset.clone().with_api_key(ApiKey::new("another").unwrap()), 2),
        ("no key", preset.clone().without_credential(), 2),
        ("the same quota, set again", preset.clone().with_quota(hourly_quota()), 2),
        ("a new preset", preset_with_key("https://host").with_quota(hourly_quota()), 2),
    ];
    limiter(&preset).try_acquire().unwrap();
    for (name, preset, available) in derived {
        assert_eq!(limiter(&preset).snapshot().available, available, "{name}");
        assert_eq!(preset.quotas(), [hourly_quota()], "{name}");
    }
}

#[test]
fn preset_keeps_a_given_limiter_and_rejects_a_later_quota() {
    let shared = LocalLimiter::paced_window(hourly_quota());
    shared.try_acquire().unwrap();
    let any = AnyLimiter::new(shared.clone());
    let preset = preset_with_key("https://host");
    for preset in [
        preset.clone().with_limiter(shared),
        preset.with_limit(|limit| limit.with_limiter(any).with_max_queue(3)),
    ] {
        let preset = preset.with_api_key(ApiKey::new("another").unwrap());
        assert_eq!(limiter(&preset).snapshot().available, 1);
        let error = preset.clone().with_quota(Quota::per_minute(300).unwrap()).layer().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid quota `300/60s`: expected none, because with_limiter has set a limiter with its own quotas"
        );
        assert!(preset.layer().is_ok(), "the first builder is still valid");
    }
}

#[test]
fn preset_rejects_settings_of_its_own_limiter_if_another_limiter_or_a_pool_is_given() {
    let shared = LocalLimiter::paced_window(hourly_quota());
    let pool = Pool::new([("https://host", key(), shared.clone())]).unwrap();
    let given = |preset: StackBuilder| preset.with_limiter(shared.clone());
    let replaced =
        |preset: StackBuilder| preset.with_limit(|limit| limit.with_limiter(AnyLimiter::new(shared.clone())));
    let pooled = |preset: StackBuilder| preset.with_pool(pool.clone());
    let (preset, custom) = (preset_with_key("https://host"), StackBuilder::new("https://host").unwrap());
    let in_flight = |preset: StackBuilder| preset.with_max_in_flight(4);
    let paused = |preset: StackBuilder| preset.with_throttle_pause(MINUTE);
    let in_given =
        "max in flight `4`: expected none, because with_limiter has set a limiter with its own settings";
    let in_pool =
        "max in flight `4`: expected none, because each member of the pool has a limiter with its own";
    let of_4 = || LocalLimiter::without_quota().with_max_in_flight(4).unwrap();
    let keyed = Keyed::new(|_| 0, move |_key: &u8| of_4());
    for (preset, expected) in [
        (given(in_flight(preset.clone())), in_given),
        (given(paused(preset.clone())), "throttle pause `60s`: expected none, because with_limiter has set"),
        (replaced(in_flight(preset.clone())), in_given),
        (in_flight(preset.clone()).with_limiter(shared.clone().with_max_in_flight(5).unwrap()), in_given),
        (in_flight(preset.clone()).with_limiter(keyed), in_given),
        (in_flight(given(preset)), in_given),
        (pooled(in_flight(custom.clone())), in_pool),
        (in_flight(pooled(custom.clone())), in_pool),
        (
            pooled(custom).with_quota(hourly_quota()),
            "quota `3/10800s`: expected none, because each member of the pool has a limiter with its own quotas",
        ),
    ] {
        let error = preset.layer().unwrap_err().to_string();
        let is_expected = error.strip_prefix("invalid ").is_some_and(|error| error.starts_with(expected));
        assert!(is_expected, "{expected}: {error}");
    }
}

#[test]
fn builder_accepts_settings_of_its_own_limiter_that_a_given_limiter_has_too() {
    let first = preset_with_key("https://host").with_max_in_flight(4).with_throttle_pause(MINUTE);
    let shared = first.limiter().clone();
    let another_key = first.clone().with_api_key(ApiKey::new("another").unwrap());
    let other = preset_with_key("https://other").with_max_in_flight(4);
    for (name, preset) in [
        ("a clone", first.clone().with_limiter(shared.clone())),
        ("another key", another_key.with_limiter(shared.clone())),
        ("another service", other.with_limiter(shared)),
    ] {
        preset.layer().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(std::ptr::eq(limiter(&preset), limiter(&first)), "{name}");
    }
}

#[cfg(feature = "serde")]
#[test]
fn change_to_a_file_with_settings_of_the_own_limiter_is_rejected_if_a_limiter_is_given() {
    const EXPECTED: &str = "rates.limit.max_in_flight: invalid max in flight `4`: expected none, because the program gives the client a limiter with its own settings";
    let shared = LocalLimiter::paced_window(hourly_quota());
    let new = |text: &str| config::builder(text).with_limiter(shared.clone());
    let client = new("").client_with_service(ScriptedService::new([ok()])).unwrap();
    let error = client.reconfigure(&new("limit.max_in_flight = 4\ntimeout.total = '20s'")).unwrap_err();
    assert_eq!(error.within("rates").to_string(), EXPECTED);
    client.reconfigure(&new("limit.max_wait = '4s'\ntimeout.total = '20s'")).unwrap();
}

#[cfg(feature = "serde")]
#[test]
fn change_with_the_limiter_of_the_client_is_accepted_if_the_file_has_its_current_settings() {
    let with_max = |max: u32| config::builder(&format!("limit.max_in_flight = {max}"));
    let client = with_max(4).client_with_service(ScriptedService::new([ok()])).unwrap();
    let given = |max| client.reconfigure(&with_max(max).with_limiter(client.limiter()));
    let is_rejected = |max| given(max).unwrap_err().field() == "max in flight";
    given(4).unwrap();
    assert!(is_rejected(5), "the limiter allows 4");
    client.reconfigure(&with_max(5)).unwrap();
    given(5).unwrap();
    assert!(is_rejected(4), "the limiter allows 5");
}

#[test]
fn downcast_finds_a_limiter_that_was_wrapped_twice() {
    let bucket = LocalLimiter::token_bucket(hourly_quota());
    let direct = format!("{:?}", AnyLimiter::new(bucket.clone()));
    assert!(direct.contains("available: 2"), "{direct}");
    let twice = AnyLimiter::new(AnyLimiter::new(bucket.clone()));
    assert_eq!(format!("{twice:?}"), direct);
    bucket.try_acquire().unwrap();
    assert_eq!(twice.downcast_ref::<LocalLimiter>().unwrap().snapshot().available, 1);
    assert!(twice.downcast_ref::<Keyed<String>>().is_none());
}

#[cfg(feature = "serde")]
#[test]
fn with_quota_keeps_the_initial_burst_of_the_configuration() {
    let config =
        "preset = 'currency_rates'\nbase_url = 'https://host'\napi_key = 'k3y'\nlimit.initial_burst = 0";
    let preset =
        StackBuilder::from_config(&toml::from_str(config).unwrap()).unwrap().with_quota(hourly_quota());
    assert_eq!(limiter(&preset).snapshot().available, 0);
}

/// Sends a request to a service that responds with 429 and `retry-after: 600`. Returns whether the limiter pauses.
async fn pauses_after_429(preset: StackBuilder, uri: &str) -> bool {
    let throttled = ScriptedResponse::status(429).with_header("retry-after", "600");
    let preset = preset.with_max_attempts(1);
    let (stack, _) = stack(&preset, [throttled]);
    assert_eq!(stack.oneshot(get(uri)).await.unwrap().status(), 429);
    limiter(&preset).snapshot().paused_until.is_some()
}

#[tokio::test(start_paused = true)]
async fn rate_limit_headers_apply_from_the_origin_of_the_base_url_unless_the_limit_layer_decides() {
    let preset = || StackBuilder::new("https://host/v1").unwrap().without_credential();
    let trusting = |trusted: &'static str| {
        preset().with_limit(|limit| limit.with_feedback_from(move |head| head.uri.host() == Some(trusted)))
    };
    for (preset, uri, pauses) in [
        (preset(), "https://host/v1", true),
        (preset(), "https://other/v1", false),
        (preset(), "/v1", true),
        (trusting("other"), "https://host/v1", false),
        (trusting("other"), "https://other/v1", true),
    ] {
        assert_eq!(pauses_after_429(preset, uri).await, pauses, "{uri}");
    }
}
