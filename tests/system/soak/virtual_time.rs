//! Runs the stacks of the load test on tokio's paused clock, over a service with random responses. 15 minutes of
//! virtual time take a few seconds. The clock jumps at random times, as after a machine's sleep. The guarantees are
//! checked to the nanosecond.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderName, Request};
use tokio::{
    runtime::{Builder, Handle},
    task::JoinSet,
    time::{Instant, advance, sleep, timeout},
};
use tower_outbound::{
    ApiKey, Body, Client, Quota,
    attempt_span::AttemptSpanLayer,
    limit::{LocalLimiter, Snapshot},
    preset,
    stack::StackBuilder,
    test_util::{self, Arrivals, ScriptedResponse, ScriptedService, Seen},
};

use super::{rng::Rng, seed};

const DURATION: Duration = Duration::from_secs(900);
const CALLERS: usize = 30;

/// A client above a scripted service.
struct Stack {
    name: String,
    client: Client,
    quota: Quota,
    api: ScriptedService,
    pauses: Arc<Mutex<Vec<Pause>>>,
    snapshot: Box<dyn Fn() -> Snapshot + Send + Sync>,
    /// The number of permits that the idle limiter grants at once.
    idle_permits: u32,
}

/// A pause that a response requested.
struct Pause {
    at: Instant,
    length: Duration,
    /// The number of the call, if the status 429 states that its request was not processed.
    rejected: Option<u64>,
}

/// Returns stacks of the three presets, and a custom stack. The first two presets have their default quotas. The third
/// preset has no default quota, and gets one here.
fn stacks(seed: u64) -> [Stack; 4] {
    let url = "https://api.example.com";
    let messaging = Quota::per_second(20).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    let custom =
        Quota::new(300, Duration::from_secs(10)).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    let window = LocalLimiter::sliding_window(custom);
    [
        stack(preset::currency_rates(url).unwrap(), None, seed),
        stack(preset::email_delivery(url).unwrap(), None, seed),
        stack(preset::realtime_messaging(url).unwrap().with_quota(messaging), None, seed),
        stack(
            StackBuilder::new(url)
                .unwrap()
                .with_name("custom")
                .with_quota(custom)
                .with_limiter(window.clone()),
            Some(window),
            seed,
        ),
    ]
}

