//! Tests the change of a client's settings at run time.

use std::{
    future::Future,
    num::NonZeroU32,
    pin::pin,
    sync::mpsc,
    task::{Wake, Waker},
};

use proptest::{collection::vec, prelude::*};
use tokio::{runtime::Handle, task::JoinHandle};
use tower::limit::ConcurrencyLimitLayer;
use tower_outbound::{limit::Snapshot, request_id::RequestIdLayer, test_util::LimitHeaders};

use super::{support::cases::cases, *};

const URL: &str = "https://api.example.com/v1";
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn builder(key: &str) -> StackBuilder {
    StackBuilder::new(URL)
        .unwrap()
        .with_api_key(ApiKey::new(key).unwrap())
        .with_retry(quick_retry())
        .with_total_timeout(24 * HOUR)
}

/// Returns a quota without a margin and with the largest burst, which is one less than the limit.
fn quota(limit: u32, window: Duration) -> Quota {
    Quota::new(limit, window).unwrap().with_burst(limit - 1).unwrap().without_margin()
}

fn ok() -> ScriptedService {
    ScriptedService::new([200])
}

/// Adds a layer above the stack with room for this many calls.
fn outer(builder: StackBuilder, calls: usize) -> StackBuilder {
    builder.with_outer_layer(GlobalConcurrencyLimitLayer::new(calls))
}

fn local(builder: &StackBuilder) -> &LocalLimiter {
    builder.limiter().downcast_ref().unwrap()
}

fn snapshot(builder: &StackBuilder) -> Snapshot {
    local(builder).snapshot()
}

fn keys(service: &ScriptedService) -> Vec<String> {
    let key = |seen: &Seen| seen.header("authorization").unwrap().replace("Bearer ", "");
    service.seen().iter().map(key).collect()
}

fn paths(service: &ScriptedService) -> Vec<String> {
    service.seen().iter().map(|seen| seen.head.uri.path().to_owned()).collect()
}

/// Starts calls of the paths `/0`, `/1` and so on, each after the previous one is queued or sent.
async fn start(client: &Client, calls: u32) -> JoinSet<StatusCode> {
    let mut started = JoinSet::new();
    for number in 0..calls {
        let call = client.get(format!("/{number}")).send();
        started.spawn(async move { call.await.unwrap().status() });
        settle().await;
    }
    started
}

