use std::{fmt, sync::Arc};

use http::HeaderValue;
use tower::{ServiceBuilder, util::Either};
use tower_http::set_header::{SetRequestHeader, SetRequestHeaderLayer};
use tower_layer::Layer;

use crate::{
    attempt::{Attempt, AttemptLayer},
    auth::{Auth, AuthLayer, Authorize, Keys, Sign, SignLayer, Signed},
    limit::{AnySelect, RateLimit, RateLimitLayer},
    request_id::{RequestId, RequestIdLayer},
    retry::{Retry, RetryLayer},
    timeout::{BodyIdleTimeout, BodyIdleTimeoutLayer, Timeout, TimeoutLayer},
};

/// The whole stack over a service of your own: made by [`Preset::layer`](super::Preset::layer).
///
/// The inner service takes `Request<ReplayBody<B>>`, where `B` is the body of the requests that you send; see
/// [`ReplayBody`](crate::body::ReplayBody). It must be `Clone`.
///
/// # Clone
///
/// Clones, and the services that they make, share the limiter.
#[derive(Clone)]
pub struct PresetLayer {
    pub(super) body_idle: BodyIdleTimeoutLayer,
    pub(super) request_id: RequestIdLayer,
    pub(super) content_type: SetRequestHeaderLayer<HeaderValue>,
    pub(super) total: TimeoutLayer,
    pub(super) retry: RetryLayer,
    pub(super) limit: RateLimitLayer<AnySelect>,
    pub(super) attempt: AttemptLayer,
    pub(super) auth: CredentialLayer,
    pub(super) attempt_timeout: TimeoutLayer,
    pub(super) keys: Option<Keys>,
}

impl PresetLayer {
    /// The keys that it sends, where it is a key that it sends.
    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }
}

/// The service that a [`PresetLayer`] makes, its layers in their order, outermost first.
pub type PresetService<S> = BodyIdleTimeout<
    RequestId<
        SetRequestHeader<
            Timeout<Retry<RateLimit<Attempt<Credentialed<Timeout<S>>>, AnySelect>>>,
            HeaderValue,
        >,
    >,
>;

pub(super) type CredentialLayer = Either<AuthLayer<Arc<dyn Authorize>>, SignLayer<Arc<dyn Sign>>>;

/// A service whose requests get a key, or a signature.
pub type Credentialed<S> = Either<Auth<S, Arc<dyn Authorize>>, Signed<S, Arc<dyn Sign>>>;

impl<S> Layer<S> for PresetLayer {
    type Service = PresetService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        // The order of the stack, for all presets. The compiler holds the type above to it.
        ServiceBuilder::new()
            .layer(&self.body_idle)
            .layer(&self.request_id)
            .layer(&self.content_type)
            .layer(&self.total)
            .layer(&self.retry)
            .layer(&self.limit)
            .layer(&self.attempt)
            .layer(&self.auth)
            .layer(&self.attempt_timeout)
            .service(inner)
    }
}

impl fmt::Debug for PresetLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PresetLayer")
            .field("request_id", &self.request_id)
            .field("total", &self.total)
            .field("retry", &self.retry)
            .field("limit", &self.limit)
            .field("attempt", &self.attempt)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("body_idle", &self.body_idle)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_documented_one() {
        struct Client;
        let nested = std::any::type_name::<PresetService<Client>>();
        let order = [
            "BodyIdleTimeout<",
            "RequestId<",
            "Timeout<",
            "Retry<",
            "RateLimit<",
            "Attempt<",
            "Auth<",
            "Timeout<",
            "Client",
        ];
        let mut rest = nested;
        for layer in order {
            let at =
                rest.find(layer).unwrap_or_else(|| panic!("{layer} missing or out of order in {nested}"));
            rest = &rest[at + layer.len()..];
        }
    }
}