fn stack(preset: StackBuilder, window: Option<LocalLimiter>, seed: u64) -> Stack {
    let (name, quota) = (preset.name().to_owned(), preset.quotas()[0]);
    let pauses = Arc::new(Mutex::new(vec![]));
    let recorded = Arc::clone(&pauses);
    let api = ScriptedService::from_fn(move |seen| respond(seen, seed, &recorded));
    let preset = preset
        .with_api_key(ApiKey::new("s3cret").unwrap())
        .with_attempt_span(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")))
        .with_limit(|limit| limit.with_max_queue(50));
    let idle_permits = if window.is_some() { quota.limit() } else { quota.burst() };
    let snapshot: Box<dyn Fn() -> Snapshot + Send + Sync> = match (window, preset.limiter().clone()) {
        (Some(window), _) => Box::new(move || window.snapshot()),
        (None, any) => Box::new(move || any.downcast_ref::<LocalLimiter>().unwrap().snapshot()),
    };
    let client = test_util::deterministic(preset, seed).client_with_service(api.clone()).unwrap();
    Stack { name, client, quota, api, pauses, snapshot, idle_permits }
}

/// Returns a random response. Responses that request a pause have no delay, so the client receives them at the recorded
/// time.
fn respond(seen: &Seen, seed: u64, pauses: &Mutex<Vec<Pause>>) -> ScriptedResponse {
    let number = |name| seen.header(name).and_then(|value| value.parse::<u64>().ok()).unwrap();
    let mut rng = Rng::new(seed, "response", number("x-call") << 8 | number("x-attempt"));
    match rng.below(1_000) {
        0..3 => {
            let (value, pause) = rng.choose(&[("1", 1), ("20", 20), ("50", 50), ("110", 110)]);
            let status = rng.choose(&[429, 503]);
            let rejected = (status == 429).then(|| number("x-call"));
            pauses.lock().unwrap().push(Pause { at: seen.at, length: Duration::from_secs(pause), rejected });
            ScriptedResponse::status(status).with_header("retry-after", value)
        }
        3..40 => ScriptedResponse::status(rng.choose(&[500, 502, 503, 504, 408])),
        40..70 => ScriptedResponse::io_error(std::io::ErrorKind::ConnectionReset),
        70..90 => ScriptedResponse::refused(),
        90..100 => ScriptedResponse::never(),
        100..150 => ScriptedResponse::status(200).with_delay(rng.millis(1, 12_000)),
        150..160 => ScriptedResponse::status(200).with_body("a part").with_body_stalled(),
        160..200 => ScriptedResponse::status(409).with_header("x-should-retry", "true"),
        200..220 => ScriptedResponse::status(200).with_header("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT"),
        _ => ScriptedResponse::status(200),
    }
}

#[derive(Default)]
struct Counts {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

async fn send_requests(client: Client, counts: Arc<Counts>, seed: u64, end: Instant) {
    while Instant::now() < end {
        let number = counts.started.fetch_add(1, Relaxed);
        let mut rng = Rng::new(seed, "call", number);
        let method = rng.choose(&["GET", "POST", "PUT"]);
        let request = Request::builder().method(method).uri("/v1").header("x-call", number);
        let call = client.execute(request.body(Body::from("letter")).unwrap());
        let cancel_after = if rng.chance(250) { rng.millis(0, 20_000) } else { Duration::MAX };
        let outcome = match timeout(cancel_after, call).await {
            Err(_) => &counts.cancelled,
            Ok(Err(_)) => &counts.failed,
            Ok(Ok(response)) => {
                let _ = timeout(Duration::from_secs(5), response.into_body().bytes_up_to(1024)).await;
                &counts.succeeded
            }
        };
        outcome.fetch_add(1, Relaxed);
        // During a long pause, calls fail immediately. After a failed call the caller waits longer, so that few calls
        // fail.
        let pause = if std::ptr::eq(outcome, &counts.failed) { 6_000 } else { 600 };
        sleep(rng.millis(0, pause)).await;
    }
}

/// Advances the clock at random times. Some jumps are shorter than every timeout of a stack, and some jumps are longer.
async fn jump(seed: u64, end: Instant) {
    for number in 0.. {
        let mut rng = Rng::new(seed, "jump", number);
        sleep(rng.millis(0, 20_000)).await;
        if Instant::now() >= end {
            return;
        }
        advance(Duration::from_millis(rng.choose(&[1, 10, 400, 600, 2_000, 15_000, 70_000]))).await;
    }
}

/// Runs all callers for `duration`, and checks every stack.
async fn run(seed: u64, duration: Duration) {
    let (stacks, counts, end) = (stacks(seed), Arc::new(Counts::default()), Instant::now() + duration);
    let mut tasks = JoinSet::new();
    for stack in &stacks {
        for _ in 0..CALLERS {
            tasks.spawn(send_requests(stack.client.clone(), Arc::clone(&counts), seed, end));
        }
    }
    tasks.spawn(jump(seed, end));
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    // This sleep is longer than the longest pause and the longest window.
    sleep(Duration::from_secs(200)).await;
    let [started, succeeded, failed, cancelled] =
        [&counts.started, &counts.succeeded, &counts.failed, &counts.cancelled].map(|it| it.load(Relaxed));
    println!("seed {seed}: {started} calls: {succeeded} succeeded, {failed} failed, {cancelled} cancelled");
    assert_eq!(started, succeeded + failed + cancelled);
    // Only the long run must cause every outcome. With some seeds, the short run does not.
    assert!(duration < DURATION || [succeeded, failed, cancelled].iter().all(|count| *count > 0));
    for stack in stacks {
        check(&stack);
        let Stack { name, client, api, .. } = stack;
        drop(client);
        assert_eq!(api.instances(), 1, "{name}: a call is still in flight");
    }
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

/// Asserts that no window exceeded the quota, no request arrived during a pause, and each POST was processed at most once. Also
/// asserts that the limiter is idle at the end.
fn check(Stack { name, quota, api, pauses, snapshot, idle_permits, .. }: &Stack) {
    let seen = api.seen();
    let arrivals: Arrivals = seen.iter().map(|seen| seen.at).collect();
    arrivals.assert_within(*quota);
    let pauses = pauses.lock().unwrap();
    for Pause { at, length, .. } in pauses.iter() {
        let early = seen.iter().find(|seen| *at < seen.at && seen.at < *at + *length);
        assert!(early.is_none(), "{name}: a request during the pause of {length:?} from {at:?}: {early:?}");
    }
    let mut posts = BTreeMap::<u64, i32>::new();
    for seen in seen.iter().filter(|seen| seen.head.method == http::Method::POST && seen.body.is_some()) {
        *posts.entry(seen.header("x-call").unwrap().parse().unwrap()).or_insert(0) += 1;
    }
    for call in pauses.iter().filter_map(|pause| pause.rejected) {
        posts.entry(call).and_modify(|times| *times -= 1);
    }
    let post_calls = posts.len();
    posts.retain(|_, times| *times > 1);
    assert!(posts.is_empty(), "{name}: POST calls that were processed several times: {posts:?}");
    let now = snapshot();
    assert_eq!(
        (now.queued, now.in_flight, now.paused_until, now.available),
        (0, 0, None, *idle_permits),
        "{name}"
    );
    println!(
        "  {name}: {} arrivals, at most {} of {} in a window, {} pauses, {} POST calls",
        seen.len(),
        arrivals.most_in(quota.window()),
        quota.limit(),
        pauses.len(),
        post_calls,
    );
}

#[test]
fn guarantees_hold_when_the_clock_jumps() {
    let seed = seed();
    let run_on_paused_clock = |duration| {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run(seed, duration));
    };
    // The first run allocates the memory that lives as long as the thread or the process.
    run_on_paused_clock(Duration::from_secs(60));
    let remaining = allocation_counter::measure(|| run_on_paused_clock(DURATION)).bytes_current;
    println!("  {remaining} bytes still allocated");
    assert!(remaining.abs() < 16 << 10, "{remaining} bytes still allocated");
}
