//! Creates stacks of the peers' layers, as close to this crate's preset as possible: request id, log, limit, retry and
//! key.
//!
//! Unlike the preset, these stacks have no deadline and no report, and do not read rate-limit headers.

use std::{error::Error, fmt::Display, time::Duration};

use http::{Request, Response};
use http_body::Body;
use tower::{Service, ServiceBuilder, limit::RateLimitLayer};
use tower_resilience_ratelimiter::RateLimiterServiceError;
use tower_resilience_retry::RetryLayer;

use crate::{BoxError, RetryPolicy, resilience_layer, tower_http_auth, tower_http_log, tower_retry};

/// A limit so high that no call of a bench waits.
const UNREACHED_LIMIT: u32 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

/// The type of the innermost service of a stack.
pub trait InnerService<B, R>:
    Service<Request<B>, Response = Response<R>, Error: Error + Send + Sync + 'static, Future: Send + 'static>
    + Clone
    + Send
    + 'static
{
}

impl<S, B, R> InnerService<B, R> for S
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Error + Send + Sync + 'static,
    S::Future: Send + 'static,
{
}

/// The trait bounds of a request or response body.
pub trait Payload: Body<Data: Send, Error: Display> + Send + 'static {}

impl<B: Body<Data: Send, Error: Display> + Send + 'static> Payload for B {}

/// Creates a stack of layers of tower-http and tower. The stack does not limit retries.
///
/// tower's `RateLimit` is not `Clone`, so the limit is outside the retry layer. The stack is not `Clone` either, so
/// tasks cannot share it.
pub fn tower_unlimited_retries<S, B, R>(
    inner: S,
) -> impl Service<Request<B>, Response = Response<impl Payload>, Error: Into<BoxError>>
where
    S: InnerService<B, R>,
    B: Payload + Clone,
    R: Payload,
{
    ServiceBuilder::new()
        .layer(tower_http_log())
        .layer(RateLimitLayer::new(u64::from(UNREACHED_LIMIT), SECOND))
        .layer(tower_retry(None))
        .layer(tower_http_auth())
        .service(inner)
}

/// Creates a stack of layers of tower-http and tower. The limit is in a `Buffer` inside the retry layer, so it also
/// applies to retries.
pub fn tower_buffered<S, B, R>(
    inner: S,
) -> impl Service<
    Request<B>,
    Response = Response<impl Payload<Data = R::Data, Error: Into<BoxError>>>,
    Error: Into<BoxError>,
    Future: Send,
> + Clone
+ Send
+ 'static
where
    S: InnerService<B, R>,
    B: Payload + Clone,
    R: Payload<Error: Into<BoxError>>,
{
    ServiceBuilder::new()
        .layer(tower_http_log())
        .layer(tower_retry(None))
        .buffer(1_024)
        .layer(RateLimitLayer::new(u64::from(UNREACHED_LIMIT), SECOND))
        .layer(tower_http_auth())
        .service(inner)
}

/// Creates a stack of tower-http and tower-resilience.
pub fn tower_resilience<S, B, R>(
    inner: S,
) -> Result<
    impl Service<
        Request<B>,
        Response = Response<impl Payload<Data = R::Data, Error: Into<BoxError>>>,
        Error: Into<BoxError>,
        Future: Send,
    > + Clone
    + Send
    + 'static,
    BoxError,
>
where
    S: InnerService<B, R>,
    B: Payload + Clone,
    R: Payload<Error: Into<BoxError>>,
{
    let retry = RetryLayer::<Request<B>, Response<R>, RateLimiterServiceError<S::Error>>::builder()
        .max_attempts_fn(|request| if request.method().is_idempotent() { 3 } else { 1 })
        .retry_on_response(|response| RetryPolicy::is_retryable(response.status().as_u16()))
        .exponential_backoff(Duration::from_millis(100))
        .build();
    Ok(ServiceBuilder::new()
        .layer(tower_http_log())
        .layer(retry)
        .layer(resilience_layer(UNREACHED_LIMIT as usize, SECOND, SECOND, Ok(0))?)
        .layer(tower_http_auth())
        .service(inner))
}
