mod limiter;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, header::HOST};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

pub(super) use self::limiter::PoolLimiter;
use super::BaseUrl;
#[cfg(feature = "client")]
use crate::auth::Origin;
use crate::{
    auth::{AnySign, Credential, KeyPlacement, KeySource, rejects_key},
    call::{CallContext, Chosen, KeyReplaced, Needs, delay_of},
    clock,
    config::InvalidConfig,
    error::{BoxError, Error, MaybeRejected},
    limit::{LocalLimiter, PermitRequest},
    policy::{
        dialect::{Dialect, LeavesMember},
        feedback::Reading,
        grpc::Code,
    },
};

/// Several keys or regions of one service, each with its own limiter. Each request goes to the member that is expected
/// to grant its permits first.
///
/// ```
/// use tower_outbound::{ApiKey, Client, InvalidConfig, Quota, limit::LocalLimiter, stack::Pool};
///
/// fn model(eu: ApiKey, us: ApiKey) -> Result<Client, InvalidConfig> {
///     let quota = Quota::per_minute(500)?;
///     let pool = Pool::new([
///         ("https://eu.api.example.com/v1", eu, LocalLimiter::paced_window(quota)),
///         ("https://us.api.example.com/v1", us, LocalLimiter::paced_window(quota)),
///     ])?;
///     Client::builder("https://eu.api.example.com/v1")?.with_pool(pool).client()
/// }
/// # model(ApiKey::new("k1")?, ApiKey::new("k2")?)?;
/// # Ok::<(), InvalidConfig>(())
/// ```
///
/// # Members
///
/// - The request's URL begins with the builder's base URL. The base URL of the member replaces it. Do not use a layer
///   above the stack that follows redirects, because the location in a response is a URL of the member.
/// - A key is sent only to the origin of its member, and only with requests that go to this member. Several members may
///   have the same URL. A request that already has a credential is rejected.
/// - A response changes only the limiter of its member. After a throttled response, only this limiter pauses.
/// - A request waits until the key source of each member has a valid key or has failed. While a source has no valid key
///   and has not failed, a fetch that hangs delays the requests to all members until its
///   [timeout](crate::auth::RefreshingKey::with_timeout), 10 s by default. This timeout should be shorter than the
///   total timeout.
/// - Once a key source has failed, its member gets no further request until the source has a key, unless the key
///   sources of all members have failed. A request in its queue moves to another member that is expected to grant the
///   permits in time. If there is none, it is sent in its turn. A request that was assigned to the member before
///   returns an error.
/// - A key source also counts as failed while the server rejects its key with a 401 and it has no other key, such as a
///   fixed key. The request is then resent once to another member, unless its member may have
///   [processed](crate::call::Delivery) an earlier attempt. If no other member with a key is expected to grant the
///   permits in time, the 401 is returned.
/// - A request is sent to the failed member as a probe after each delay of
///   [`with_backoff`](crate::auth::RefreshingKey::with_backoff), or after 1 to 20 s for a fixed key or a file. A probe
///   that may not be resent returns its 401, such as a request
///   [`without_retries`](crate::retry::RetryOverride::without_retries). The member gets requests again after any
///   response except a 401, 403, 429 or 5xx.
/// - While a closure fetches another key after a 401, requests wait for it. If this fetch fails, only the calls that
///   were already resent return the 401.
///
/// # Choice
///
/// A request goes only to members whose quotas of tokens, points or bytes are at least its estimate. If no member has
/// such quotas, it may go to any member. If several members can grant the permits now, requests take these members in
/// turn. Otherwise, a request joins the queue of the member with the earliest forecast. There is no forecast while a
/// member has its maximum of requests in flight, or waits for the response to a probe. The pool then assumes a wait of
/// at least 100 ms, or of at least 100 ms for each round of queued requests that the maximum allows at a time.
///
/// A waiter chooses again in these cases:
///
/// - Its member refuses it, for example because a pause would exceed its deadline. The request is refused if all
///   members refuse it.
/// - Another member can grant the permits now, or in less than half of the remaining forecast time. A waiter checks
///   this at least once a second, so a new request may take these permits first.
/// - The forecast time has passed, and another member is expected to grant the permits earlier.
///
/// It then joins the end of the queue of that member.
///
/// # Retries
///
/// A retry goes to another member only if
///
/// - no member may have [processed](crate::call::Delivery) an earlier attempt of the call, or
/// - the method is safe (GET, HEAD, OPTIONS or TRACE), or
/// - the request is declared idempotent, by a [`RetryOverride`](crate::retry::RetryOverride::with_idempotent) or by
///   [`with_idempotent`](super::StackBuilder::with_idempotent).
///
/// An idempotency key does not suffice, because a service recognizes it within one account only.
///
/// If the retry may go to another member, a requested delay or the backoff after a throttled response does not delay a
/// retry that another member with a key can serve earlier and before the deadline. The retry then goes to the member
/// that can grant its permits first. If several members can grant them now, it goes to another member than the last
/// attempt. A resend after a 401 goes to the same member if its key is replaced.
///
/// A [permanent](crate::limit::ServerSignal::with_permanent) signal concerns one member. This member pauses as after a
/// throttled response without a delay, and the retry goes to another member that is expected to grant the permits in
/// time. The call fails without a retry, as without a pool, if it may not go to such a member. It also does if the last
/// signal of each such member was permanent, too, and then no member pauses.
///
/// # Logs
///
/// The report has the [member](crate::call::AttemptReport::member) of each attempt. The event of a call has the member
/// and the path of the last attempt, and the event of a pause has the member that pauses. The URL in the span `call`
/// is that of the builder. The URL in the span `attempt` is that of the member. Metrics have no label for the member:
/// keep clones of their limiters for their [snapshots](LocalLimiter::snapshot).
///
/// # Clone
///
/// All clones share the limiters and the key sources.
#[derive(Debug, Clone)]
pub struct Pool {
    members: Arc<[Member]>,
}

