use std::task::{Context, Poll};

use http::Request;
use tower_service::Service;

use super::{default_headers::DefaultHeaders, pool::Route};
use crate::{
    attempt_span::AttemptSpan,
    auth::{AnySign, Auth},
    limit::{AnyLimiter, RateLimit},
    request_id::SetRequestId,
    retry::Retry,
    timeout::{AttemptTimeout, BodyIdleTimeout, TotalTimeout},
};

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
    pub(super) layers: Layers<S>,
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
