//! Chaos: whole presets at high load against servers that do what they should not, and in the end the ledger balances.
//!
//! For minutes: `SOAK_SECONDS=600 cargo test --profile bench --test system soak:: -- --nocapture`. The seed is printed first, and
//! `SOAK_SEED=…` takes it again; without it every run has another one. Plain `cargo test` runs for 5 s.
//!
//! # What happens
//!
//! The three presets and one of its own over a sliding window, each with another key and another way to send it, are
//! called by 120 callers on two threads, over TLS. Their servers say HTTP/2 on one connection and HTTP/1.1 on the next; they
//! come late, cut connections before, in and after the handshake and in the middle of answers, write garbage, truncate
//! bodies, go silent, refuse streams, and send what is hard to read: `Retry-After` of 30 years, dates in the year 9999,
//! `RateLimit` of a thousand members, ids of 64 KiB. Callers give up at random moments, keys are withdrawn while they are
//! in use, quotas change, operators lift pauses. Then there is calm: the servers do as they should, until all budgets are
//! full again; then all is dropped.
//!
//! # What holds
//!
//! - Calls: each that began ended once: answered, failed by one kind, or cancelled. The log has one span for each, closed,
//!   and one line for each that was not cancelled. A report has every attempt that came to the server.
//! - Never twice: a POST without an idempotency key comes to its server once. Those that the protocol says were not
//!   processed may come again: answered 401, or `REFUSED_STREAM`. Of those with a key all have the same one.
//! - Window: no window with more than its quota, by the server's count.
//! - Never early: nothing has its permit between the moment when its limiter heard that it must wait and the end of that wait,
//!   or the moment when an operator lifted it.
//! - Permits: nobody waits, nothing is in flight, and what may go at once is what might in the beginning. Budgets are full.
//! - Tasks and memory: none is left, and 64 KiB at most, of however many calls. Exactly counted: two threads of
//!   callers with a runtime each, and the sum of what they allocated and freed. What is made once in a process is
//!   there after the first of two rounds, which warms up.
//! - Key: no piece of any, in any encoding, in what any crate logs at TRACE on the callers' threads, in errors,
//!   answers' heads and reports. At its server each request has a key, and it is that server's.
//!
//! # Why it does not flake
//!
//! Decisions come from the seed, and what they are about; the order of events is the machine's. So nothing is
//! asserted of how much happens, but in the paused test, and these things are not told where they can't be:
//!
//! - A request that is on its way for longer than a quarter of the margin counts in no window, because the quota
//!   guarantees nothing for it. It is stamped when it gets its permit, by the clock that servers and callers share. The
//!   limiter enforces the other quarters.
//! - What is heard and what leaves are told apart to the nanosecond where one thread has both, which is so for three of the four
//!   limiters. Where two threads share one, a permit may be stamped a moment after it was checked: the first
//!   500 ms of a pause do not count there.
//! - An answer that was lost on the way was not heard, and asks for nothing.
//! - An arrival counts as processed when its head is there, though its server may have failed before it did anything: more
//!   is asked of the client than of the truth.
//!
//! # How clocks pause
//!
//! In two ways, for neither does both. The soak runs in a child, which is stopped and continued by signals at random
//! moments: real sockets and real timers, that all are late at once when it goes on. And the same stacks run on tokio's paused clock over a
//! scripted service, where time jumps by up to 70 s: no sockets, but every promise to the nanosecond, with the presets' own
//! quotas, and the same calls from the same seed.

mod caller;
mod checks;
mod dice;
mod faults;
mod keys;
mod ledger;
mod listener;
mod paused;
mod process;
mod round;
mod server;
mod site;
mod wire;

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

fn lasting() -> Duration {
    let seconds = env::var("SOAK_SECONDS").map_or(5, |seconds| seconds.parse().expect("a number"));
    Duration::from_secs(seconds)
}

/// Chaos in real time, by a child that is stopped now and then.
#[test]
fn the_ledger_balances() {
    process::run(seed(), lasting());
}

#[test]
#[ignore = "run by the soak, in a process of its own"]
fn child() {
    process::child(seed(), lasting());
}
