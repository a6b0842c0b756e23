//! Creates the limiters of the peers with comparable settings.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    num::NonZeroU32,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower::{Layer, Service, ServiceExt, limit::RateLimit};
use tower_resilience_ratelimiter::{RateLimiter as Resilience, RateLimiterLayer, WindowType};

use crate::{BoxError, poll_once};

/// The type of a service that responds immediately.
pub type NoOp = tower::util::ServiceFn<fn(()) -> Ready<Result<(), Infallible>>>;

/// Creates a service that responds immediately.
pub fn no_op() -> NoOp {
    tower::service_fn(|()| ready(Ok(())))
}

/// Creates a quota of governor that grants `burst` permits immediately and refills one permit per interval.
pub fn governor_quota(interval: Duration, burst: u32) -> Result<governor::Quota, BoxError> {
    let burst = NonZeroU32::new(burst).ok_or("the burst of a governor quota is 0")?;
    Ok(governor::Quota::with_period(interval)
        .ok_or("the refill interval of a governor quota is 0")?
        .allow_burst(burst))
}

/// Creates tower's `RateLimit` around a service that does nothing.
pub fn tower_limit(limit: u64, window: Duration) -> RateLimit<NoOp> {
    RateLimit::new(no_op(), tower::limit::rate::Rate::new(limit, window))
}

/// Creates a leaky bucket that starts with `refill` permits and refills the same number per interval. `max` overrides
/// the default capacity.
pub fn leaky(refill: usize, interval: Duration, max: Option<usize>) -> Arc<leaky_bucket::RateLimiter> {
    let mut builder = leaky_bucket::RateLimiter::builder();
    builder.initial(refill).refill(refill).interval(interval).fair(true);
    if let Some(max) = max {
        builder.max(max);
    }
    Arc::new(builder.build())
}

/// Creates a limiter of the crate ratelimit: a full bucket of `limit` permits that are refilled within the window.
pub fn ratelimit(limit: u64, window: Duration) -> Result<Arc<ratelimit::Ratelimiter>, BoxError> {
    let builder = ratelimit::Ratelimiter::builder(limit).period(window).initial_available(limit);
    Ok(Arc::new(builder.build().map_err(|error| error.to_string())?))
}

/// Creates a limiter of tower-resilience around a service that does nothing.
///
/// If `strategy` is `Ok`, the limiter is a token bucket with the given burst. If `strategy` is `Err`, the limiter uses
/// the given type of window.
pub fn resilience(
    limit: usize,
    window: Duration,
    timeout: Duration,
    strategy: Result<usize, WindowType>,
) -> Result<Resilience<NoOp>, BoxError> {
    Ok(resilience_layer(limit, window, timeout, strategy)?.layer(no_op()))
}

/// Creates a limiter of tower-resilience as a layer.
pub fn resilience_layer(
    limit: usize,
    window: Duration,
    timeout: Duration,
    strategy: Result<usize, WindowType>,
) -> Result<RateLimiterLayer, BoxError> {
    let builder = RateLimiterLayer::builder();
    let builder = builder.limit_for_period(limit).refresh_period(window).timeout_duration(timeout);
    let builder = match strategy {
        Ok(burst) => builder.burst_size(burst),
        Err(strategy) => builder.window_type(strategy),
    };
    Ok(builder.build().map_err(|error| error.to_string())?)
}

/// Returns whether the service admits a request immediately.
pub fn is_admitted<S: Service<(), Response = ()>>(service: &mut S) -> bool {
    let cx = &mut Context::from_waker(Waker::noop());
    matches!(service.poll_ready(cx), Poll::Ready(Ok(())))
        && matches!(poll_once(service.call(())), Some(Ok(())))
}

/// Waits until the service admits a request.
pub async fn wait_for<S: Service<(), Response = ()>>(mut service: S) -> bool {
    match service.ready().await {
        Ok(service) => service.call(()).await.is_ok(),
        Err(_) => false,
    }
}
