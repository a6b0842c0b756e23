use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use http::Request;
use pin_project_lite::pin_project;
use tower::util::Either;
use tower_service::Service;

use super::default_headers::DefaultHeaders;
use crate::{
    attempt_span::AttemptSpan,
    auth::{Auth, SignService},
    limit::{AnySelect, RateLimit},
    request_id::SetRequestId,
    retry::Retry,
    timeout::{BodyIdleTimeout, Timeout},
};

/// The layers of a stack, outermost first.
type Layers<S> = BodyIdleTimeout<
    SetRequestId<DefaultHeaders<Timeout<Retry<RateLimit<AttemptSpan<Credentialed<Timeout<S>>>, AnySelect>>>>>,
>;

/// A service whose requests get a key, a signature, or no credential.
type Credentialed<S> = Either<Auth<S>, Either<SignService<S>, S>>;

/// The service of a [`StackLayer`](super::StackLayer).
///
/// # Clone
///
/// Clones share the limiter.
#[derive(Clone)]
pub struct StackService<S> {
    layers: Layers<S>,
}

impl<S> StackService<S> {
    pub(super) fn new(layers: Layers<S>) -> Self {
        Self { layers }
    }
}

impl<S, B> Service<Request<B>> for StackService<S>
where
    Layers<S>: Service<Request<B>>,
{
    type Response = <Layers<S> as Service<Request<B>>>::Response;
    type Error = <Layers<S> as Service<Request<B>>>::Error;
    type Future = ResponseFuture<<Layers<S> as Service<Request<B>>>::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.layers.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture { inner: self.layers.call(request) }
    }
}

impl<S> fmt::Debug for StackService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackService").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of a call through a [`StackService`].
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<F: Future> Future for ResponseFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().inner.poll(cx)
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_documented_order() {
        struct Client;
        let nested = std::any::type_name::<Layers<Client>>();
        let order = [
            "BodyIdleTimeout<",
            "SetRequestId<",
            "DefaultHeaders<",
            "Timeout<",
            "Retry<",
            "RateLimit<",
            "AttemptSpan<",
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
