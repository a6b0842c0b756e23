//! Presets with another limiter.

use std::num::NonZeroU32;

use tower::limit::ConcurrencyLimitLayer;
use tower_outbound::{
    error::{Reason, Refusal},
    limit::{
        Acquire, AnyLimiter, KeyedBucket, KeyedWindow, Limiter, Permit, PermitIssuer, PermitRequest,
        ResponseInfo, SlidingWindow, TokenBucket,
    },
};

use super::*;

fn window(preset: &StackBuilder) -> SlidingWindow {
    SlidingWindow::all_of(preset.quotas().iter().copied())
}

/// Returns the times at which concurrent calls leave.
async fn times_of(preset: &StackBuilder, calls: usize) -> Vec<Duration> {
    let (service, times) = stack(&preset.clone().with_total_timeout(HOUR), [Does::Answers(200)]);
    let start = Instant::now();
    let calls = (0..calls).map(|_| service.clone().oneshot(to("https://host/")));
    assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_ok));
    since(start, &times)
}

#[tokio::test(start_paused = true)]
async fn a_sliding_window_grants_exactly_the_quota_at_once() {
    let preset = keyed("https://host");
    let known = preset.quotas().to_vec();
    let left_at_once = |times: &[Duration]| times.iter().filter(|time| time.is_zero()).count();
    assert_eq!(left_at_once(&times_of(&preset, 101).await), 10, "the burst of its own bucket");

    let preset = preset.clone().with_limiter(window(&preset));
    let times = times_of(&preset, 101).await;
    assert_eq!(left_at_once(&times), 100);
    assert!(times[100] >= MINUTE + SECOND, "the window and the margin: {:?}", times[100]);
    assert_eq!(preset.quotas(), known);
}

