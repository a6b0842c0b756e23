use std::task::{Context, Poll};

use http::Request;
use tower::ServiceBuilder;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    default_headers::{DefaultHeaders, DefaultHeadersLayer},
    pool::{Route, RouteLayer},
};
use crate::{
    attempt_span::{AttemptSpan, AttemptSpanLayer},
    auth::{AnySign, Auth, AuthLayer},
    limit::{AnyLimiter, RateLimit, RateLimitLayer},
    request_id::{RequestIdLayer, SetRequestId},
    retry::{Retry, RetryLayer},
    timeout::{
        AttemptTimeout, AttemptTimeoutLayer, BodyIdleTimeout, BodyIdleTimeoutLayer, TotalTimeout,
        TotalTimeoutLayer,
    },
};

/// Adds the whole stack to a custom service. [`StackBuilder::layer`](super::StackBuilder::layer) creates it.
///
/// The inner service must be `Clone` and take a `Request<ReplayBody<B>>`, where `B` is the body of the caller's
/// requests: see [`ReplayBody`](crate::body::ReplayBody).
///
/// A call is `Send` if the inner service and its future are `Send`. A spawned task can then run the call:
///
/// ```
/// use std::convert::Infallible;
///
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_outbound::{ApiKey, Body, BoxError, body::ReplayBody, preset};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let service = tower::service_fn(|_: Request<ReplayBody<Body>>| async {
///     Ok::<_, Infallible>(Response::new(Body::empty()))
/// });
/// let rates = preset::currency_rates("https://rates.example.com")?.with_api_key(ApiKey::new("s3cret")?);
/// let stack = rates.layer()?.layer(service);
///
/// let request = Request::get("https://rates.example.com/v1/resources").body(Body::empty())?;
/// let response = tokio::spawn(async move { stack.oneshot(request).await }).await??;
/// assert_eq!(response.status(), 200);
/// # Ok(())
/// # }
/// ```
///
/// The fields are the layers, outermost first. [Insert a layer into a
/// stack](crate::guide::other_layers#insert-a-layer-into-a-stack) shows how to put another layer between two of them.
///
/// The struct is exhaustive, so a pattern with all fields does not compile if it misses a layer. A version that adds a
/// layer is therefore a breaking one.
///
/// # Errors
///
/// The service returns the [`Error`](crate::Error)s of its layers. It rejects a request with more than 6,000 header
/// fields. This maximum leaves room for the header fields that the layers and the client add. It also rejects a header
/// that [contradicts the URL or the body](crate::stack#headers).
///
/// # Clone
///
/// All clones of the layer, and all services made from them, share one limiter.
#[derive(Debug, Clone)]
pub struct StackLayer {
    /// Limits how long the body of a response may stall.
    pub body_idle_timeout: BodyIdleTimeoutLayer,
    /// Adds the request id, and logs each call.
    pub request_id: RequestIdLayer,
    /// Adds the default headers, and checks `host`, `content-length` and `transfer-encoding`.
    pub default_headers: DefaultHeadersLayer,
    /// Limits the time of the whole call.
    pub total_timeout: TotalTimeoutLayer,
    /// Retries failed attempts.
    pub retry: RetryLayer,
    /// Acquires the permits of each attempt.
    pub rate_limit: RateLimitLayer<AnyLimiter>,
    /// Sends an attempt to its member of a [`Pool`](super::Pool). Does nothing without a pool.
    pub route: RouteLayer,
    /// Measures each attempt.
    pub attempt_span: AttemptSpanLayer,
    /// Adds the credential. Does nothing without one.
    pub auth: AuthLayer<AnySign>,
    /// Limits the time of one attempt.
    pub attempt_timeout: AttemptTimeoutLayer,
}

impl<S> Layer<S> for StackLayer {
    type Service = StackService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        // The compiler checks this order of the layers against the type `StackService`. The two timeouts can share a
        // timer only here, because a rebuilt stack may have another layer between them.
        let layers = ServiceBuilder::new()
            .layer(&self.body_idle_timeout)
            .layer(&self.request_id)
            .layer(&self.default_headers)
            .layer(self.total_timeout.clone().in_stack())
            .layer(&self.retry)
            .layer(&self.rate_limit)
            .layer(&self.route)
            .layer(&self.attempt_span)
            .layer(&self.auth)
            .layer(self.attempt_timeout.in_stack())
            .service(inner);
        StackService { layers }
    }
}

/// The layers of a stack, outermost first.
type Layers<S> = BodyIdleTimeout<
    SetRequestId<
        DefaultHeaders<
            TotalTimeout<Retry<RateLimit<Route<AttemptSpan<Auth<AttemptTimeout<S>, AnySign>>>, AnyLimiter>>>,
        >,
    >,
>;

/// Calls the accessor `$step` of each layer, from the outermost layer to the inner service.
macro_rules! inner {
    ($layers:expr, $step:ident) => {
        $layers.$step().$step().$step().$step().$step().$step().$step().$step().$step().$step()
    };
}

/// The service of a [`StackLayer`](super::StackLayer).
///
/// # Clone
///
/// All clones of the service share one limiter.
#[derive(Debug, Clone)]
pub struct StackService<S> {
    layers: Layers<S>,
}

impl<S> StackService<S> {
    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        inner!(self.layers, get_ref)
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        inner!(self.layers, get_mut)
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        inner!(self.layers, into_inner)
    }
}

impl<S, B> Service<Request<B>> for StackService<S>
where
    Layers<S>: Service<Request<B>>,
{
    type Response = <Layers<S> as Service<Request<B>>>::Response;
    type Error = <Layers<S> as Service<Request<B>>>::Error;
    type Future = <Layers<S> as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.layers.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.layers.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_in_the_documented_order() {
        struct Client;
        let nested = std::any::type_name::<Layers<Client>>();
        let (mut rest, mut names, mut count) = (nested, Vec::new(), 0);
        for row in include_str!("../guide/order.md").lines().skip(2) {
            // Such as `[retry](crate::retry::RetryLayer)`.
            let layer = row.split('|').nth(1).unwrap().trim();
            if !layer.contains(", ") {
                names.push(layer.trim_start_matches('[').split(']').next().unwrap());
            }
            let Some((_, path)) = layer.split_once("(crate::") else { continue };
            let layer = path.rsplit("::").next().unwrap().split("Layer").next().unwrap();
            let at = rest.find(&format!("{layer}<"));
            rest = &rest[at.unwrap_or_else(|| panic!("{layer} is missing or out of order in {nested}"))..];
            count += 1;
        }
        assert_eq!(nested.matches('<').count(), count, "{nested}");
        let readme = include_str!("../../README.md");
        assert!(
            readme.contains(&format!("\n{}\n", names.join(" → "))),
            "{names:?} is not the order in README.md"
        );
    }
}
