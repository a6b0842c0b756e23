use std::{
    convert::Infallible,
    fmt,
    future::Pending,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, request};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::key::auth_error;
use crate::{
    body::{Body, BodyTooLarge},
    call::CallContext,
    clock,
    error::{BoxError, Error, ErrorKind},
    headers,
};

/// Signs a request.
///
/// A signer reads the head of a request and, if [`body_limit`](Self::body_limit) is set, also its body. It may be
/// asynchronous, for example to get a key from [`KeySource::current`](super::KeySource::current) or from a key service.
///
/// The layer calls the signer once for each attempt, and only for requests to the credential's own origin. The example
/// `sign` in the repository signs with HMAC-SHA256.
///
/// ```
/// use bytes::Bytes;
/// use http::request::Parts;
/// use tower_outbound::auth::{AppCredentials, Sign, BoxSignFuture};
///
/// /// Sends the id, the key and the secret unchanged. No real service uses this scheme.
/// struct Plain(AppCredentials);
///
/// impl Sign for Plain {
///     fn sign<'a>(&'a self, head: &'a mut Parts, _body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
///         Box::pin(async move {
///             head.headers.insert("x-app-id", self.0.app_id().parse()?);
///             head.headers.insert("x-key", self.0.key().header_value());
///             head.headers.insert("x-secret", self.0.secret().header_value());
///             Ok(())
///         })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not sign requests",
    label = "not a `Sign`",
    note = "implement `auth::Sign`, or use a closure with `AuthLayer::from_fn` if the signature depends neither on the body nor on async code"
)]
pub trait Sign: Send + Sync {
    /// Returns the maximum size in bytes of a body that the layer buffers for the signature. A request with a larger
    /// body or with trailers fails, and nothing is sent.
    ///
    /// Returns `None` by default. The body is then not buffered, and the signature does not depend on it.
    fn body_limit(&self) -> Option<usize> {
        None
    }

    /// Adds the signature to the request. `body` is the complete body, or `None` if there is no
    /// [`body_limit`](Self::body_limit).
    ///
    /// The signer may also change the URI, for example to add the signature to the query. The origin check and the
    /// spans use the original URI. The changed URI is sent without another check, so a signer that changes the origin
    /// sends its signature to the new origin. The signer receives the original URI again for each attempt.
    ///
    /// A signer can add up to 500 header fields. A request with room for fewer fields is rejected before this method is
    /// called.
    ///
    /// If this method returns an error, the call ends and nothing is sent. The error must not contain a secret. If a
    /// header value is a secret, [mark it](http::HeaderValue::set_sensitive) as sensitive.
    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> BoxSignFuture<'a>;
}

/// The future of [`Sign::sign`].
pub type BoxSignFuture<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;

impl<G: Sign + ?Sized> Sign for Arc<G> {
    fn body_limit(&self) -> Option<usize> {
        G::body_limit(self)
    }

    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        G::sign(self, head, body)
    }
}

/// A [`Sign`] of any type. [`AuthLayer::from_sign`](super::AuthLayer::from_sign) creates it.
#[derive(Clone)]
pub struct AnySign(Arc<dyn Sign>);

impl AnySign {
    pub(crate) fn new(sign: impl Sign + 'static) -> Self {
        Self(Arc::new(sign))
    }
}

impl fmt::Debug for AnySign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnySign").finish_non_exhaustive()
    }
}

/// Signs requests with a body `B` for a service `S`. [`Infallible`] signs no request, so it requires nothing of `S` and
/// `B`.
pub trait Signature<S: Service<Request<B>>, B> {
    /// The future that signs a request and then calls the inner service.
    type Signing: Future<Output = Result<S::Future, Error>>;

    fn sign(&self, inner: &mut S, request: Request<B>) -> Self::Signing;
}

impl<S: Service<Request<B>>, B> Signature<S, B> for Infallible {
    type Signing = Pending<Result<S::Future, Error>>;

    fn sign(&self, _: &mut S, _: Request<B>) -> Self::Signing {
        match *self {}
    }
}

impl<S, B> Signature<S, B> for AnySign
where
    S: Service<Request<B>> + Clone,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
{
    type Signing = Signing<S, B>;

    fn sign(&self, inner: &mut S, request: Request<B>) -> Signing<S, B> {
        // Uses the instance that was polled ready for this call, and keeps a clone of it for the next call.
        let next = inner.clone();
        let inner = mem::replace(inner, next);
        let call = request.extensions().get::<CallContext>().cloned();
        let signed = signed(Arc::clone(&self.0), request);
        let signed = Box::pin(async move {
            let started = clock::now();
            let result = signed.await;
            call.inspect(|call| call.add_key_wait(started.elapsed()));
            result
        });
        Signing { signed, inner }
    }
}

async fn signed<B>(sign: Arc<dyn Sign>, request: Request<B>) -> Result<Request<B>, Error>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
{
    let (mut head, body) = request.into_parts();
    headers::check_room(&head.headers)?;
    let (buffered, body) = match sign.body_limit() {
        None => (None, body),
        Some(limit) => {
            let failed = |error| Error::new(ErrorKind::Body, None, Some(error));
            let exact = body.size_hint().exact();
            let read = Body::new(body).read_up_to(limit).await;
            let (buffered, had_trailers) = read.map_err(|error| match error.is::<BodyTooLarge>() {
                true => auth_error(error).showing_source(),
                false => failed(error),
            })?;
            if exact.is_some_and(|exact| exact != buffered.len() as u64) {
                return Err(failed("the length of the body differs from its size hint".into()));
            }
            if had_trailers {
                let error = "a request whose body is signed cannot have trailers";
                return Err(auth_error(error).showing_source());
            }
            (Some(buffered.clone()), B::from(buffered))
        }
    };
    sign.sign(&mut head, buffered.as_ref()).await.map_err(auth_error)?;
    Ok(Request::from_parts(head, body))
}

pin_project! {
    /// The future of a signature. Resolves to the future of the inner service.
    pub struct Signing<S, B> {
        signed: Pin<Box<dyn Future<Output = Result<Request<B>, Error>> + Send>>,
        inner: S,
    }
}

impl<S: Service<Request<B>>, B> Future for Signing<S, B> {
    type Output = Result<S::Future, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let signed = ready!(this.signed.as_mut().poll(cx));
        Poll::Ready(signed.map(|request| this.inner.call(request)))
    }
}
