//! Adds the signature of a [`Sign`] to a request.

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
use http::Request;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{Sign, key_error::auth_error};
use crate::{
    body::{Body, BodyTooLarge},
    error::{BoxError, Error},
    headers,
};

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
        Signing { signed: Box::pin(signed(Arc::clone(&self.0), request)), inner }
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
            let buffered = Body::new(body).bytes_up_to(limit).await.map_err(|error| {
                if error.is::<BodyTooLarge>() {
                    auth_error(error).showing_source()
                } else {
                    Error::from_service(error)
                }
            })?;
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
