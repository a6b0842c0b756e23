//! Tests the limiter of a preset. The limiter may be shared between clients, replaced, custom, or keyed by tenant.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex},
};

use tower::limit::ConcurrencyLimitLayer;
use tower_outbound::{
    error::{Reason, Refusal},
    limit::{
        Acquire, AnyLimiter, Effect, Keyed, Limiter, LocalLimiter, Permit, PermitIssuer, PermitRequest,
        ResponseInfo,
    },
};

use super::*;

fn window_of(preset: &StackBuilder) -> LocalLimiter {
    LocalLimiter::sliding_window(preset.quotas().iter().copied())
}

/// Starts concurrent calls. Returns, for each request, the time from the start until the service received the request.
async fn departures(preset: &StackBuilder, calls: usize) -> Vec<Duration> {
    let (service, scripted) = stack(&preset.clone().with_total_timeout(HOUR), [ok()]);
    let start = Instant::now();
    let calls = (0..calls).map(|_| service.clone().oneshot(get("https://host/")));
    assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_ok));
    arrivals(&scripted, start)
}

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

#[tokio::test]
async fn each_new_preset_and_each_new_quota_gets_its_own_limiter() {
    let server = server().await;
    let preset = preset_with_key(&server.url()).with_quota(hourly_quota());
    let others = [
        preset_with_key(&server.url()).with_quota(hourly_quota()),
        preset.clone().with_quota(hourly_quota()),
    ];
    for preset in [preset].iter().chain(&others) {
        let client = preset.client().unwrap();
        assert_eq!(status(&client, "/").await.unwrap(), 200);
        assert_eq!(status(&client, "/").await.unwrap(), 200);
        assert!(status(&client, "/").await.unwrap_err().is_rate_limited());
    }
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn sliding_window_grants_the_complete_quota_without_delay() {
    let preset = preset_with_key("https://host");
    let quotas = preset.quotas().to_vec();
    let immediate = |times: &[Duration]| times.iter().filter(|time| time.is_zero()).count();
    assert_eq!(
        immediate(&departures(&preset, 101).await),
        10,
        "the default limiter immediately grants its burst of 10 permits"
    );

    let preset = preset.clone().with_limiter(window_of(&preset));
    let times = departures(&preset, 101).await;
    assert_eq!(immediate(&times), 100);
    assert!(
        times[100] >= MINUTE + SECOND,
        "permit 101 is granted after the window and the margin: {:?}",
        times[100]
    );
    assert_eq!(preset.quotas(), quotas);
}

#[tokio::test(start_paused = true)]
async fn presets_with_the_same_limiter_share_its_quota() {
    for shared in [
        AnyLimiter::new(LocalLimiter::sliding_window(Quota::new(3, HOUR).unwrap())),
        AnyLimiter::new(LocalLimiter::token_bucket(Quota::new(4, HOUR).unwrap().with_burst(3).unwrap())),
    ] {
        let rates = preset_with_key("https://rates").with_limiter(shared.clone());
        let mail = preset::email_delivery("https://mail").unwrap().with_api_key(key()).with_limiter(shared);
        let (rates, _) = stack(&rates, [ok()]);
        let (mail, _) = stack(&mail, [ok()]);
        for (service, granted) in
            [(&rates, true), (&mail, true), (&rates, true), (&mail, false), (&rates, false)]
        {
            let result = service.clone().oneshot(get("https://host/")).await;
            assert_eq!(result.map_err(|error| error.is_rate_limited()).err(), (!granted).then_some(true));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn new_limiter_replaces_the_limiter_of_an_earlier_quota() {
    let preset = preset_with_key("https://host").with_limit(|layer| layer.with_max_wait(Duration::ZERO));
    let window = LocalLimiter::sliding_window(Quota::new(1, HOUR).unwrap());
    let preset = preset.with_quota(hourly_quota()).with_limiter(window);
    assert!(preset.limiter().downcast_ref::<LocalLimiter>().is_some());
    assert_eq!(preset.quotas(), [hourly_quota()]);

    let (service, _) = stack(&preset.with_total_timeout(2 * HOUR), [ok()]);
    let start = Instant::now();
    service.clone().oneshot(get("https://host/")).await.unwrap();
    let error = service.oneshot(get("https://host/")).await.unwrap_err();
    assert!(error.is_rate_limited() && start.elapsed().is_zero(), "{error:?}");
}

#[test]
fn setting_a_quota_after_a_limiter_is_an_error() {
    let shared = LocalLimiter::token_bucket(hourly_quota());
    let preset = preset_with_key("https://host").with_limiter(shared.clone());
    let error = preset.clone().with_quota(Quota::per_minute(300).unwrap()).layer().unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid quota `300/60s`: expected a quota before with_limiter, or a limiter that has the quota"
    );
    assert!(preset.layer().is_ok(), "the first builder is still valid");
}

#[test]
fn preset_clone_with_another_credential_has_its_own_limiter() {
    let preset = preset_with_key("https://host").with_quota(hourly_quota());
    let available =
        |preset: &StackBuilder| preset.limiter().downcast_ref::<LocalLimiter>().unwrap().snapshot().available;
    let second = preset.clone().with_api_key(ApiKey::new("another").unwrap());
    let unkeyed = preset.clone().without_credential();
    let same = preset.clone().with_total_timeout(HOUR);
    preset.limiter().downcast_ref::<LocalLimiter>().unwrap().try_acquire().unwrap();
    assert_eq!([&preset, &same, &second, &unkeyed].map(available), [1, 1, 2, 2]);
    assert_eq!(second.quotas(), [hourly_quota()]);

    let shared = LocalLimiter::paced_window(hourly_quota());
    shared.try_acquire().unwrap();
    let preset = preset.with_limiter(shared).with_api_key(ApiKey::new("another").unwrap());
    assert_eq!(available(&preset), 1, "a limiter from `with_limiter` should be kept");
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

/// A custom limiter that records each call that it receives from the rate limit layer.
#[derive(Debug, Clone, Default)]
struct RecordingLimiter {
    calls: Arc<Mutex<Vec<LimiterCall>>>,
    refuses: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum LimiterCall {
    Acquire(u32),
    Completed(u32, Option<Duration>),
    IsExpired(Duration),
    Dropped(u32),
}

impl RecordingLimiter {
    fn record(&self, call: LimiterCall) {
        self.calls.lock().unwrap().push(call);
    }

    /// Returns the calls that were recorded since the previous `take`.
    fn take(&self) -> Vec<LimiterCall> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Limiter for RecordingLimiter {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.record(LimiterCall::Acquire(request.cost().get()));
        Acquire::ready(match self.refuses {
            true => Err(Refusal::new(Reason::Deadline, MINUTE)),
            false => Ok(Permit::new(request.cost()).with_issuer(Arc::new(self.clone()))),
        })
    }
}

impl PermitIssuer for RecordingLimiter {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.record(LimiterCall::IsExpired(permit.granted_at().elapsed()));
        false
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Effect {
        self.record(LimiterCall::Completed(permit.cost().get(), response.requested_pause()));
        Effect::default()
    }

    fn dropped(&self, permit: &Permit<'_>) {
        assert!(permit.sent_at().is_some());
        self.record(LimiterCall::Dropped(permit.cost().get()));
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_layer_reports_responses_and_dropped_requests_to_a_custom_limiter() {
    let limiter = RecordingLimiter::default();
    let two = NonZeroU32::new(2).unwrap();
    let preset = preset_with_exact_delays()
        .with_limiter(limiter.clone())
        .with_limit(|layer| layer.with_cost(move |_| two));
    assert!(format!("{preset:?}").contains("RecordingLimiter"), "{preset:?}");
    assert!(preset.limiter().downcast_ref::<RecordingLimiter>().is_some());

    let script = [throttled("7"), ScriptedResponse::never(), ok()];
    let (service, _) = stack(&preset, script);
    service.oneshot(get("https://host/")).await.unwrap();
    let (acquire, completed) = (LimiterCall::Acquire(2), |pause| LimiterCall::Completed(2, pause));
    assert_eq!(
        limiter.take(),
        [
            acquire.clone(),
            completed(Some(7 * SECOND)),
            acquire.clone(),
            LimiterCall::Dropped(2),
            acquire.clone(),
            completed(None),
        ]
    );

    // The service handles one call at a time. The second call keeps its permit while it waits for the service. The
    // layer then checks whether the permit has expired.
    let service = ServiceBuilder::new()
        .layer(preset.layer().unwrap())
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(|_: Request<ReplayBody<Empty<Bytes>>>| async {
            tokio::time::sleep(3 * SECOND).await;
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
    let calls = [service.clone().oneshot(get("https://host/")), service.oneshot(get("https://host/"))];
    assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_ok));
    let expired = LimiterCall::IsExpired(3 * SECOND);
    assert_eq!(limiter.take(), [acquire.clone(), acquire, completed(None), expired, completed(None)]);
}

#[tokio::test(start_paused = true)]
async fn call_fails_if_a_custom_limiter_refuses_the_permit() {
    let preset = preset_with_exact_delays()
        .with_limiter(RecordingLimiter { refuses: true, ..RecordingLimiter::default() });
    let (service, scripted) = stack(&preset, [ok()]);
    let error = service.oneshot(get("https://host/")).await.unwrap_err();
    assert!(error.is_rate_limited(), "{error:?}");
    assert_eq!(error.retry_after(), Some(MINUTE));
    assert_eq!(scripted.calls(), 0);
}

/// Shows that a struct can have fields of the types of keyed limiters.
struct TenantLimiters {
    buckets: Keyed<String>,
    windows: Keyed<String>,
}

impl TenantLimiters {
    /// Creates keyed limiters that use the host of a request as the tenant.
    fn new() -> Self {
        let quota = hourly_quota();
        Self {
            buckets: Keyed::new(
                |head| head.uri.host().unwrap_or_default().to_owned(),
                move |_tenant| LocalLimiter::token_bucket(quota),
            ),
            windows: Keyed::new(
                |head| head.uri.host().unwrap_or_default().to_owned(),
                move |_tenant| LocalLimiter::sliding_window(quota),
            ),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_gives_each_tenant_its_own_quota() {
    let tenants = TenantLimiters::new();
    let presets = [preset_with_key("https://a"), preset_with_key("https://a")];
    let [preset, other] =
        presets.map(|preset| preset.with_limit(|layer| layer.with_max_wait(Duration::ZERO)));
    for (preset, granted) in
        [(preset.with_limiter(tenants.buckets.clone()), 2), (other.with_limiter(tenants.windows.clone()), 3)]
    {
        let (service, scripted) = stack(&preset, [ok()]);
        for tenant in ["https://a/", "https://b/"] {
            for _ in 0..granted {
                service.clone().oneshot(get(tenant)).await.unwrap();
            }
            let error = service.clone().oneshot(get(tenant)).await.unwrap_err();
            assert!(error.is_rate_limited(), "{error:?}");
        }
        assert_eq!(scripted.calls(), 2 * granted);
    }
    assert_eq!(tenants.buckets.limiter(&"b".to_owned()).unwrap().snapshot().granted, 2);
    assert_eq!(tenants.windows.limiter(&"b".to_owned()).unwrap().snapshot().granted, 3);
}

#[tokio::test(start_paused = true)]
async fn retry_after_header_pauses_only_the_tenant_of_the_request() {
    let tenants = TenantLimiters::new();
    let preset = preset_with_exact_delays().with_limiter(tenants.buckets.clone()).with_plaintext();
    let keyed = preset.limiter().downcast_ref::<Keyed<String>>().unwrap();
    assert!(preset.limiter().downcast_ref::<LocalLimiter>().is_none());
    let (service, _) = stack(&preset, [throttled("7"), ok()]);
    let start = Instant::now();
    service.clone().oneshot(get("https://host/")).await.unwrap();
    assert_eq!(start.elapsed(), 7 * SECOND);
    let granted = |tenant: &str| keyed.limiter(&tenant.to_owned()).unwrap().snapshot().granted;
    assert_eq!((granted("host"), granted("other")), (2, 0));
    service.oneshot(get("https://other/")).await.unwrap();
    assert_eq!((start.elapsed(), granted("other")), (7 * SECOND, 1));
}

#[test]
fn downcast_finds_a_wrapped_keyed_limiter() {
    let bucket = LocalLimiter::token_bucket(hourly_quota());
    for erased in [AnyLimiter::new(bucket.clone()), AnyLimiter::new(AnyLimiter::new(bucket.clone()))] {
        assert_eq!(erased.downcast_ref::<LocalLimiter>().unwrap().snapshot().available, 2);
        assert_eq!(format!("{erased:?}"), format!("{:?}", AnyLimiter::new(bucket.clone())));
    }
    let keyed = AnyLimiter::new(AnyLimiter::new(TenantLimiters::new().buckets));
    assert!(keyed.downcast_ref::<Keyed<String>>().is_some());
    assert!(keyed.downcast_ref::<LocalLimiter>().is_none());
    assert!(format!("{keyed:?}").contains("Keyed"), "{keyed:?}");
}

#[test]
fn preset_keeps_a_limiter_from_with_limit_and_rejects_a_later_quota() {
    let shared = LocalLimiter::paced_window(hourly_quota());
    shared.try_acquire().unwrap();
    let preset = preset_with_key("https://host")
        .with_limit(|limit| limit.with_limiter(AnyLimiter::new(shared)).with_max_queue(3))
        .with_api_key(ApiKey::new("another").unwrap());
    let window = preset.limiter().downcast_ref::<LocalLimiter>().unwrap();
    assert_eq!(window.snapshot().available, 1);
    let error = preset.with_quota(hourly_quota()).layer().unwrap_err();
    assert!(error.to_string().contains("a quota before with_limiter"), "{error}");
}

#[cfg(feature = "serde")]
#[test]
fn with_quota_keeps_the_initial_burst_of_the_configuration() {
    let config =
        "preset = 'currency_rates'\nbase_url = 'https://host'\napi_key = 'k3y'\nlimit.initial_burst = 0";
    let preset =
        StackBuilder::from_config(&toml::from_str(config).unwrap()).unwrap().with_quota(hourly_quota());
    assert_eq!(preset.limiter().downcast_ref::<LocalLimiter>().unwrap().snapshot().available, 0);
}
