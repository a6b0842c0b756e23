//! Tests that four processes with sixteen tasks per process share one quota. A server counts the requests in an exact
//! sliding window. Each process runs this test binary.
//!
//! The quota is 200 permits per second with a margin of 200 ms. A process holds an unused permit for at most 50 ms (the
//! hold). On two busy cores the operating system suspends a process or the server for tens of milliseconds at a time.
//!
//! - The hold covers the time between the store's response and the grant.
//! - A quarter of the margin covers the time from the grant to the next poll of the task. If the poll is later, the
//!   permit expires.
//! - Another quarter of the margin covers the network delay.
//!
//! Margin and hold cost 20 % of the quota, so the tests compare throughput with the remaining 80 %. Each request
//! carries the time of its grant. The tests count the request only in windows that contain both its grant and its
//! arrival, so a slow network cannot make a window exceed the quota.
//!
//! On a busy machine, processes use less of the quota and reconnect later. To measure the load, a thread only sleeps
//! and records how late the machine wakes it. If one wake-up is later than the hold of 50 ms, the tests require only
//! half of the throughput.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use fleet::{Algorithm, ArrivalLog, CountingServer, Event, Message, WorkerConfig, Workers, script_calls};
use tokio::{
    process::Command,
    time::{Instant, sleep, sleep_until},
};
use tower_outbound::BoxError;

use super::*;

#[path = "../../examples/support/fleet/mod.rs"]
#[allow(clippy::module_inception, reason = "the example has the same module")]
mod fleet;

const PROCESSES: usize = 4;
const TASKS: usize = 16;

/// The maximum duration of a call, which may double on a busy machine. The limiter treats the quota as spent for one
/// window when the fallback share starts, and for another window after the restart of the store.
const LONGEST_WAIT: Duration = Duration::from_secs(4);

fn quota() -> Quota {
    Quota::per_second(200).unwrap().with_margin(millis(200)).unwrap()
}

fn job(redis: &RedisServer, counter: &CountingServer, kind: Algorithm, parts: u32) -> WorkerConfig {
    let (redis, name, server) = (redis.url(), "fleet".to_owned(), counter.address());
    WorkerConfig { server, redis, name, algorithm: kind, quota: quota(), fallback_share: parts, tasks: TASKS }
}

/// Returns the command that runs only the child-process test of this binary.
fn child_command() -> Result<Command, BoxError> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--exact", "fleet::child_process_runs_one_worker", "--ignored", "--nocapture"]);
    Ok(command)
}

