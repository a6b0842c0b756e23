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

use fleet::{Algorithm, ArrivalLog, CountingServer, Event, Message, WorkerConfig, Workers};
use tokio::{
    process::Command,
    time::{Instant, sleep},
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

const KINDS: [Algorithm; 2] = [Algorithm::TokenBucket, Algorithm::SlidingWindow];

#[tokio::test]
#[ignore = "takes 26 s; .ci/run slow runs it"]
async fn four_processes_share_the_quota_of_one_limiter() {
    for kind in KINDS {
        let (redis, counter) = (server(), CountingServer::start().unwrap());
        let job = job(&redis, &counter, kind, 0);
        let mut members = Workers::start(PROCESSES, &job, child_command).await.unwrap();
        members.go().await.unwrap();
        let machine = Machine::watch();
        // A store that has just started grants no permits for one window.
        sleep(millis(2_300)).await;
        // A sliding window grants all permits of a window at once. The measured time is therefore a multiple of the
        // enforced window: the window, margin and hold together.
        let (start, length) = (Instant::now(), WorkerConfig::enforced_window(quota()) * 10);
        sleep(length).await;
        let events = members.stop().await.unwrap();

        let all = ArrivalLog::new(counter.arrivals(), job.quota);
        let count = all.between(start, start + length);
        let fraction = count.total() as f64 / (job.rate() * length.as_secs_f64());
        let shares = (0..PROCESSES).map(|process| count.count_of(process) * PROCESSES);
        let shares: Vec<_> = shares.map(|count_of| count_of as f64 / count.total() as f64).collect();
        println!("{kind:?}: {:.1} % of what the quota allows; shares {shares:.3?}", fraction * 100.0);
        let (least, least_share) = if machine.is_calm() { (0.97, 0.8) } else { (0.5, 0.4) };
        assert!(fraction >= least, "processes used {:.1} % of what the quota allows", fraction * 100.0);
        assert!(shares.iter().all(|share| *share >= least_share), "unfair shares: {shares:.3?}");
        let refused = check(&all, &events, &machine);
        assert!(
            refused == 0 || !machine.is_calm(),
            "{refused} requests were refused although the store replied"
        );
    }
}

/// The processes refuse requests while the store is down, or use their fallback shares.
#[tokio::test]
#[ignore = "takes 46 s; .ci/run slow runs it"]
async fn four_processes_share_the_quota_during_and_after_an_outage_of_the_store() {
    for (kind, parts) in KINDS.into_iter().flat_map(|kind| [(kind, 0), (kind, PROCESSES as u32)]) {
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
        let state = if parts == 0 { "refusing" } else { "fallback" };
        // A fallback share starts without permits. After 1.4 s every process uses its fallback share, and the share has
        // permits.
        let during = all.between(killed + millis(1_400), restarted);
        for process in 0..PROCESSES {
            let name = format!("{kind:?}, {state}, process {process}");
            assert!(fleet::first_seen(&events, process, state, killed..restarted).is_some(), "{name}");
            let back = fleet::first_seen(&events, process, "shared", restarted..end);
            let limit = if machine.is_calm() { millis(1_000) } else { millis(5_000) };
            assert!(back.is_some_and(|back| back - restarted <= limit), "{name} reconnected at {back:?}");
            assert_eq!(during.count_of(process) > 0, parts > 0, "{name}");
        }
        let length = WorkerConfig::enforced_window(job.quota) * 2;
        let fraction = all.between(end - length, end).total() as f64 / (job.rate() * length.as_secs_f64());
        let least = if machine.is_calm() { 0.8 } else { 0.4 };
        assert!(fraction >= least, "{kind:?}: {:.1} % of what the quota allows", fraction * 100.0);
        check(&all, &events, &machine);
    }
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

/// Asserts that no window exceeds the quota, that no call hangs, and that every call without a permit ends with a
/// refusal. Returns the number of refusals.
fn check(all: &ArrivalLog, events: &[Event], machine: &Machine) -> u64 {
    all.times().assert_within(quota());
    assert_eq!(all.violations(), 0);
    let (mut ended, mut all_refused) = (0, 0);
    for event in events {
        if let Message::End { refused, failed, longest, .. } = event.message {
            (ended, all_refused) = (ended + 1, all_refused + refused);
            let most = if machine.is_calm() { LONGEST_WAIT } else { LONGEST_WAIT * 2 };
            assert!(longest <= most, "the longest call took {longest:?}, expected at most {most:?}");
            assert_eq!(failed, 0, "calls failed for a reason other than a refusal");
        }
    }
    assert_eq!(ended, PROCESSES, "not every process reported the results of its calls");
    all_refused
}