#[tokio::test(start_paused = true)]
async fn clients_with_one_sliding_window_share_its_quota() {
    for shared in [
        AnyLimiter::new(SlidingWindow::new(Quota::new(3, HOUR).unwrap())),
        AnyLimiter::new(TokenBucket::new(Quota::new(4, HOUR).unwrap().with_burst(3).unwrap())),
    ] {
        let rates = keyed("https://rates").with_limiter(shared.clone());
        let mail = preset::email_delivery("https://mail").unwrap().with_api_key(key()).with_limiter(shared);
        let (rates, _) = stack(&rates, [Does::Answers(200)]);
        let (mail, _) = stack(&mail, [Does::Answers(200)]);
        for (service, granted) in
            [(&rates, true), (&mail, true), (&rates, true), (&mail, false), (&rates, false)]
        {
            let answer = service.clone().oneshot(to("https://host/")).await;
            assert_eq!(answer.map_err(|error| error.is_rate_limited()).err(), (!granted).then_some(true));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_later_of_quotas_and_limiter_holds_and_the_bounds_stay() {
    let shed = keyed("https://host").with_limit(|layer| layer.with_max_wait(Duration::ZERO));
    let one = |hour| SlidingWindow::new(Quota::new(1, hour).unwrap());
    let limited = shed.clone().with_quota(two_an_hour()).with_limiter(one(HOUR));
    assert!(limited.limiter().downcast_ref::<SlidingWindow>().is_some());
    assert_eq!(limited.quotas(), [two_an_hour()]);
    let counted = shed.with_limiter(one(HOUR)).with_quota(two_an_hour());
    assert_eq!(counted.limiter().downcast_ref::<TokenBucket>().unwrap().snapshot().available, 2);

    for (preset, granted) in [(limited, 1), (counted, 2)] {
        let (service, _) = stack(&preset.with_total_timeout(2 * HOUR), [Does::Answers(200)]);
        let start = Instant::now();
        for _ in 0..granted {
            service.clone().oneshot(to("https://host/")).await.unwrap();
        }
        let error = service.oneshot(to("https://host/")).await.unwrap_err();
        assert!(error.is_rate_limited() && start.elapsed().is_zero(), "{error:?}");
    }
}

#[test]
fn erasing_the_type_of_a_limiter_twice_keeps_its_identity() {
    let bucket = TokenBucket::new(two_an_hour());
    let direct = format!("{:?}", AnyLimiter::new(bucket.clone()));
    assert!(direct.contains("available: 2"), "{direct}");
    let twice = AnyLimiter::new(AnyLimiter::new(bucket.clone()));
    assert_eq!(format!("{twice:?}"), direct);
    bucket.try_acquire().unwrap();
    assert_eq!(twice.downcast_ref::<TokenBucket>().unwrap().snapshot().available, 1);
    assert!(twice.downcast_ref::<SlidingWindow>().is_none());
}

// A custom limiter that records its calls.

#[derive(Debug, Clone, Default)]
struct Own {
    told: Arc<Mutex<Vec<Told>>>,
    full: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Told {
    Acquire(u32),
    Completed(u32, Option<Duration>),
    IsExpired(Duration),
    Dropped(u32),
}

impl Own {
    fn write(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }

    fn read(&self) -> Vec<Told> {
        std::mem::take(&mut self.told.lock().unwrap())
    }
}

impl Limiter for Own {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.write(Told::Acquire(request.cost().get()));
        Acquire::ready(match self.full {
            true => Err(Refusal::new(Reason::Deadline, MINUTE)),
            false => Ok(Permit::new(request.cost()).with_issuer(Arc::new(self.clone()))),
        })
    }
}

impl PermitIssuer for Own {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.write(Told::IsExpired(permit.granted_at().elapsed()));
        false
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) {
        self.write(Told::Completed(permit.cost().get(), response.requested_pause()));
    }

    fn dropped(&self, permit: &Permit<'_>) {
        assert!(permit.sent_at().is_some());
        self.write(Told::Dropped(permit.cost().get()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_custom_limiter_receives_requests_responses_and_drops() {
    let own = Own::default();
    let two = NonZeroU32::new(2).unwrap();
    let preset = exact().with_limiter(own.clone()).with_limit(|layer| layer.with_cost(move |_| two));
    assert!(format!("{preset:?}").contains("Own"), "{preset:?}");
    assert!(preset.limiter().downcast_ref::<Own>().is_some());

    let script = [Does::AsksFor { seconds: 7 }, Does::Hangs, Does::Answers(200)];
    let (service, _) = stack(&preset, script);
    service.oneshot(to("https://host/")).await.unwrap();
    let (asked, completed) = (Told::Acquire(2), |pause| Told::Completed(2, pause));
    assert_eq!(
        own.read(),
        [
            asked.clone(),
            completed(Some(7 * SECOND)),
            asked.clone(),
            Told::Dropped(2),
            asked.clone(),
            completed(None),
        ]
    );

    // Two calls to a service with room for one. The limiter decides whether the second permit has expired.
    let service = ServiceBuilder::new()
        .layer(preset.layer().unwrap())
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(|_: Request<ReplayBody<Empty<Bytes>>>| async {
            tokio::time::sleep(3 * SECOND).await;
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
    let calls = [service.clone().oneshot(to("https://host/")), service.oneshot(to("https://host/"))];
    assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_ok));
    let expired = Told::IsExpired(3 * SECOND);
    assert_eq!(own.read(), [asked.clone(), asked, completed(None), expired, completed(None)]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_custom_limiter_fails_the_call() {
    let preset = exact().with_limiter(Own { full: true, ..Own::default() });
    let (service, times) = stack(&preset, [Does::Answers(200)]);
    let error = service.oneshot(to("https://host/")).await.unwrap_err();
    assert!(error.is_rate_limited(), "{error:?}");
    assert_eq!(error.retry_after(), Some(MINUTE));
    assert!(times.lock().unwrap().is_empty());
}

/// Names the limiters of many tenants in the fields of a struct.
struct Tenants {
    buckets: KeyedBucket<String>,
    windows: KeyedWindow<String>,
}

impl Tenants {
    /// Uses the host of a request as its tenant.
    fn new() -> Self {
        let quota = two_an_hour();
        Self {
            buckets: KeyedBucket::new(
                |head| head.uri.host().unwrap_or_default().to_owned(),
                move |_tenant| TokenBucket::new(quota),
            ),
            windows: KeyedWindow::new(
                |head| head.uri.host().unwrap_or_default().to_owned(),
                move |_tenant| SlidingWindow::new(quota),
            ),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_tenant_has_its_own_quota_behind_one_preset() {
    let tenants = Tenants::new();
    let presets = [keyed("https://a"), keyed("https://a")];
    let [preset, other] =
        presets.map(|preset| preset.with_limit(|layer| layer.with_max_wait(Duration::ZERO)));
    for (preset, granted) in
        [(preset.with_limiter(tenants.buckets.clone()), 2), (other.with_limiter(tenants.windows.clone()), 3)]
    {
        let (service, times) = stack(&preset, [Does::Answers(200)]);
        for tenant in ["https://a/", "https://b/"] {
            for _ in 0..granted {
                service.clone().oneshot(to(tenant)).await.unwrap();
            }
            let error = service.clone().oneshot(to(tenant)).await.unwrap_err();
            assert!(error.is_rate_limited(), "{error:?}");
        }
        assert_eq!(times.lock().unwrap().len(), 2 * granted);
    }
    assert_eq!(tenants.buckets.limiter(&"b".to_owned()).unwrap().snapshot().granted, 2);
    assert_eq!(tenants.windows.limiter(&"b".to_owned()).unwrap().snapshot().granted, 3);
}

#[tokio::test(start_paused = true)]
async fn retry_after_pauses_one_tenant_of_a_preset() {
    let tenants = Tenants::new();
    let preset = exact().with_limiter(tenants.buckets.clone()).with_plaintext();
    let found = preset.limiter().downcast_ref::<KeyedBucket<String>>().unwrap();
    assert!(preset.limiter().downcast_ref::<TokenBucket>().is_none());
    let (service, _) = stack(&preset, [Does::AsksFor { seconds: 7 }, Does::Answers(200)]);
    let start = Instant::now();
    service.clone().oneshot(to("https://host/")).await.unwrap();
    assert_eq!(start.elapsed(), 7 * SECOND);
    let paused = |tenant: &str| found.limiter(&tenant.to_owned()).unwrap().snapshot().granted;
    assert_eq!((paused("host"), paused("other")), (2, 0));
    service.oneshot(to("https://other/")).await.unwrap();
    assert_eq!((start.elapsed(), paused("other")), (7 * SECOND, 1));
}

#[test]
fn an_erased_selector_can_be_downcast() {
    let bucket = TokenBucket::new(two_an_hour());
    for erased in [AnyLimiter::new(bucket.clone()), AnyLimiter::new(AnyLimiter::new(bucket.clone()))] {
        assert_eq!(erased.downcast_ref::<TokenBucket>().unwrap().snapshot().available, 2);
        assert_eq!(format!("{erased:?}"), format!("{:?}", AnyLimiter::new(bucket.clone())));
    }
    let keyed = AnyLimiter::new(AnyLimiter::new(Tenants::new().buckets));
    assert!(keyed.downcast_ref::<KeyedBucket<String>>().is_some());
    assert!(keyed.downcast_ref::<KeyedWindow<String>>().is_none());
    assert!(format!("{keyed:?}").contains("Keyed"), "{keyed:?}");
}