#[tokio::test(start_paused = true)]
async fn calls_that_start_afterwards_use_the_new_settings_in_every_clone() {
    let service = ScriptedService::new([ScriptedResponse::status(503).with_delay(2 * SECOND)]);
    let old = builder("old").with_max_attempts(1).with_header("x-version", "1");
    let client = old.client_with_service(service.clone()).unwrap();
    let clone = client.clone();
    clone.get("/").await.unwrap();

    let id = RequestIdLayer::new().with_header(HeaderName::from_static("x-id"));
    let new = builder("new").with_header("x-version", "2").with_name("renamed").with_request_id(id);
    client.reconfigure(&new.with_key_placement("header:x-api-key".parse().unwrap())).unwrap();
    clone.get("/").await.unwrap();
    let seen = service.seen();
    assert_eq!(seen.len(), 4, "one attempt, then three attempts");
    for (number, seen) in seen.iter().enumerate() {
        let headers = ["authorization", "x-api-key", "x-version"].map(|name| seen.header(name));
        match number {
            0 => assert_eq!(headers, [Some("Bearer old"), None, Some("1")]),
            _ => assert_eq!(headers, [None, Some("new"), Some("2")]),
        }
        assert_eq!(seen.header("x-id").is_some(), number > 0);
    }

    client.reconfigure(&builder("new").with_total_timeout(SECOND)).unwrap();
    let start = Instant::now();
    assert!(clone.get("/").await.unwrap_err().is_timeout());
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn call_in_progress_keeps_its_settings_for_its_attempts_and_its_timeouts() {
    let service = ScriptedService::new(
        [503, 503, 200].map(|status| ScriptedResponse::status(status).with_delay(2 * SECOND)),
    );
    let client = builder("old").client_with_service(service.clone()).unwrap();
    let mut calls = start(&client, 1).await;
    let new = builder("new").with_max_attempts(1).with_total_timeout(SECOND);
    client.reconfigure(&new).unwrap();
    assert_eq!(calls.join_next().await.unwrap().unwrap(), 200);
    assert_eq!(keys(&service), ["old"; 3]);
}

#[tokio::test(start_paused = true)]
async fn retry_after_a_broken_body_keeps_the_settings_of_the_call() {
    let stalled = ScriptedResponse::status(200).with_body("a part").with_body_stalled();
    let service = ScriptedService::new([stalled, ScriptedResponse::status(200).with_body("whole")]);
    let client = builder("old").with_body_idle_timeout(SECOND).client_with_service(service.clone()).unwrap();
    let response = client.get("/").await.unwrap();
    client.reconfigure(&builder("new").with_max_attempts(1)).unwrap();
    assert_eq!(text(response).await, "whole");
    assert_eq!(keys(&service), ["old"; 2]);
}

#[cfg(feature = "json")]
#[tokio::test(start_paused = true)]
async fn json_calls_use_the_accept_header_of_the_current_settings() {
    let service = ScriptedService::new([ScriptedResponse::status(200).with_body("1")]);
    let csv = builder("key").with_header("accept", "text/csv");
    let client = csv.client_with_service(service.clone()).unwrap();
    for (builder, accept) in [(&csv, "text/csv"), (&builder("key"), "application/json")] {
        client.reconfigure(builder).unwrap();
        client.get("/").fetch_json::<u32>().await.unwrap();
        assert_eq!(service.seen().pop().unwrap().header("accept"), Some(accept));
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_keep_their_order_and_leave_at_the_rate_of_the_new_quota() {
    let service = ok();
    let old = builder("old").with_quota(Quota::new(2, HOUR).unwrap().with_burst(1).unwrap());
    let client = old.client_with_service(service.clone()).unwrap();
    let calls = start(&client, 8).await;
    assert_eq!((service.calls(), snapshot(&old).queued), (1, 7));

    let begin = Instant::now();
    client.reconfigure(&builder("new").with_quota(quota(60, MINUTE).with_burst(1).unwrap())).unwrap();
    assert_eq!(snapshot(&old).queued, 7);
    let late = client.get("/late").send();
    let late = tokio::spawn(async move { late.await.unwrap().status() });
    calls.join_all().await;
    assert_eq!(late.await.unwrap(), 200);
    assert!((7 * SECOND..10 * SECOND).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    let expected: Vec<_> = (0..8).map(|number| format!("/v1/{number}")).chain(["/v1/late".into()]).collect();
    assert_eq!(paths(&service), expected);
    assert_eq!(keys(&service)[..8], ["old"; 8]);
}

#[tokio::test(start_paused = true)]
async fn client_without_a_quota_gets_one_without_a_second_burst() {
    let (service, quota) = (ok(), quota(10, MINUTE));
    let old = builder("key");
    let client = old.client_with_service(service.clone()).unwrap();
    start(&client, 20).await.join_all().await;
    let change = Instant::now();
    client.reconfigure(&builder("key").with_quota(quota)).unwrap();
    assert_eq!(snapshot(&old).available, 0);
    start(&client, 25).await.join_all().await;
    let times: Vec<_> = service.arrivals().times().split_off(20);
    assert!((5 * SECOND..=6 * SECOND).contains(&(times[0] - change)), "{:?}", times[0] - change);
    times.into_iter().collect::<Arrivals>().assert_within(quota);
}

#[tokio::test(start_paused = true)]
async fn learned_rate_and_pause_stay_when_a_client_gets_a_quota() {
    let limit = ServerLimit::sliding_window(20, SECOND).with_headers(LimitHeaders::GitHub);
    let server = limit.clone();
    let service = ScriptedService::from_fn(move |seen| match seen.head.uri.path() {
        "/v1/pause" => ScriptedResponse::status(429).with_header("retry-after", "30"),
        _ => server.respond(),
    });
    let old = builder("key").with_max_attempts(1);
    let client = old.client_with_service(service).unwrap();
    start(&client, 40).await.join_all().await;
    client.get("/pause").await.unwrap();
    let before = snapshot(&old);
    let (learned, paused) = (before.learned.unwrap().rate(), before.paused_until.unwrap());
    assert!(learned < 30.0 && paused > Instant::now() + 29 * SECOND, "{before:?}");

    client.reconfigure(&builder("key").with_quota(quota(1_000, SECOND))).unwrap();
    assert_eq!(snapshot(&old).learned.unwrap().rate(), learned);
    assert_eq!(snapshot(&old).paused_until, Some(paused));
    client.reconfigure(&builder("key").with_quota(quota(2, SECOND))).unwrap();
    assert!(snapshot(&old).learned.unwrap().rate() <= 2.0, "the quota is the ceiling");
}

#[tokio::test(start_paused = true)]
async fn limit_of_requests_in_flight_and_pauses_change() {
    let slow = ScriptedService::new([ScriptedResponse::status(200).with_delay(SECOND)]);
    let old = builder("key").with_max_in_flight(1);
    let client = old.client_with_service(slow.clone()).unwrap();
    let calls = start(&client, 4).await;
    assert_eq!((slow.calls(), snapshot(&old).queued), (1, 3));
    client.reconfigure(&builder("key").with_max_in_flight(3)).unwrap();
    settle().await;
    assert_eq!((slow.calls(), snapshot(&old).queued), (3, 1));
    calls.join_all().await;

    let throttled = ScriptedService::new([429]);
    let old = builder("key").with_quota(quota(10, SECOND)).with_max_attempts(1);
    let client = old.client_with_service(throttled).unwrap();
    client.reconfigure(&old.clone().with_throttle_pause(MINUTE)).unwrap();
    client.get("/").await.unwrap();
    assert_eq!(snapshot(&old).paused_until, Some(Instant::now() + MINUTE));
}

#[tokio::test]
async fn connections_and_the_default_user_agent_stay() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    // With one connection, a call waits until the connection is idle again.
    let transport = TransportConfig::new().with_max_connections(1);
    let client = preset(&server.url()).client_with_transport(transport).unwrap();
    for key in ["first", "second", "third"] {
        client.reconfigure(&preset(&server.url()).with_api_key(ApiKey::new(key).unwrap())).unwrap();
        assert_eq!(within(status(client.get("/"))).await, 200);
    }
    assert_eq!(server.connections(), 1);
    let sent =
        |name| server.seen().iter().map(|seen| seen.header(name).unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(sent("authorization"), ["Bearer first", "Bearer second", "Bearer third"]);
    assert_eq!(sent("user-agent"), [StackBuilder::DEFAULT_USER_AGENT; 3]);
}

#[tokio::test(start_paused = true)]
async fn client_returns_the_limiter_that_it_keeps() {
    let client = builder("old").with_quota(quota(9, HOUR)).client_with_service(ok()).unwrap();
    let new = builder("new").with_quota(quota(10, HOUR));
    client.reconfigure(&new).unwrap();
    client.clone().get("/").await.unwrap();
    let limiter = client.limiter();
    let local: &LocalLimiter = limiter.downcast_ref().unwrap();
    assert_eq!((local.snapshot().granted, snapshot(&new).granted), (1, 0));

    let start = Instant::now();
    local.pause_until(start + 5 * SECOND);
    client.get("/").await.unwrap();
    assert_eq!(start.elapsed(), 5 * SECOND);
}

fn keyed() -> Keyed<bool> {
    Keyed::new(|_| true, |_| LocalLimiter::without_quota())
}

fn pool(limiter: LocalLimiter) -> Pool {
    Pool::new([(URL, ApiKey::new("member").unwrap(), limiter)]).unwrap()
}

#[tokio::test(start_paused = true)]
async fn impossible_changes_are_rejected_and_keep_all_settings() {
    let old = || builder("old").with_quota(quota(10, MINUTE));
    let new = || builder("new").with_quota(quota(3, MINUTE));
    let other = || LocalLimiter::without_quota();
    let limited = |builder: StackBuilder| builder.with_limiter(other());
    let layered = |builder: StackBuilder| builder.with_transport_layer(ConcurrencyLimitLayer::new(1));
    let pooled = || StackBuilder::new(URL).unwrap().with_pool(pool(other()));
    let moved = StackBuilder::new("https://api.example.com/v2").unwrap().without_credential();
    let limiter = "limiter `another limiter`: expected the client's limiter: a clone";
    for (number, (old, new, expected)) in [
        (old(), moved, "base url `https://api.example.com/v2`: expected https://api.example.com/v1, that of"),
        (old(), pooled(), "pool `another pool`: expected a clone of the client's pool"),
        (pooled(), new(), "pool `another pool`: expected"),
        (old(), limited(new()), limiter),
        (limited(builder("old")), new(), limiter),
        (limited(builder("old")), limited(new()), limiter),
        (old(), new().with_endpoint_limits(keyed()), "endpoint limits `other limits`: expected a clone of"),
        (
            old(),
            new().with_max_in_flight(4),
            "max in flight `4`: expected none, because the limit cannot be added or removed at run time",
        ),
        (builder("old").with_max_in_flight(4), new(), "max in flight `none`: expected a number, because"),
        (old(), layered(new()), "transport layers `1 layers`: expected 0 layers, those of the client"),
        (layered(builder("old")), new(), "transport layers `0 layers`: expected 1 layers"),
        (old(), outer(new(), 1), "outer layers `1 layers`: expected 0 layers, those of the client"),
        (outer(builder("old"), 1), new(), "outer layers `0 layers`: expected 1 layers"),
        (old(), new().with_total_timeout(Duration::ZERO), "total timeout `0ns`: expected"),
        (old(), new().with_attempt_timeout(25 * HOUR), "attempt timeout `90000s`: expected at most 86400s"),
        (old(), new().with_api_key_env("NO_SUCH_KEY"), "api key `in environment variable NO_SUCH_KEY"),
        (old(), new().with_max_in_flight(0), "max in flight `0`: expected at least 1"),
        (old(), new().with_header("authorization", "x"), "header `authorization`: expected"),
    ]
    .into_iter()
    .enumerate()
    {
        let service = ok();
        let client = old.client_with_service(service.clone()).unwrap();
        let state = || old.limiter().downcast_ref().map(LocalLimiter::snapshot);
        let before = state();
        let error = client.reconfigure(&new).unwrap_err().to_string();
        let is_expected = error.strip_prefix("invalid ").is_some_and(|error| error.starts_with(expected));
        assert!(is_expected && state() == before, "case {number}: {error}");
        client.get("/").await.unwrap();
        assert!(["old", "member"].contains(&&*keys(&service)[0]), "case {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_that_waits_in_an_outer_layer_keeps_its_settings_and_the_layer_stays() {
    let service = ScriptedService::new([ScriptedResponse::status(200).with_delay(SECOND)]);
    let client = outer(builder("old"), 1).client_with_service(service.clone()).unwrap();
    let calls = start(&client, 2).await;
    client.reconfigure(&outer(builder("new"), 9)).unwrap();
    settle().await;
    assert_eq!(service.calls(), 1, "the layer of the client still has room for one call");
    calls.join_all().await;
    client.get("/").await.unwrap();
    assert_eq!(keys(&service), ["old", "old", "new"]);
}

#[tokio::test(start_paused = true)]
async fn same_custom_limiter_pool_endpoint_limits_and_transport_layers_are_accepted() {
    let (own, endpoints) = (LocalLimiter::paced_window(quota(3, HOUR)), keyed());
    let (any, pool) = (AnyLimiter::new(keyed()), pool(own.clone()));
    let with = |key: &str, number: usize| {
        let builder = match number {
            0 => builder(key).with_limiter(own.clone()),
            1 => builder(key).with_limiter(any.clone()),
            2 => builder(key).with_endpoint_limits(endpoints.clone()),
            3 => builder(key).with_transport_layer(ConcurrencyLimitLayer::new(1)),
            _ => StackBuilder::new(URL).unwrap().with_pool(pool.clone()),
        };
        builder.with_header("x-key", key)
    };
    for number in 0..5 {
        let service = ok();
        let client = with("old", number).client_with_service(service.clone()).unwrap();
        client.reconfigure(&with("new", number)).unwrap();
        client.get("/").await.unwrap();
        assert_eq!(service.seen()[0].header("x-key"), Some("new"), "case {number}");
    }
    assert_eq!(own.snapshot().granted, 2, "the limiters of the first and of the last case");
}

/// A waker that starts another change while the first one wakes a waiter.
struct ChangeOnWake {
    client: Client,
    other: StackBuilder,
    runtime: Handle,
    change: Mutex<Option<JoinHandle<()>>>,
}

impl Wake for ChangeOnWake {
    fn wake(self: Arc<Self>) {
        let mut change = self.change.lock().unwrap();
        if change.is_some() {
            return;
        }
        let (ended, end) = mpsc::channel();
        let this = Arc::clone(&self);
        *change = Some(self.runtime.spawn_blocking(move || {
            this.client.reconfigure(&this.other).unwrap();
            let _ = ended.send(());
        }));
        // The other change must not overtake this one.
        assert!(end.recv_timeout(Duration::from_millis(50)).is_err(), "the other change has ended");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_changes_apply_completely_one_after_the_other() {
    let service = ScriptedService::new([ScriptedResponse::status(200).with_delay(SECOND)]);
    let with = |key: &str, limit, in_flight| {
        builder(key).with_quota(quota(limit, HOUR)).with_max_in_flight(in_flight)
    };
    let client = with("old", 50, 1).client_with_service(service.clone()).unwrap();
    let calls = start(&client, 1).await;
    let mut waiter = pin!(client.get("/").send());
    let waker = Arc::new(ChangeOnWake {
        client: client.clone(),
        other: with("second", 200, 3),
        runtime: Handle::current(),
        change: Mutex::default(),
    });
    let polled = waiter.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&waker))));
    assert!(polled.is_pending());

    client.reconfigure(&with("first", 100, 2)).unwrap();
    let other = waker.change.lock().unwrap().take().expect("the first change wakes the waiter");
    other.await.unwrap();
    waiter.await.unwrap();
    calls.join_all().await;
    client.get("/").await.unwrap();
    assert_eq!(keys(&service), ["old", "old", "second"]);
    // The error contains the burst of the quota.
    let error = client.get("/").cost(1_000).await.unwrap_err();
    assert!(chain(&error).contains("at most 199 can be granted"), "{}", chain(&error));
}

/// A step of a random script: requests, a time to wait, or another quota. A quota of 0 is none.
#[derive(Debug, Clone)]
enum Step {
    Call(u32, u32),
    Wait(u64),
    Quota(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..6_u32, 1..3_u32).prop_map(|(calls, cost)| Step::Call(calls, cost)),
        (0..15_000_u64).prop_map(Step::Wait),
        (1..12_u32, 1..12_u32)
            .prop_map(|(limit, burst)| Step::Quota(if limit == 1 { 0 } else { limit }, burst)),
    ]
}

proptest! {
    #![proptest_config(cases(50))]

    /// When a request leaves, the window that ends then has at most as many permits as the current quota allows.
    /// Permits count from the last time at which there was no quota.
    #[test]
    fn no_window_exceeds_the_current_quota_after_random_changes(steps in vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            const WINDOW: Duration = Duration::from_secs(10);
            let limited = |limit: u32, burst: u32| match limit {
                0 => builder("key"),
                _ => {
                    let quota = Quota::new(limit, WINDOW).unwrap().with_burst(burst.min(limit - 1)).unwrap();
                    builder("key").with_quota(quota.without_margin())
                }
            };
            // The current limit, and the permits since it applies: their times and their numbers.
            let current = Arc::new(Mutex::new((5_u32, Vec::<(Instant, u32)>::new())));
            let record = Arc::clone(&current);
            let service = ScriptedService::from_fn(move |seen| {
                let (limit, granted) = &mut *record.lock().unwrap();
                let now = Instant::now();
                granted.push((now, seen.head.extensions.get::<NonZeroU32>().unwrap().get()));
                let recent = granted.iter().filter(|(at, _)| now - *at <= WINDOW).map(|(_, cost)| cost);
                assert!(*limit == 0 || recent.sum::<u32>() <= *limit, "limit {limit}: {granted:?}");
                200.into()
            });
            let client = limited(5, 4).client_with_service(service).unwrap();
            let mut calls = JoinSet::new();
            for step in steps {
                match step {
                    Step::Call(number, cost) => for _ in 0..number {
                        let cost = NonZeroU32::new(cost).unwrap();
                        calls.spawn(client.get("/").cost(cost.get()).extension(cost).send());
                    },
                    Step::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
                    Step::Quota(limit, burst) => {
                        settle().await;
                        let (known, granted) = &mut *current.lock().unwrap();
                        if *known == 0 {
                            granted.clear();
                        }
                        *known = limit;
                        client.reconfigure(&limited(limit, burst)).unwrap();
                    }
                }
                settle().await;
            }
            let refused = calls.join_all().await.into_iter().filter_map(Result::err);
            assert!(refused.into_iter().all(|error| error.kind() == ErrorKind::TooCostly));
        });
    }
}
