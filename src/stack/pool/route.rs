use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, header::HOST};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::Pool;
use crate::{
    auth::rejects_key,
    call::{CallContext, Chosen, KeyReplaced, Member, Needs, delay_of},
    clock,
    error::{BoxError, Error, MaybeRejected},
    limit::PermitRequest,
    policy::grpc::Code,
    stack::BaseUrl,
};

/// Sends the requests of a stack with a [`Pool`] to the member whose permits they have. Does nothing without a pool.
/// [`StackLayer`](crate::stack::StackLayer) contains this layer.
#[derive(Debug, Clone)]
pub struct RouteLayer(Option<Arc<Routing>>);

#[derive(Debug)]
struct Routing {
    /// The base URL that the member's base URL replaces.
    base: BaseUrl,
    pool: Pool,
}

impl RouteLayer {
    pub(in crate::stack) fn new(base: BaseUrl, pool: Pool) -> Self {
        Self(Some(Arc::new(Routing { base, pool })))
    }

    /// Creates a layer that does nothing.
    pub(in crate::stack) fn none() -> Self {
        Self(None)
    }
}

impl<S> Layer<S> for RouteLayer {
    type Service = Route<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Route { inner, routing: self.0.clone() }
    }
}

/// The service of [`RouteLayer`].
#[derive(Debug, Clone)]
pub struct Route<S> {
    inner: S,
    /// `None` without a pool.
    routing: Option<Arc<Routing>>,
}

impl<S> Route<S> {
    inner_service!();
}

impl<S, B, R> Service<Request<B>> for Route<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.routing.clone() {
            None => ResponseFuture {
                future: MaybeRejected::Calling { future: self.inner.call(request) },
                routed: None,
            },
            Some(routing) => self.call_member(&routing, request),
        }
    }
}

impl<S> Route<S> {
    #[inline(never)]
    fn call_member<B>(&mut self, routing: &Arc<Routing>, mut request: Request<B>) -> ResponseFuture<S::Future>
    where
        S: Service<Request<B>>,
    {
        let (future, routed) = match routing.route(&mut request) {
            Ok(routed) => (MaybeRejected::Calling { future: self.inner.call(request) }, Some(routed)),
            Err(error) => (MaybeRejected::rejected(error), None),
        };
        ResponseFuture { future, routed }
    }
}

impl Routing {
    /// Replaces the base URL of the request by that of its member.
    fn route<B>(self: &Arc<Self>, request: &mut Request<B>) -> Result<Box<Routed>, Error> {
        let call = request.extensions().get::<CallContext>().cloned();
        let index =
            call.as_ref().and_then(|call| call.member(self.pool.id())).map_or(0, |member| member.index);
        let Some(member) = self.pool.members.get(index) else {
            return Err(Error::invalid_request("the call belongs to another pool"));
        };
        let uri = std::mem::take(request.uri_mut());
        *request.uri_mut() = self.base.rebase(uri, &member.base)?;
        if !self.base.origin.covers(request.uri()) {
            // The header has the host of the builder's base URL. The client adds the host of the member.
            request.headers_mut().remove(HOST);
        }
        if let Some(call) = &call {
            call.route_attempt(index, request.uri());
        }
        request.extensions_mut().insert(Chosen { pool: self.pool.id(), index });
        Ok(Box::new(Routed { routing: Arc::clone(self), call, index }))
    }
}

/// A request that was sent to a member.
#[derive(Debug)]
struct Routed {
    routing: Arc<Routing>,
    call: Option<CallContext>,
    index: usize,
}

impl Routed {
    /// Records whether another member can serve the next attempt before the deadline. If so, marks the rejection of a
    /// key that has no successor, so that the request is resent to another member. The request stays with a member that
    /// may have processed an earlier attempt.
    fn end<R>(&self, response: &mut Response<R>) {
        let pool = &self.routing.pool;
        let failed = response.status().as_u16() >= 400
            || Code::in_head(response.headers()).is_some_and(|code| code != Code::OK);
        let Some(call) = self.call.as_ref().filter(|_| failed) else { return };
        let Some(member) = call.member(pool.id()).filter(|member| member.index == self.index) else { return };
        let left = call.deadline().map(|ends| ends.saturating_duration_since(clock::now()));
        let Needs { cost, amounts, priority, max_queue, .. } = member.needs;
        let request = PermitRequest::new().with_cost(cost).with_amounts(amounts);
        let request = request.with_priority(priority).with_max_queue(max_queue);
        let wait = |index: &usize| {
            let [wait, _] = pool.members[*index].limiter.expected_wait(&request)?;
            Some(wait.max(delay_of(&member.delays, *index)))
        };
        let must_leave = rejects_key(response) && pool.must_leave(self.index);
        let all: Vec<_> = (0..pool.members.len()).collect();
        let others = pool.eligible(&all, must_leave, &amounts);
        let others =
            others.iter().filter(|index| **index != self.index && !pool.members[**index].keys.has_failed());
        let is_in_time = |wait: &Duration| {
            wait.is_zero() || [left, member.needs.max_wait].iter().flatten().all(|most| wait < most)
        };
        let alternative = others.filter_map(wait).min().filter(is_in_time);
        if must_leave && alternative.is_some() && !member.is_bound {
            response.extensions_mut().insert(KeyReplaced);
        }
        call.set_member(Member { alternative, ..member });
    }
}

pin_project! {
    /// The future of [`Route`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: MaybeRejected<F>,
        // `None` without a pool.
        routed: Option<Box<Routed>>,
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut result = ready!(this.future.poll(cx));
        if let Some(routed) = this.routed {
            let _ = result.as_mut().map(|response| routed.end(response));
        }
        Poll::Ready(result)
    }
}
