//! The limiter and its layer, on paused time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod changed;
mod corners;
mod grants;
mod keyed;
mod layer;
mod line;
mod margin;
mod memory;
mod pause;
mod properties;
mod queue;
mod server_limits;
#[path = "../support/mod.rs"]
mod support;

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;
use tower_outbound::{
    Quota,
    limit::{Limiter, PermitRequest, SlidingWindow, TokenBucket},
};

fn bucket(limit: u32, window: u64, burst: u32) -> TokenBucket {
    let quota = Quota::new(limit, Duration::from_secs(window)).unwrap();
    TokenBucket::new(quota.with_burst(burst).unwrap().without_margin())
}

/// A limiter that a test pauses by hand.
trait Pause: Limiter {
    fn pause(&self, length: Duration);
}

impl Pause for TokenBucket {
    fn pause(&self, length: Duration) {
        self.pause_until(Instant::now() + length);
    }
}

impl Pause for SlidingWindow {
    fn pause(&self, length: Duration) {
        self.pause_until(Instant::now() + length);
    }
}

fn permits(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn costing(number: u32) -> PermitRequest {
    PermitRequest::new().with_cost(permits(number))
}
