//! The same stacks on tokio's paused clock, over a service that answers by the dice: a quarter of an hour of it takes a few
//! seconds, the clock jumps at random moments, as after a machine was asleep, and each promise is held to the nanosecond.

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
    limit::{SlidingWindow, Snapshot, TokenBucket},
    preset,
    stack::StackBuilder,
    test_util::{self, Arrivals, ScriptedResponse, ScriptedService, Seen},
};

use super::{dice::Dice, seed};

const LASTING: Duration = Duration::from_secs(900);
const CALLERS: usize = 30;

struct Under {
    name: String,
    client: Client,
    quota: Quota,
    api: ScriptedService,
    asked: Arc<Mutex<Vec<(Instant, Duration)>>>,
    snapshot: Box<dyn Fn() -> Snapshot + Send + Sync>,
    full: u32,
}

/// The presets as they come, but for the quota of the one that has none.
fn all(seed: u64) -> [Under; 4] {
    let url = "https://api.example.com";
    let push = Quota::per_second(20).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    let own = Quota::new(300, Duration::from_secs(10)).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    let window = SlidingWindow::new(own);
    [
        under(preset::currency_rates(url).unwrap(), None, seed),
        under(preset::email_delivery(url).unwrap(), None, seed),
        under(preset::realtime_messaging(url).unwrap().with_quota(push), None, seed),
        under(
            StackBuilder::new(url).unwrap().with_name("own").with_quota(own).with_limiter(window.clone()),
            Some(window),
            seed,
        ),
    ]
}

