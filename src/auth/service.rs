use std::{
    convert::Infallible,
    fmt, mem,
    pin::Pin,
    slice,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, StatusCode, request};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    AnySign, ApiKey, KeyError, KeyPlacement, KeySource, Origin, Sign,
    credential::{Credential, SentKey},
    key::auth_error,
    refresh::Refresh,
    sign::Signature,
};
use crate::{
    call::{Chosen, KeyReplaced},
    config::InvalidConfig,
    error::{BoxError, Error, MaybeRejected},
    headers,
    policy::grpc::Code,
};

/// Adds a credential to every request that goes to the credential's own origin.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::auth::{AuthLayer, KeyPlacement, KeySource, Origin};
///
/// # fn make() -> Result<(), tower_outbound::InvalidConfig> {
/// let keys = KeySource::from_file("/run/secrets/rates")?;
/// let layer = AuthLayer::new(keys, Origin::parse("https://api.example.com")?)?
///     .with_placement(KeyPlacement::header(HeaderName::from_static("x-api-key"))?);
/// # Ok(())
/// # }
/// ```
///
/// The parameter `G` is [`AnySign`](super::AnySign) in a layer of [`from_sign`](AuthLayer::from_sign) and in a
/// [`StackLayer`](crate::stack::StackLayer). It is `Infallible` in any other layer.
///
/// # Clone
///
/// All clones of a layer, and the services made from them, share the key source, the closure or the signer.
#[derive(Clone)]
pub struct AuthLayer<G = Infallible> {
    credential: Credential<G>,
    /// Empty if there is no credential, or if the credential is that of a pool, whose members have their own origins.
    origins: Vec<Origin>,
}

impl AuthLayer {
    /// Creates a layer that sends a key to `origin`, as a bearer token by default.
    ///
    /// # Errors
    ///
    /// Returns an error for an origin without TLS. Exceptions are loopback hosts and origins that [allow
    /// plaintext](Origin::with_plaintext).
    pub fn new(keys: impl Into<KeySource>, origin: Origin) -> Result<Self, InvalidConfig> {
        Self::of(Credential::key(keys, &KeyPlacement::default()), origin)
    }

    /// Creates a layer whose closure `authorize` adds the credential to the head of each request to `origin`.
    ///
    /// The layer calls the closure once for each attempt. If the closure returns an error, the call ends and nothing is
    /// sent. The error must not contain the credential. The closure may change the URI, as a
    /// [`Sign`](super::Sign::sign) may: the layer checks the origin before, and not again. The closure can add up to
    /// 500 header fields. A request with room for fewer fields is rejected before the closure is called.
    ///
    /// If the credential depends on the body, or is computed asynchronously, use [`from_sign`](AuthLayer::from_sign).
    ///
    /// ```
    /// use tower_outbound::auth::{AuthLayer, Origin};
    ///
    /// let layer = AuthLayer::from_fn(
    ///     |head| {
    ///         head.headers.insert("x-signature", http::HeaderValue::from_static("made up"));
    ///         Ok(())
    ///     },
    ///     Origin::parse("https://api.example.com")?,
    /// )?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](Self::new).
    pub fn from_fn(
        authorize: impl Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync + 'static,
        origin: Origin,
    ) -> Result<Self, InvalidConfig> {
        Self::of(Credential::Closure(Arc::new(authorize)), origin)
    }
}

impl AuthLayer<AnySign> {
    /// Creates a layer that signs every request to `origin`.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{HeaderValue, request::Parts};
    /// use tower_outbound::auth::{AuthLayer, BoxSignFuture, Origin, Sign};
    ///
    /// struct Signer;
    ///
    /// impl Sign for Signer {
    ///     fn sign<'a>(&'a self, head: &'a mut Parts, _body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
    ///         Box::pin(async move {
    ///             let mut signature = HeaderValue::from_static("the signature of the head");
    ///             signature.set_sensitive(true);
    ///             head.headers.insert("x-signature", signature);
    ///             Ok(())
    ///         })
    ///     }
    /// }
    ///
    /// let layer = AuthLayer::from_sign(Signer, Origin::parse("https://api.example.com")?)?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// The inner service must be `Clone`, and receives the same body type. The layer buffers a body in memory if the
    /// signature depends on it, so the body type must implement `From<Bytes>`: [`Body`](crate::Body), `Full<Bytes>`, or
    /// [`ReplayBody`](crate::body::ReplayBody) under a retry layer. The trailers of a buffered body are dropped.
    ///
    /// The layer signs a request after the limiter has granted its permit. The safety margin of a quota should
    /// therefore cover the time that a signature takes.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](AuthLayer::new).
    pub fn from_sign(sign: impl Sign + 'static, origin: Origin) -> Result<Self, InvalidConfig> {
        Self::of(Credential::Signature(AnySign::new(sign)), origin)
    }
}

impl<G> AuthLayer<G> {
    /// Creates a layer that sends a credential to `origin`.
    pub(crate) fn of(credential: Credential<G>, origin: Origin) -> Result<Self, InvalidConfig> {
        Self { origins: Vec::new(), credential }.with_allowed_origin(origin)
    }

    /// Sets where the key is placed on the request. Has no effect if the credential is not a key, or if the stack has a
    /// [`Pool`](crate::stack::Pool).
    pub fn with_placement(mut self, placement: KeyPlacement) -> Self {
        self.credential = self.credential.with_placement(&placement);
        self
    }

    /// Also sends the credential to `origin`, such as another host to which the service redirects. Has no effect in a
    /// stack without a credential, or with a [`Pool`](crate::stack::Pool), whose members have their own origins.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](AuthLayer::new).
    pub fn with_allowed_origin(mut self, origin: Origin) -> Result<Self, InvalidConfig> {
        // The members of a pool have their own origins.
        if !matches!(self.credential, Credential::None | Credential::Members(_)) {
            self.origins.push(origin.for_credential()?);
        }
        Ok(self)
    }
}

impl<G> fmt::Debug for AuthLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthLayer").field("origins", &self.origins).finish_non_exhaustive()
    }
}

/// The service of [`AuthLayer`](super::AuthLayer).
///
/// The service is ready when the inner service is ready, and the key source either has a key or has failed.
///
/// # Errors
///
/// - [`Error::is_auth`] if the credential cannot be added to the request, the request's URI has no origin, or its body
///   is larger than the [limit](super::Sign::body_limit) of the signer.
/// - [`Error::is_invalid_request`] if the request has no room for another header field.
/// - Passes on the errors of the inner service.
#[derive(Debug)]
pub struct Auth<S, G = Infallible> {
    inner: S,
    layer: Arc<AuthLayer<G>>,
    ready: Readiness,
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
        Auth { inner, layer: Arc::new(self.clone()), ready: Readiness::NotPolled }
    }
}

impl<S: Clone, G> Clone for Auth<S, G> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: Arc::clone(&self.layer), ready: Readiness::NotPolled }
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
        ready!(self.ready.poll(&self.layer.credential, cx));
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // Takes the key out of the service. Before the next request, the service must become ready again, with a
        // current key.
        let mut ready = mem::take(&mut self.ready);
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
