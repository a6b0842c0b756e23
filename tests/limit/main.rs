//! Tests of the limiters and of `RateLimitLayer`. The [simulation] checks the guarantees of the core without a runtime.
//! The other tests run on tokio's paused clock. Most check what the core has no part in: futures, wakers, runtimes,
//! clocks, layers and headers. `units`, `bucket_quota`, `reported_quotas`, `server_limits` and `expiry` check the
//! arithmetic of the core through the public API. The simulation has no store of permits, which `permit_source` and
//! `joint` test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod absent_waiters;
mod adaptive;
mod batches;
mod bucket_quota;
mod clock_jumps;
mod custom_limiter;
mod expiry;
mod fifo;
mod in_flight;
mod joint;
mod joint_progress;
mod keyed;
mod layer;
mod learned_unit_changes;
mod learned_units;
mod local_limiter;
mod memory;
mod permit_source;
mod reported_quotas;
mod server_kinds;
mod server_limits;
mod shared_quota;
mod simulation;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
mod units;

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    future::{Ready, ready},
    iter::repeat_n,
    num::NonZeroU32,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    task::Poll,
    thread,
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use proptest::{collection::vec, prelude::*};
use tokio::{
    runtime::Builder,
    sync::Semaphore,
    task::{JoinSet, yield_now},
    time::{Instant, advance, sleep, sleep_until, timeout},
};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower::{
    Layer, Service, ServiceExt,
    limit::{ConcurrencyLimit, ConcurrencyLimitLayer},
};
use tower_outbound::{
    ApiKey, Body, Error, ErrorKind, Quota, Report,
    call::RequestHead,
    error::{Reason, Refusal},
    limit::{
        Acquire, AnyLimiter, Effect, Keyed, Limiter, LocalLimiter, Permit, PermitCost, PermitIssuer,
        PermitRequest, Priority, RateLimit, RateLimitLayer, ResponseInfo, SelectLimiter, Snapshot,
    },
    preset,
    test_util::{Arrivals, LimitHeaders, ScriptedResponse, ScriptedService, ServerLimit},
};

use self::{
    support::cases::cases,
    traffic::{Count, Traffic, runs_slow_cases, some},
};

/// Returns a quota without a safety margin. The window is in milliseconds.
fn quota(limit: u32, window: u64, burst: u32) -> Quota {
    Quota::new(limit, millis(window)).unwrap().with_burst(burst).unwrap().without_margin()
}

/// Returns a token bucket that refills `rate` permits per second, without a safety margin.
fn refilling(rate: u32, burst: u32) -> LocalLimiter {
    LocalLimiter::token_bucket(quota(rate + burst, 1_000, burst))
}

/// Returns a quota with a burst of one permit and a refill of one permit per second.
fn one_per_second() -> Quota {
    quota(11, 10_000, 1)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
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

/// Returns a request that was polled once and is queued.
#[track_caller]
fn queued(limiter: &impl Limiter, request: &PermitRequest) -> task::Spawn<Acquire> {
    let mut waiter = task::spawn(limiter.acquire_with(request));
    assert_pending!(waiter.poll());
    waiter
}

/// Runs a test on a paused clock.
fn run_paused<F: Future>(test: F) -> F::Output {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(test)
}

/// Returns a service that immediately responds with an empty 200.
fn ok_service()
-> impl Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send> + Clone + Send {
    tower::service_fn(|_: Request<()>| ready(Ok(Response::new(()))))
}

/// Returns an [`ok_service`] that becomes ready after `delay` milliseconds.
fn ready_after(
    delay: u64,
) -> impl Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send> + Clone + Send {
    let slots = Arc::new(Semaphore::new(if delay == 0 { 100 } else { 0 }));
    let filled = Arc::clone(&slots);
    tokio::spawn(async move {
        sleep(millis(delay)).await;
        filled.add_permits(100);
    });
    ConcurrencyLimit::with_semaphore(ok_service(), slots)
}