#[derive(Debug)]
struct Member {
    base: BaseUrl,
    keys: KeySource,
    limiter: LocalLimiter,
    /// Whether the signal of the last response was permanent.
    is_permanent: AtomicBool,
}

impl Pool {
    /// Creates a pool of members, each with its base URL, its key and its limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no member, or if a base URL is invalid: see
    /// [`StackBuilder::new`](super::StackBuilder::new).
    pub fn new<U, K>(members: impl IntoIterator<Item = (U, K, LocalLimiter)>) -> Result<Self, InvalidConfig>
    where
        U: AsRef<str>,
        K: Into<KeySource>,
    {
        let member = |(url, keys, limiter): (U, K, LocalLimiter)| {
            let keys = KeySource::of_member(keys.into());
            let base = BaseUrl::parse(url.as_ref())?;
            Ok(Member { base, keys, limiter, is_permanent: AtomicBool::new(false) })
        };
        let members = members.into_iter().map(member).collect::<Result<Arc<[_]>, _>>()?;
        if members.is_empty() {
            return Err(InvalidConfig::new("pool", "no members", "at least one member"));
        }
        Ok(Self { members })
    }

    /// Returns whether a member other than `index` has a key that the server does not reject.
    fn has_other_key(&self, index: usize) -> bool {
        self.members.iter().enumerate().any(|(other, member)| other != index && !member.keys.has_failed())
    }

    /// Returns whether a request must leave the member, because it has no key, but another member has one.
    fn must_leave(&self, index: usize) -> bool {
        self.members.get(index).is_some_and(|member| member.keys.has_failed()) && self.has_other_key(index)
    }

    /// Identifies the pool: all clones have the same id.
    pub(super) fn id(&self) -> usize {
        self.members.as_ptr().addr()
    }

    #[cfg(feature = "client")]
    pub(super) fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.members.iter().map(|member| &member.base.origin)
    }

    /// Returns the credential that adds the keys of the members.
    pub(super) fn credential(
        &self,
        placement: &KeyPlacement,
        is_plaintext: bool,
    ) -> Result<Credential<AnySign>, InvalidConfig> {
        let member = |member: &Member| {
            let origin = member.base.origin.clone();
            (member.keys.clone(), if is_plaintext { origin.with_plaintext() } else { origin })
        };
        Credential::members(self.members.iter().map(member), placement)
    }
}

/// Sends the requests of a stack with a [`Pool`] to the member whose permits they have. Does nothing without a pool.
/// [`StackLayer`](crate::stack::StackLayer) contains this layer.
#[derive(Debug, Clone)]
pub struct RouteLayer(Option<Arc<Routing>>);

#[derive(Debug)]
struct Routing {
    /// The base URL that the member's base URL replaces.
    base: BaseUrl,
    pool: Pool,
    dialect: Dialect,
}

impl RouteLayer {
    pub(in crate::stack) fn new(base: BaseUrl, pool: Pool, dialect: Dialect) -> Self {
        Self(Some(Arc::new(Routing { base, pool, dialect })))
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
        self.inner.poll_ready(cx).map_err(Error::from_readiness)
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
        request.extensions_mut().insert(Chosen { index });
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
    /// may have processed an earlier attempt. After a permanent signal, a member whose last signal was permanent, too,
    /// is none that can serve the next attempt.
    fn end<R>(&self, response: &mut Response<R>) {
        let pool = &self.routing.pool;
        let is_permanent = Reading::of(&self.routing.dialect, response, clock::wall).is_permanent();
        pool.members[self.index].is_permanent.store(is_permanent, Relaxed);
        let failed = is_permanent
            || response.status().as_u16() >= 400
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
        let others = others.iter().filter(|index| {
            let Member { keys, is_permanent: is_other_permanent, .. } = &pool.members[**index];
            let is_throttled = is_permanent && is_other_permanent.load(Relaxed);
            **index != self.index && !keys.has_failed() && !is_throttled
        });
        let is_in_time = |wait: &Duration| {
            wait.is_zero() || [left, member.needs.max_wait].iter().flatten().all(|most| wait < most)
        };
        let alternative = others.filter_map(wait).min().filter(is_in_time);
        if must_leave && alternative.is_some() && !member.is_bound {
            response.extensions_mut().insert(KeyReplaced);
        }
        if is_permanent && alternative.is_some() {
            response.extensions_mut().insert(LeavesMember);
        }
        call.set_member(crate::call::Member { alternative, ..member });
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
