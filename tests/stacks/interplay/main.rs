//! The layers among those of tower, tower-http and tower-resilience: what the table of `tower_outbound::interplay` says,
//! row by row, on paused time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod balance;
mod breaker;
mod buffer;
#[path = "../../support/capture.rs"]
mod capture;
mod concurrency;
mod decompression;
mod matrix;
mod permits;
mod redirect;
mod shed;
#[path = "../../support/scripted.rs"]
mod support;
mod timeout;
mod trace;
mod unready;

use std::time::Duration;

use tower_outbound::{ApiKey, Quota, Report, call::Outcome, limit::TokenBucket, preset, stack::StackBuilder};

use self::support::ScriptedService;

const URI: &str = "https://api.example.com/v1";

fn rates() -> StackBuilder {
    preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("s3cret").unwrap())
}

/// At most so many in 10 s, half of them at once.
fn bucket(limit: u32) -> TokenBucket {
    let quota = Quota::new(limit, Duration::from_secs(10)).unwrap();
    TokenBucket::new(quota.with_burst(limit / 2).unwrap().without_margin())
}

/// The most requests that came within any 10 s.
fn worst_window(probe: &ScriptedService) -> u64 {
    probe.arrivals().most_in(Duration::from_secs(10))
}

fn methods(probe: &ScriptedService) -> Vec<String> {
    probe.seen().iter().map(|seen| seen.head.method.to_string()).collect()
}

fn outcomes(report: &Report) -> Vec<Outcome> {
    report.attempts().iter().filter_map(|attempt| attempt.outcome).collect()
}
