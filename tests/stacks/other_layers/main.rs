//! Tests layers of tower, tower-http and tower-resilience around, between and inside the layers of this crate, on
//! paused time. The page `tower_outbound::guide::other_layers` documents the tested effects.
//! Also tests wrong orders of this crate's own layers, which the page `tower_outbound::guide::stack` documents.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod balance;
mod buffer;
#[path = "../../support/capture.rs"]
mod capture;
mod circuit_breaker;
mod combinations;
mod concurrency_limit;
mod decompression;
mod follow_redirect;
mod load_shed;
mod own_layers;
#[path = "../../support/scripted.rs"]
mod support;
mod timeout;
mod trace;

use std::time::Duration;

use tower_outbound::{
    ApiKey, Quota, Report, call::Outcome, limit::LocalLimiter, preset, stack::StackBuilder,
};

use self::support::ScriptedService;

const URI: &str = "https://api.example.com/v1";

fn rates() -> StackBuilder {
    preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("s3cret").unwrap())
}

/// Creates a token bucket that allows `limit` requests in any 10 s, and half of that number in a burst.
fn bucket(limit: u32) -> LocalLimiter {
    let quota = Quota::new(limit, Duration::from_secs(10)).unwrap();
    LocalLimiter::token_bucket(quota.with_burst(limit / 2).unwrap().without_margin())
}

/// Returns the largest number of requests in any 10 s.
fn fullest_window(client: &ScriptedService) -> u64 {
    client.arrivals().most_in(Duration::from_secs(10))
}

fn methods(client: &ScriptedService) -> Vec<String> {
    client.seen().iter().map(|seen| seen.head.method.to_string()).collect()
}

fn outcomes(report: &Report) -> Vec<Outcome> {
    report.attempts().iter().filter_map(|attempt| attempt.outcome).collect()
}
