//! Simulates whole systems: clients, their transports and faulty servers on a simulated network. After each run, the
//! history must satisfy every guarantee of the crate.
//!
//! ```text
//! SIMULATION_SEEDS=5000 cargo test --release --all-features --test simulation -- --nocapture
//! SIMULATION_SEED=123 cargo test --release --all-features --test simulation -- --nocapture
//! ```
//!
//! The first command runs the seeds from 0 to 4999. The default is 20 seeds, or 2 in a build with debug assertions, in
//! which a run takes ten times as long. The second command repeats one seed, and
//! prints its events with the log of the crate. A failed run prints its seed and its events.
//!
//! # Scenario
//!
//! Two client hosts call two servers. A host has a client for each server: request id, timeouts, retry, a limiter with a
//! quota, a key provider, and the crate's own transport over hyper. Servers with the same protocol share a transport.
//! The seed decides the protocol of each server: HTTP/1.1 or HTTP/2, both with prior knowledge or over TLS.
//!
//! - The network delays, holds and loses packets: all of them for a while, single ones or several in a row. A connection
//!   that has lost a packet stays silent, because turmoil does not resend it.
//! - Servers crash and restart, reset connections, close idle ones, send GOAWAY, allow few streams, refuse streams, and
//!   stay silent after they have accepted a connection.
//! - Responses are late, break, stall, or have the status 401, 413, 429 or 5xx. Some request a delay.
//! - Callers drop calls and bodies, use three priorities and short deadlines. Key providers are slow and fail. Half of the
//!   callers' bodies are read with `bytes`, which retries a broken body. Some budgets pay for three retries, and some
//!   request bodies exceed the replay limit.
//! - Some accounts have parts, more than their keyed limiters have room for.
//! - The faults end after 14 s. Then calls must succeed, also many at once, and nothing may be left: no connection, no
//!   task, no queued request.
//!
//! # Checked guarantees
//!
//! `invariants` checks the guarantees 1 to 5, 7 and 9, the budget, the replay limit, and the bodies that were read with
//! retries. `keys` checks the key (6) in requests, errors and the log at DEBUG. `network` counts the open connections of
//! each origin, and callers read the length of the queue and the number of keys (8). The clock of each host is paused,
//! so all runs need less real time than virtual time (10). `panics` makes each panic of a task a violation.
//!
//! The times of the hosts are exact. The network has steps of 1 ms.
//!
//! # Determinism
//!
//! The same seed gives the same run. Each decision depends on the seed and on its subject, as in `tests/system/soak`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod caller;
#[path = "../support/dispatchers.rs"]
mod dispatchers;
mod found;
mod history;
mod invariants;
mod keys;
mod network;
mod panics;
mod plan;
#[path = "../system/soak/rng.rs"]
#[allow(dead_code, reason = "the load test uses the rest")]
mod rng;
mod server;

use std::{
    collections::VecDeque,
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::sync::Notify;

use self::{
    caller::Host,
    dispatchers::keep_dispatchers,
    history::History,
    keys::Keys,
    network::{OpenConnections, client_name, server_name},
    plan::{CLIENTS, Plan, SERVERS},
    server::Server,
};

const SEEDS: u64 = if cfg!(debug_assertions) { 2 } else { 20 };

/// The result of a run.
struct Run {
    violations: Vec<String>,
    log: Vec<String>,
    calls: usize,
    replaced_bodies: usize,
    virtual_time: Duration,
}

fn run(plan: Plan, shows_log: bool) -> Run {
    panics::record();
    let (plan, history) = (Arc::new(plan), Arc::new(History::default()));
    let (keys, open) = (Keys::new(plan.seed, CLIENTS), Arc::new(OpenConnections::default()));
    history.log(format_args!("{:?}", Plan { faults: Vec::new(), ..(*plan).clone() }));
    let log_search = tracing::subscriber::set_default(keys::search_log(&history, shows_log));
    let mut sim = network::simulation(&plan);
    let stops: [Arc<Notify>; SERVERS] = Default::default();
    for (number, stop) in stops.iter().enumerate() {
        let (plan, keys, history) = (Arc::clone(&plan), Arc::clone(&keys), Arc::clone(&history));
        let server =
            Server { number, plan, keys, history, connections: Arc::default(), stop: Arc::clone(stop) };
        sim.host(server_name(number), move || server.clone().run());
    }
    for client in 0..CLIENTS {
        let (plan, keys, history) = (Arc::clone(&plan), Arc::clone(&keys), Arc::clone(&history));
        let host = Host { client, plan, keys, open: Arc::clone(&open), history };
        sim.client(client_name(client), async move {
            host.run().await;
            Ok(())
        });
    }
    network::run(&mut sim, &plan, &stops, &keys, &history);
    let virtual_time = sim.elapsed();
    drop(sim);
    drop(log_search);
    let mut records = history.records();
    let mut violations = invariants::violations(&plan, &records);
    violations.extend(panics::take().into_iter().map(|panic| format!("a task panicked: {panic}")));
    let replaced_bodies = invariants::replaced_bodies(&records);
    let calls = records.calls.len();
    Run { violations, log: std::mem::take(&mut records.log), calls, replaced_bodies, virtual_time }
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the test measures real time")]
fn guarantees_hold_on_a_faulty_network() {
    keep_dispatchers();
    let seeds: VecDeque<u64> = match number("SIMULATION_SEED") {
        Some(seed) => [seed].into(),
        None => (0..number("SIMULATION_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let (count, shows_log) = (seeds.len(), seeds.len() == 1);
    let (seeds, failed) = (Mutex::new(seeds), Mutex::new(Vec::new()));
    let [calls, virtual_time, replaced_bodies] = [(); 3].map(|()| AtomicU64::new(0));
    let began = std::time::Instant::now();
    let work = || {
        while let Some(seed) = { seeds.lock().unwrap().pop_front() } {
            let run = run(Plan::new(seed), shows_log);
            virtual_time.fetch_add(run.virtual_time.as_millis() as u64, Relaxed);
            calls.fetch_add(run.calls as u64, Relaxed);
            replaced_bodies.fetch_add(run.replaced_bodies as u64, Relaxed);
            if shows_log {
                println!("{}", run.log.join("\n"));
            }
            if !run.violations.is_empty() {
                println!("seed {seed} failed:\n  {}", run.violations.join("\n  "));
                failed.lock().unwrap().push((seed, run));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let per_minute = count as f64 * 60.0 / seconds;
    println!(
        "{count} seeds, {calls:?} calls, {replaced_bodies:?} broken bodies replaced, {per_minute:.0} seeds per minute"
    );
    assert!(count < 20 || replaced_bodies.into_inner() > 0, "no broken body was replaced");
    assert!(
        seconds * 1e3 < virtual_time.into_inner() as f64,
        "the runs took more real time than virtual time"
    );
    let mut failed = failed.into_inner().unwrap();
    failed.sort_by_key(|(seed, _)| *seed);
    if let Some((seed, run)) = failed.first() {
        if !shows_log {
            println!("events of seed {seed}:\n{}", run.log.join("\n"));
        }
        let seeds: Vec<_> = failed.iter().map(|(seed, _)| seed).collect();
        panic!("seeds {seeds:?} failed. Seed {seed}:\n  {}", run.violations.join("\n  "));
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    keep_dispatchers();
    for seed in 0..SEEDS.div_ceil(10) {
        let [first, second] = [(); 2].map(|()| run(Plan::new(seed), true).log);
        for (number, (first, second)) in first.iter().zip(&second).enumerate() {
            assert_eq!(first, second, "seed {seed}: event {number} differs");
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}