#[tokio::test]
#[ignore = "child process that the other tests start"]
async fn child_process_runs_one_worker() {
    if let Some((number, job)) = WorkerConfig::from_env().unwrap() {
        fleet::run(number, job).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "takes 13 s; .ci/run runs it"]
async fn four_processes_share_the_quota_of_one_token_bucket() {
    steady(Algorithm::TokenBucket).await;
}

#[tokio::test]
#[ignore = "takes 13 s; .ci/run runs it"]
async fn four_processes_share_the_quota_of_one_sliding_window() {
    steady(Algorithm::SlidingWindow).await;
}

#[tokio::test]
#[ignore = "takes 12 s; .ci/run runs it"]
async fn token_bucket_refuses_requests_while_its_store_is_down() {
    outage(Algorithm::TokenBucket, 0).await;
}

#[tokio::test]
#[ignore = "takes 12 s; .ci/run runs it"]
async fn token_bucket_grants_fallback_shares_while_its_store_is_down() {
    outage(Algorithm::TokenBucket, PROCESSES as u32).await;
}

#[tokio::test]
#[ignore = "takes 12 s; .ci/run runs it"]
async fn sliding_window_refuses_requests_while_its_store_is_down() {
    outage(Algorithm::SlidingWindow, 0).await;
}

#[tokio::test]
#[ignore = "takes 12 s; .ci/run runs it"]
async fn sliding_window_grants_fallback_shares_while_its_store_is_down() {
    outage(Algorithm::SlidingWindow, PROCESSES as u32).await;
}

async fn steady(kind: Algorithm) {
    // A sliding window grants all permits of a window at once. The measured time is therefore a multiple of the
    // enforced window: the window, margin and hold together.
    let length = WorkerConfig::enforced_window(quota()) * 10;
    let (redis, counter) = (server(), CountingServer::start().unwrap());
    let job = job(&redis, &counter, kind, 0);
    let mut members = Workers::start(PROCESSES, &job, child_command).await.unwrap();
    members.go().await.unwrap();
    let machine = Machine::watch();
    // A store that has just started grants no permits for one window.
    sleep(millis(2_300)).await;
    let (start, queries_before) = (Instant::now(), script_calls(redis.port()).unwrap());
    sleep_until(start + length).await;
    let end = start + length;
    let query_rate = (script_calls(redis.port()).unwrap() - queries_before) as f64 / length.as_secs_f64();
    let events = members.stop().await.unwrap();

    let all = ArrivalLog::new(counter.arrivals(), job.quota);
    let count = all.between(start, end);
    let allowed = job.rate() * length.as_secs_f64();
    let whole_quota = f64::from(job.quota.limit()) * length.as_secs_f64();
    let fraction = count.total() as f64 / allowed;
    let fair = count.total() as f64 / PROCESSES as f64;
    let shares: Vec<_> = (0..PROCESSES).map(|process| count.count_of(process) as f64 / fair).collect();
    println!(
        "{kind:?}: {} requests, {:.1} % of the {allowed:.0} that the quota allows with margin and hold, {:.1} % of the \
         whole quota of {whole_quota:.0}; shares {shares:.3?}; {query_rate:.0} queries per second",
        count.total(),
        fraction * 100.0,
        count.total() as f64 / whole_quota * 100.0
    );
    check_window(&all);
    let (least, least_share) = if machine.is_calm() { (0.97, 0.8) } else { (0.5, 0.4) };
    assert!(fraction >= least, "processes used {:.1} % of what the quota allows", fraction * 100.0);
    assert!(
        shares.iter().all(|share| *share >= least_share),
        "a process got too little of its fair share: {shares:.3?}"
    );
    let refused: u64 = ends(&events).iter().map(|(_, refused, ..)| refused).sum();
    assert!(refused == 0 || !machine.is_calm(), "{refused} requests were refused although the store replied");
    check_ends(&events, &machine);
}

async fn outage(kind: Algorithm, parts: u32) {
    let (mut redis, counter) = (server(), CountingServer::start().unwrap());
    let job = job(&redis, &counter, kind, parts);
    let mut members = Workers::start(PROCESSES, &job, child_command).await.unwrap();
    members.go().await.unwrap();
    let machine = Machine::watch();
    sleep(millis(3_000)).await;
    redis.kill().unwrap();
    let killed = Instant::now();
    sleep(millis(3_000)).await;
    redis.restart().unwrap();
    let restarted = Instant::now();
    sleep(millis(5_000)).await;
    let end = Instant::now();
    let events = members.stop().await.unwrap();

    let all = ArrivalLog::new(counter.arrivals(), job.quota);
    let outage_state = if parts == 0 { "refusing" } else { "fallback" };
    let saw = |process, state, from, to| fleet::first_seen(&events, process, state, from..to);
    let noticed: Vec<_> =
        (0..PROCESSES).map(|process| Some(saw(process, outage_state, killed, restarted)? - killed)).collect();
    // For each process, the time from the restart of the store until its first reply, and the time from the restart
    // until its first grant.
    let back: Vec<_> = (0..PROCESSES)
        .map(|process| {
            let shared = saw(process, "shared", restarted, end)?;
            let mut after =
                all.arrivals().filter(|arrival| arrival.process == process && arrival.at > shared);
            Some((shared - restarted, after.next()?.at - restarted))
        })
        .collect();
    // A fallback share starts without permits. After 1.4 s every process uses its fallback share, and the share has
    // permits.
    let during_outage = all.between(killed + millis(1_400), restarted);
    let length = WorkerConfig::enforced_window(job.quota) * 2;
    let fraction = all.between(end - length, end).total() as f64 / (job.rate() * length.as_secs_f64());
    println!(
        "{kind:?}, {outage_state}: {} requests, {} of them in the last {:.1} s without redis; noticed after \
         {noticed:.3?}; reconnected and got a permit after {back:.3?}; {:.1} % of what the quota allows after \
         the outage",
        all.total(),
        during_outage.total(),
        (restarted - killed - millis(1_400)).as_secs_f64(),
        fraction * 100.0
    );
    check_window(&all);
    assert!(noticed.iter().all(Option::is_some), "not all processes noticed the outage: {noticed:?}");
    // After the last process has reconnected, the store grants no permits for half a second plus one window.
    let last = back.iter().flatten().map(|(shared, _)| *shared).max().unwrap_or_default();
    let (back_by, served_by) = match machine.is_calm() {
        true => (millis(1_000), last + millis(500) + WorkerConfig::enforced_window(job.quota) + millis(250)),
        false => (millis(5_000), millis(5_000)),
    };
    let soon = |back: &Option<(Duration, Duration)>| {
        back.is_some_and(|(shared, served)| shared <= back_by && served <= served_by)
    };
    assert!(
        back.iter().all(soon),
        "not every process reconnected within {back_by:?} and got a permit within {served_by:?}: {back:?}"
    );
    if parts == 0 {
        assert_eq!(during_outage.total(), 0, "processes granted permits although the store was down");
    } else {
        assert!(
            (0..PROCESSES).all(|process| during_outage.count_of(process) > 0),
            "a process granted no permit of its fallback share"
        );
    }
    let least = if machine.is_calm() { 0.8 } else { 0.4 };
    assert!(
        fraction >= least,
        "processes used {:.1} % of what the quota allows after the outage",
        fraction * 100.0
    );
    check_ends(&events, &machine);
}

/// The longest delay with which the machine woke a sleeping thread, in microseconds.
struct Machine(Arc<AtomicU64>);

impl Machine {
    /// Measures wake-up delays until the returned value is dropped.
    fn watch() -> Self {
        let worst = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&worst);
        thread::spawn(move || {
            loop {
                let before = Instant::now();
                thread::sleep(millis(2));
                let late = before.elapsed() - millis(2);
                let Some(worst) = watched.upgrade() else { return };
                worst.fetch_max(late.as_micros() as u64, Relaxed);
            }
        });
        Self(worst)
    }

    fn is_calm(&self) -> bool {
        Duration::from_micros(self.0.load(Relaxed)) <= WorkerConfig::HOLD
    }
}

