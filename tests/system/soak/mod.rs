//! Load tests of whole stacks against faulty servers. At the end, the recorded history must satisfy every guarantee.
//!
//! By default, `cargo test` runs the load test for 5 s. Set `SOAK_SECONDS` to run the load test for longer:
//! `SOAK_SECONDS=600 cargo test --profile bench --test system soak:: -- --nocapture`. Each run prints its random seed
//! first. Set `SOAK_SEED` to this seed to repeat the run with the same random decisions.
//!
//! # Scenario
//!
//! On two threads, 120 callers in total call four APIs over TLS, through the three presets and a custom stack with a
//! sliding window. Each API has its own key and key placement.
//!
//! - Servers negotiate HTTP/2 or HTTP/1.1 for each connection. They respond slowly or not at all, send garbage,
//!   truncate or stall bodies, and refuse streams. They also reset connections before the TLS handshake, and instead of
//!   a response. Some responses request a delay of 30 years.
//! - Callers cancel calls at random times. Operators revoke keys in use, change quotas and end pauses.
//! - A recovery phase follows the load. The servers respond correctly until all retry budgets are full. Then all
//!   clients are dropped.
//!
//! # Checked guarantees
//!
//! `tests/simulation` checks windows, order, pauses and reports against faulty servers. This test checks what needs
//! real sockets and threads:
//!
//! - Calls: each call ends once, with a response, an error of exactly one kind, or a cancellation. The log has one
//!   closed span for each call, and one event for each call that was not cancelled. Each result has a report.
//! - Never twice: a POST without an idempotency key arrives at its server at most once, except after a 401, a
//!   429 or `REFUSED_STREAM`, which prove that the server did not process the POST.
//! - Permits: at the end, nothing is queued or in flight, the limiters grant as much as at the start, and the budgets
//!   are full.
//! - Tasks and memory: at the end, no task is left. At most 64 KiB of memory are still allocated, however many calls
//!   were made. The count covers all memory that the callers' threads allocate and free. A warm-up run first allocates
//!   the memory that lives as long as the process.
//! - Key: no piece of a key, in any encoding, appears in errors, response headers, reports, or any crate's log at TRACE
//!   on the callers' threads. Every request contains a key of its API.
//!
//! Every random decision depends only on the seed and on the subject of the decision. The order of events depends on
//! the machine. The load test runs in a child process. The parent stops and continues the child by signals. After each
//! stop, all sockets and timers are late.

mod api;
mod history;
mod key_store;
mod load;
mod log_scanner;
mod phases;
mod process;
mod rng;
mod server;

use std::{
    env,
    time::{Duration, SystemTime},
};

fn seed() -> u64 {
    match env::var("SOAK_SEED") {
        Ok(seed) => seed.parse().expect("a number in SOAK_SEED"),
        #[allow(clippy::disallowed_methods, reason = "the time is used only as a seed")]
        Err(_) => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(),
    }
}

fn duration() -> Duration {
    let seconds =
        env::var("SOAK_SECONDS").map_or(5, |seconds| seconds.parse().expect("a number in SOAK_SECONDS"));
    Duration::from_secs(seconds)
}

#[test]
fn guarantees_hold_if_servers_fail_and_the_process_is_stopped() {
    process::run_in_child(seed(), duration());
}

#[test]
#[ignore = "another test runs it in a child process"]
fn child_process_runs_the_load_test() {
    process::run(seed(), duration());
}
