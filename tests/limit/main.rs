//! Tests of the limiters and of `RateLimitLayer`, on tokio's paused clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod absent_waiters;
mod adaptive;
mod adaptive_probe;
mod batches;
mod clock_jumps;
mod custom_limiter;
mod expiry;
mod fifo;
mod grants;
mod keyed;
mod layer;
mod margin;
mod memory;
mod pause;
mod priorities;
mod properties;
mod quota_changes;
mod refusals;
mod server_kinds;
mod server_limits;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
mod try_acquire;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    num::NonZeroU32,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::Instant;
use tower::Service;
use tower_outbound::{
    Quota,
    limit::{Limiter, LocalLimiter, PermitRequest},
};

/// Returns a token bucket without a safety margin. The bucket refills `limit - burst` permits every `window` seconds.
fn bucket(limit: u32, window: u64, burst: u32) -> LocalLimiter {
    let quota = Quota::new(limit, Duration::from_secs(window)).unwrap();
    LocalLimiter::token_bucket(quota.with_burst(burst).unwrap().without_margin())
}

/// Returns a token bucket that refills `rate` permits per second, without a safety margin.
fn refilling(rate: u32, burst: u32) -> LocalLimiter {
    bucket(rate + burst, 1, burst)
}

/// Returns a quota with a burst of one permit and a refill of one permit per second.
fn one_per_second() -> Quota {
    Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(1).unwrap().without_margin()
}

/// A limiter that a test can pause directly, without a response from a server.
trait Pause: Limiter {
    fn pause(&self, length: Duration);
}

impl Pause for LocalLimiter {
    fn pause(&self, length: Duration) {
        self.pause_until(Instant::now() + length);
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn permits(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn costing(number: u32) -> PermitRequest {
    PermitRequest::new().with_cost(permits(number))
}

/// Returns a service that immediately responds with an empty 200.
fn ok_service()
-> impl Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send> + Clone + Send {
    tower::service_fn(|_: Request<()>| ready(Ok(Response::new(()))))
}

/// A service that becomes ready `delay` after the first `poll_ready`. Each call immediately returns an empty 200.
#[derive(Clone)]
struct ReadyAfter {
    delay: Duration,
    first_polled_at: Option<Instant>,
}

impl ReadyAfter {
    fn new(delay: Duration) -> Self {
        Self { delay, first_polled_at: None }
    }
}

impl Service<Request<()>> for ReadyAfter {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let ready_at = *self.first_polled_at.get_or_insert_with(Instant::now) + self.delay;
        if ready_at <= Instant::now() {
            return Poll::Ready(Ok(()));
        }
        let waker = cx.waker().clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(ready_at).await;
            waker.wake();
        });
        Poll::Pending
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}
