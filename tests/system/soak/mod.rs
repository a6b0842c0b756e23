//! Load tests of whole stacks against faulty servers. At the end, the recorded history must satisfy every guarantee.
//!
//! Plain `cargo test` runs for 5 s. Set `SOAK_SECONDS` to run longer:
//! `SOAK_SECONDS=600 cargo test --profile bench --test system soak:: -- --nocapture`. Each run prints its random seed first.
//! Set `SOAK_SEED` to this number to repeat the run with the same random decisions.
//!
//! # Scenario
//!
//! Two threads with 120 callers in all call four APIs over TLS, through the three presets and a custom stack with a sliding
//! window. Each API has its own key and key placement.
//!
//! - Servers negotiate HTTP/2 or HTTP/1.1 for each connection. They respond slowly or not at all, reset connections before, during
//!   and after the TLS handshake and in the middle of a response, send garbage, truncate or stall bodies, and refuse streams.
//! - Responses contain extreme headers: `Retry-After` of 30 years, dates in the year 9999, `RateLimit` with a thousand policies,
//!   request ids of 64 KiB.
//! - Callers cancel calls at random moments. Operators revoke keys in use, change quotas and end pauses.
//! - A recovery phase follows the load. The servers respond correctly until all retry budgets are full. Then all clients are
//!   dropped.
//!
//! # Checked guarantees
//!
//! - Calls: each call ends once, with a response, an error of exactly one kind, or a cancellation. The log has one closed span
//!   for each call, and one event for each call that was not cancelled. A report contains every attempt that arrived at the
//!   server.
//! - Never twice: a POST without an idempotency key arrives at its server once. It may arrive again only if the server proved that
//!   it did not process the request, by 401 or `REFUSED_STREAM`. All attempts of a call have the same idempotency key.
//! - Window: in the server's count, no window exceeds its quota.
//! - Never early: no request gets a permit from the moment when its limiter receives a pause until the pause ends or an
//!   operator ends it.
//! - Permits: at the end, nothing is queued or in flight, the limiters grant as much as at the start, and the budgets are full.
//! - Tasks and memory: at the end, no task is left, and at most 64 KiB of memory, independent of the number of calls. The count
//!   covers everything that the callers' threads allocate and free. A warm-up run first allocates the memory that lives as long
//!   as the process.
//! - Key: no piece of a key, in any encoding, appears in errors, response headers, reports, or any crate's log at TRACE on the
//!   callers' threads. Every request contains a key of its API.
//!
//! # Nondeterminism
//!
//! Every random decision depends only on the seed and its subject, but the machine decides the order of events. Only the test on
//! the paused clock therefore asserts that each outcome occurs. Some events cannot be checked exactly:
//!
//! - A request that takes longer than a quarter of the margin from its permit to the server counts in no window, because the quota
//!   guarantees nothing for it. Callers and servers share one clock. The limiter enforces the other quarters of the margin.
//! - Three limiters belong to one thread each, so the order of their pauses and permits is exact to the nanosecond. The fourth
//!   limiter is shared by both threads: a permit may get its time stamp after a pause began on the other thread. Its check skips
//!   the first 500 ms of a pause.
//! - A pause in a lost response is not checked.
//! - An arrived request counts as maybe processed even if its server failed before it processed the request. The check is therefore
//!   stricter than the guarantee.
//!
//! # Clocks
//!
//! Two tests complement each other:
//!
//! - The load test runs in a child process, which the parent stops and continues by signals. Its sockets and timers are real, and
//!   all are late after each stop.
//! - The same stacks run on tokio's paused clock, above a scripted service and without sockets. The clock jumps by up to 70 s.
//!   The checks are exact to the nanosecond, the presets have their default quotas, and a seed repeats the same calls.

mod api;
mod behaviour;
mod faulty_stream;
mod history;
mod invariants;
mod key_store;
mod load;
mod log_scanner;
mod phases;
mod process;
mod rng;
mod server;
mod virtual_time;

use std::{
    env,
    time::{Duration, SystemTime},
};

fn seed() -> u64 {
    match env::var("SOAK_SEED") {
        Ok(seed) => seed.parse().expect("a number in SOAK_SEED"),
        #[allow(clippy::disallowed_methods, reason = "a seed is not a time")]
        Err(_) => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(),
    }
}

fn duration() -> Duration {
    let seconds =
        env::var("SOAK_SECONDS").map_or(5, |seconds| seconds.parse().expect("a number in SOAK_SECONDS"));
    Duration::from_secs(seconds)
}

#[test]
fn guarantees_hold_against_faulty_servers_in_a_stopped_process() {
    process::run_in_child(seed(), duration());
}

#[test]
#[ignore = "another test runs it in a child process"]
fn child_process() {
    process::run(seed(), duration());
}