fn under(preset: StackBuilder, window: Option<SlidingWindow>, seed: u64) -> Under {
    let (name, quota) = (preset.name().to_owned(), preset.quotas()[0]);
    let asked = Arc::new(Mutex::new(vec![]));
    let told = Arc::clone(&asked);
    let api = ScriptedService::from_fn(move |seen| answer(seen, seed, &told));
    let preset = preset
        .with_api_key(ApiKey::new("s3cret").unwrap())
        .with_attempt_span(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")))
        .with_limit(|limit| limit.with_max_queue(50));
    let full = if window.is_some() { quota.limit() } else { quota.burst() };
    let snapshot: Box<dyn Fn() -> Snapshot + Send + Sync> = match (window, preset.limiter().clone()) {
        (Some(window), _) => Box::new(move || window.snapshot()),
        (None, any) => Box::new(move || any.downcast_ref::<TokenBucket>().unwrap().snapshot()),
    };
    let client = test_util::deterministic(preset, seed).client_with_service(api.clone()).unwrap();
    Under { name, client, quota, api, asked, snapshot, full }
}

/// An answer that comes at once, so that it is heard when it is given, where it asks for a pause.
fn answer(seen: &Seen, seed: u64, asked: &Mutex<Vec<(Instant, Duration)>>) -> ScriptedResponse {
    let number = |name| seen.header(name).and_then(|value| value.parse::<u64>().ok()).unwrap();
    let mut dice = Dice::about(seed, "answer", number("x-call") << 8 | number("x-attempt"));
    match dice.below(1_000) {
        0..3 => {
            let (value, pause) = dice.pick(&[("1", 1), ("20", 20), ("50", 50), ("110", 110)]);
            asked.lock().unwrap().push((seen.at, Duration::from_secs(pause)));
            ScriptedResponse::status(dice.pick(&[429, 503])).with_header("retry-after", value)
        }
        3..40 => ScriptedResponse::status(dice.pick(&[500, 502, 503, 504, 408])),
        40..70 => ScriptedResponse::io_error(std::io::ErrorKind::ConnectionReset),
        70..90 => ScriptedResponse::refused(),
        90..100 => ScriptedResponse::never(),
        100..150 => ScriptedResponse::status(200).with_delay(dice.millis(1, 12_000)),
        150..160 => ScriptedResponse::status(200).with_body("a part").with_body_stalled(),
        160..200 => ScriptedResponse::status(409).with_header("x-should-retry", "true"),
        200..220 => ScriptedResponse::status(200).with_header("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT"),
        _ => ScriptedResponse::status(200),
    }
}

#[derive(Default)]
struct Counts {
    started: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

async fn calls(client: Client, counts: Arc<Counts>, seed: u64, until: Instant) {
    while Instant::now() < until {
        let number = counts.started.fetch_add(1, Relaxed);
        let mut dice = Dice::about(seed, "paused call", number);
        let method = dice.pick(&["GET", "POST", "PUT"]);
        let request = Request::builder().method(method).uri("/v1").header("x-call", number);
        let calling = client.request(request.body(Body::from("letter")).unwrap());
        let patience = if dice.chance(250) { dice.millis(0, 20_000) } else { Duration::MAX };
        let end = match timeout(patience, calling).await {
            Err(_) => &counts.cancelled,
            Ok(Err(_)) => &counts.failed,
            Ok(Ok(response)) => {
                let _ = timeout(Duration::from_secs(5), response.into_body().collect(1024)).await;
                &counts.answered
            }
        };
        end.fetch_add(1, Relaxed);
        // Where nothing can be had for the time being, it is tried again a little later.
        let pause = if std::ptr::eq(end, &counts.failed) { 6_000 } else { 600 };
        sleep(dice.millis(0, pause)).await;
    }
}

/// The clock jumps, by less and by more than any limit of a stack.
async fn jumps(seed: u64, until: Instant) {
    for number in 0.. {
        let mut dice = Dice::about(seed, "jump", number);
        sleep(dice.millis(0, 20_000)).await;
        if Instant::now() >= until {
            return;
        }
        advance(Duration::from_millis(dice.pick(&[1, 10, 400, 600, 2_000, 15_000, 70_000]))).await;
    }
}

async fn some_time(seed: u64, lasting: Duration) {
    let (all, counts, until) = (all(seed), Arc::new(Counts::default()), Instant::now() + lasting);
    let mut tasks = JoinSet::new();
    for under in &all {
        for _ in 0..CALLERS {
            tasks.spawn(calls(under.client.clone(), Arc::clone(&counts), seed, until));
        }
    }
    tasks.spawn(jumps(seed, until));
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    // The longest pause, and the longest window.
    sleep(Duration::from_secs(200)).await;
    let [started, answered, failed, cancelled] =
        [&counts.started, &counts.answered, &counts.failed, &counts.cancelled].map(|it| it.load(Relaxed));
    println!("seed {seed}: {started} calls: {answered} answered, {failed} failed, {cancelled} cancelled");
    assert_eq!(started, answered + failed + cancelled);
    // The short run has too few calls for one of each in every seed.
    assert!(lasting < LASTING || [answered, failed, cancelled].iter().all(|some| *some > 0));
    for under in all {
        check(&under);
        let Under { name, client, api, .. } = under;
        drop(client);
        assert_eq!(api.instances(), 1, "{name}: a call is left");
    }
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

fn check(Under { name, quota, api, asked, snapshot, full, .. }: &Under) {
    let seen = api.seen();
    let arrivals: Arrivals = seen.iter().map(|seen| seen.at).collect();
    arrivals.assert_within(*quota);
    for (at, pause) in asked.lock().unwrap().iter() {
        let early = seen.iter().find(|seen| *at < seen.at && seen.at < *at + *pause);
        assert!(early.is_none(), "{name}: {pause:?} were asked for at {at:?}, and then {early:?}");
    }
    let mut posts = BTreeMap::new();
    for seen in seen.iter().filter(|seen| seen.head.method == http::Method::POST && seen.body.is_some()) {
        *posts.entry(seen.header("x-call").unwrap().to_owned()).or_insert(0) += 1;
    }
    assert!(posts.values().all(|times| *times == 1), "{name}: {posts:?}");
    let now = snapshot();
    assert_eq!((now.queued, now.in_flight, now.paused_until, now.available), (0, 0, None, *full), "{name}");
    println!(
        "  {name}: {} arrivals, {} at most in a window of {}, {} pauses, {} posts",
        seen.len(),
        arrivals.most_in(quota.window()),
        quota.limit(),
        asked.lock().unwrap().len(),
        posts.len(),
    );
}

#[test]
fn the_clock_jumps() {
    let seed = seed();
    let run = |lasting| {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(some_time(seed, lasting));
    };
    // What is made once for a thread or a process is there after the first.
    run(Duration::from_secs(60));
    let left = allocation_counter::measure(|| run(LASTING)).bytes_current;
    println!("  {left} bytes left");
    assert!(left.abs() < 16 << 10, "{left} bytes left");
}
