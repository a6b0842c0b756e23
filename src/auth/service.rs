use std::{
    convert::Infallible,
    fmt, mem,
    pin::Pin,
    slice,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    ApiKey, AuthLayer, KeyError, Origin,
    credential::{Credential, SentKey},
    key::auth_error,
    refresh::Refresh,
    sign::Signature,
};
use crate::{
    call::{CallContext, Chosen, KeyReplaced},
    clock::{self, Instant},
    error::{BoxError, Error, MaybeRejected},
    headers,
    policy::grpc::Code,
};

/// The service of [`AuthLayer`](super::AuthLayer).
///
/// The service is ready when the inner service is ready, and the key source either has a key or has failed.
///
/// # Errors
///
/// - [`Error::is_auth`] if the credential cannot be added to the request, the request's URI has no origin, or its body
///   is larger than the [limit](super::Sign::body_limit) of the signer.
/// - [`Error::is_invalid_request`] if the request has no room for another header field.
/// - [`ErrorKind::Body`](crate::ErrorKind::Body) if the body fails before it is signed. Nothing is sent.
/// - Passes on the errors of the inner service.
#[derive(Debug)]
pub struct Auth<S, G = Infallible> {
    inner: S,
    layer: Arc<AuthLayer<G>>,
    ready: Readiness,
    /// When the service began to wait for a key, and how long it waited. Boxed, because most keys are available
    /// immediately.
    key_wait: Option<Box<(Instant, Duration)>>,
}

/// The key with which the service is ready. A call takes the key out of the service.
#[derive(Debug, Default)]
enum Readiness {
    #[default]
    NotPolled,
    /// If a permit expires during this wait, the rate limit layer acquires another permit. The future is boxed because
    /// each call clones the service, and most keys are available immediately.
    Refreshing(Box<Refresh>),
    Ready(Result<ApiKey, KeyError>),
    /// The readiness of each member of a pool. Its request goes to one of them, which is not known before the call.
    Members(Vec<Readiness>),
}

impl Readiness {
    /// Waits until the key source of the credential, or that of each member of a pool, has a key or has failed.
    fn poll<G>(&mut self, credential: &Credential<G>, cx: &mut Context<'_>) -> Poll<()> {
        match credential {
            Credential::Members(members) => {
                if let Self::NotPolled = self {
                    *self = Self::Members(members.iter().map(|_| Self::NotPolled).collect());
                }
                let Self::Members(all) = self else { return Poll::Ready(()) };
                for ((credential, _), ready) in members.iter().zip(&mut *all) {
                    let _ = ready.poll(credential, cx);
                }
                // A member whose key source has failed gets no request, so no request waits for its next fetch.
                let all_failed = members.iter().all(|(credential, _)| credential.has_failed());
                let waits = members.iter().zip(all).any(|((credential, _), ready)| {
                    matches!(ready, Self::Refreshing(_)) && (all_failed || !credential.has_failed())
                });
                return if waits { Poll::Pending } else { Poll::Ready(()) };
            }
            Credential::Key(key) if key.fixed.is_none() => {
                if let Self::NotPolled = self {
                    *self = match key.keys.lease() {
                        Ok(key) => Self::Ready(key),
                        Err(refresh) => Self::Refreshing(Box::new(refresh)),
                    };
                }
                if let Self::Refreshing(refresh) = self {
                    *self = Self::Ready(ready!(Pin::new(refresh).poll(cx)));
                }
            }
            _ => {}
        }
        Poll::Ready(())
    }
}

impl<S, G> Auth<S, G> {
    inner_service!();

    /// Calls the inner service with a request that has no replaceable key. Not inlined, so that the compiler constructs
    /// the future in its final place.
    #[inline(never)]
    fn call_inner<B, P>(&mut self, request: Request<B>) -> ResponseFuture<S::Future, P>
    where
        S: Service<Request<B>>,
    {
        let future = MaybeRejected::Calling { future: self.inner.call(request) };
        ResponseFuture { state: State::Calling { future, key: None } }
    }
}

impl<S, G: Clone> Layer<S> for AuthLayer<G> {
    type Service = Auth<S, G>;

    fn layer(&self, inner: S) -> Self::Service {
        Auth { inner, layer: Arc::new(self.clone()), ready: Readiness::NotPolled, key_wait: None }
    }
}

impl<S: Clone, G> Clone for Auth<S, G> {
    fn clone(&self) -> Self {
        let (inner, layer) = (self.inner.clone(), Arc::clone(&self.layer));
        Self { inner, layer, ready: Readiness::NotPolled, key_wait: None }
    }
}

