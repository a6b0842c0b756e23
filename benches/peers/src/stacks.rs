//! The stacks that are built of the peers' layers, to do what ours does as far as they can: request id, log, limit,
//! retry and key. None has a deadline or a report, none reads what the server says of its limits.

use std::{error::Error, fmt::Display, time::Duration};

use http::{Request, Response};
use http_body::Body;
use tower::{Service, ServiceBuilder, limit::RateLimitLayer};
use tower_resilience_ratelimiter::RateLimiterServiceError;
use tower_resilience_retry::RetryLayer;

use crate::{Attempts, BoxError, resilience_layer, their_key, their_log, tower_retry};

/// Far above what any bench asks for: nothing waits.
const PLENTY: u32 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

/// What a stack is over.
pub trait Bottom<B, R>:
    Service<Request<B>, Response = Response<R>, Error: Error + Send + Sync + 'static, Future: Send + 'static>
    + Clone
    + Send
    + 'static
{
}

impl<S, B, R> Bottom<B, R> for S
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Error + Send + Sync + 'static,
    S::Future: Send + 'static,
{
}

/// What a stack takes and gives.
pub trait Payload: Body<Data: Send, Error: Display> + Send + 'static {}

impl<B: Body<Data: Send, Error: Display> + Send + 'static> Payload for B {}

/// tower-http and tower. What is sent again is not limited, for tower's `RateLimit` is no `Clone`; so nor is the stack,
/// and tasks can't share it.
pub fn tower_outside<S, B, R>(
    inner: S,
) -> impl Service<Request<B>, Response = Response<impl Payload>, Error: Into<BoxError>>
where
    S: Bottom<B, R>,
    B: Payload + Clone,
    R: Payload,
{
    ServiceBuilder::new()
        .layer(their_log())
        .layer(RateLimitLayer::new(u64::from(PLENTY), SECOND))
        .layer(tower_retry(None))
        .layer(their_key())
        .service(inner)
}

/// tower-http and tower, the limit behind a `Buffer`, so that what is sent again is limited, too.
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
    S: Bottom<B, R>,
    B: Payload + Clone,
    R: Payload<Error: Into<BoxError>>,
{
    ServiceBuilder::new()
        .layer(their_log())
        .layer(tower_retry(None))
        .buffer(1_024)
        .layer(RateLimitLayer::new(u64::from(PLENTY), SECOND))
        .layer(their_key())
        .service(inner)
}

/// tower-http and tower-resilience.
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
    S: Bottom<B, R>,
    B: Payload + Clone,
    R: Payload<Error: Into<BoxError>>,
{
    let retry = RetryLayer::<Request<B>, Response<R>, RateLimiterServiceError<S::Error>>::builder()
        .max_attempts_fn(|request| if request.method().is_idempotent() { 3 } else { 1 })
        .retry_on_response(|response| Attempts::fails(response.status().as_u16()))
        .exponential_backoff(Duration::from_millis(100))
        .build();
    Ok(ServiceBuilder::new()
        .layer(their_log())
        .layer(retry)
        .layer(resilience_layer(PLENTY as usize, SECOND, SECOND, Ok(0))?)
        .layer(their_key())
        .service(inner))
}