/// Asserts that no window exceeds the quota.
fn check_window(all: &ArrivalLog) {
    println!(
        "  {} requests in the fullest second (limit {}), {} violations; limit + 1 requests took at least {:?}",
        all.most_in_window(),
        quota().limit(),
        all.violations(),
        all.shortest_excess_span().unwrap()
    );
    all.times().assert_within(quota());
    assert_eq!(all.violations(), 0);
}

/// Asserts that no call hangs, and that every call without a permit ends with a refusal.
fn check_ends(events: &[Event], machine: &Machine) {
    let ends = ends(events);
    let longest = ends.iter().map(|(.., longest)| *longest).max().unwrap();
    let failed: u64 = ends.iter().map(|(_, _, failed, _)| failed).sum();
    println!(
        "  longest call {longest:?}; the machine woke a thread up to {} us late",
        machine.0.load(Relaxed)
    );
    assert_eq!(ends.len(), PROCESSES, "not every process reported the results of its calls");
    let most = if machine.is_calm() { LONGEST_WAIT } else { LONGEST_WAIT * 2 };
    assert!(longest <= most, "the longest call took {longest:?}, expected at most {most:?}");
    assert_eq!(failed, 0, "calls failed for a reason other than a refusal");
}

/// Returns, for each process, the numbers of completed, refused and failed calls, and the duration of the longest call.
fn ends(events: &[Event]) -> Vec<(u64, u64, u64, Duration)> {
    let end = |event: &Event| match event.message {
        Message::End { completed, refused, failed, longest } => Some((completed, refused, failed, longest)),
        _ => None,
    };
    events.iter().filter_map(end).collect()
}