impl<S, B, R, G> Service<Request<B>> for Auth<S, G>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    G: Signature<S, B>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, G::Signing>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.ready.poll(&self.layer.credential, cx).is_pending() {
            self.key_wait.get_or_insert_with(|| Box::new((clock::now(), Duration::ZERO)));
            return Poll::Pending;
        }
        if let Some((since, waited @ Duration::ZERO)) = self.key_wait.as_deref_mut() {
            *waited = since.elapsed();
        }
        self.inner.poll_ready(cx).map_err(Error::from_readiness)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // Takes the key out of the service. Before the next request, the service must become ready again, with a
        // current key.
        let mut ready = mem::take(&mut self.ready);
        if let Some(wait) = self.key_wait.take() {
            let call = request.extensions().get::<CallContext>();
            call.inspect(|call| call.add_key_wait(wait.1));
        }
        let (mut credential, mut origins) = (&self.layer.credential, &*self.layer.origins);
        let mut is_member = false;
        if let Credential::Members(members) = credential {
            let index = request.extensions().get().map_or(0, |chosen: &Chosen| chosen.index);
            if let Some((own, origin)) = members.get(index) {
                (credential, origins, is_member) = (own, slice::from_ref(origin), true);
            }
            if let Readiness::Members(all) = &mut ready {
                ready = all.get_mut(index).map(mem::take).unwrap_or_default();
            }
        }
        let ready = match ready {
            Readiness::Ready(key) => Some(key),
            _ => None,
        };
        let added: Result<Option<SentKey>, Error> =
            match (Origin::any_covers(origins, request.uri()), credential) {
                (Ok(true), Credential::Key(key)) => key.put(&mut request, ready, is_member),
                (Ok(true), Credential::Closure(closure)) => {
                    let (mut head, body) = request.into_parts();
                    let room = headers::check_room(&head.headers);
                    let added = room.and_then(|()| closure(&mut head).map_err(auth_error));
                    request = Request::from_parts(head, body);
                    added.map(|()| None)
                }
                (Ok(true), Credential::Signature(signature)) => {
                    let signing = signature.sign(&mut self.inner, request);
                    return ResponseFuture { state: State::Signing { signing } };
                }
                (covered, _) => covered.map(|_| None),
            };
        match added {
            Ok(None) => self.call_inner(request),
            Ok(key) => {
                let future = MaybeRejected::Calling { future: self.inner.call(request) };
                ResponseFuture { state: State::Calling { future, key } }
            }
            Err(error) => {
                ResponseFuture { state: State::Calling { future: MaybeRejected::rejected(error), key: None } }
            }
        }
    }
}

pin_project! {
    /// The future of [`Auth`](super::Auth).
    pub struct ResponseFuture<F, P> {
        #[pin]
        state: State<F, P>,
    }
}

pin_project! {
    #[project = StateProj]
    pub(super) enum State<F, P> {
        // Signs the request, and then calls the inner service.
        Signing { #[pin] signing: P },
        Calling { #[pin] future: MaybeRejected<F>, key: Option<SentKey> },
    }
}

impl<F, P, R, E> Future for ResponseFuture<F, P>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
    P: Future<Output = Result<F, Error>>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let future = match state.as_mut().project() {
                StateProj::Signing { signing } => match ready!(signing.poll(cx)) {
                    Ok(future) => MaybeRejected::Calling { future },
                    Err(error) => MaybeRejected::rejected(error),
                },
                StateProj::Calling { future, key } => {
                    let mut result = ready!(future.poll(cx));
                    if let (Ok(response), Some((keys, key))) = (&mut result, key) {
                        if rejects_key(response) {
                            if keys.reject(key) {
                                response.extensions_mut().insert(KeyReplaced);
                            }
                        } else if !matches!(response.status().as_u16(), 403 | 429 | 500..) {
                            keys.accept(key);
                        }
                    }
                    return Poll::Ready(result);
                }
            };
            state.set(State::Calling { future, key: None });
        }
    }
}

/// Returns whether the response is a 401, or has gRPC's `UNAUTHENTICATED` in its headers.
pub(crate) fn rejects_key<R>(response: &Response<R>) -> bool {
    response.status() == StatusCode::UNAUTHORIZED
        || Code::in_head(response.headers()) == Some(Code::UNAUTHENTICATED)
}

/// Omits the inner future, which may contain a credential that is not marked sensitive.
impl<F, P> fmt::Debug for ResponseFuture<F, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
