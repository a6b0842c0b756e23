use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{Sign, SignLayer};
use crate::{
    auth::{Origin, key_error::auth_error},
    body::{Body, BodyTooLarge},
    error::{BoxError, Error, MaybeRejected},
    headers,
};

/// The service of [`SignLayer`](super::SignLayer).
///
/// # Errors
///
/// - [`Error::is_auth`] if the request cannot be signed, its body is larger than [`Sign::body_limit`], or its URI has
///   no origin.
/// - [`Error::is_invalid_request`] if the request has no room for the signature's header fields.
/// - Passes on the errors of the inner service.
#[derive(Debug, Clone)]
pub struct SignService<S> {
    inner: S,
    layer: Arc<SignLayer>,
}

impl<S> SignService<S> {
    inner_service!();
}

impl<S> Layer<S> for SignLayer {
    type Service = SignService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SignService { inner, layer: Arc::new(self.clone()) }
    }
}

impl<S, B, R> Service<Request<B>> for SignService<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = SignFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let state = match Origin::any_covers(&self.layer.origins, request.uri()) {
            Ok(true) => {
                // Uses the instance that was polled ready for this call, and keeps a clone of it for the next call.
                let next = self.inner.clone();
                let inner = mem::replace(&mut self.inner, next);
                State::BoxSignFuture {
                    signing: Box::pin(signed(Arc::clone(&self.layer.sign), request)),
                    inner,
                }
            }
            Ok(false) => {
                State::Calling { future: MaybeRejected::Calling { future: self.inner.call(request) } }
            }
            Err(error) => State::Calling { future: MaybeRejected::rejected(error) },
        };
        SignFuture { state }
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
    /// The future of [`SignService`].
    pub struct SignFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, S::Future, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, B> {
        BoxSignFuture { signing: Pin<Box<dyn Future<Output = Result<Request<B>, Error>> + Send>>, inner: S },
        Calling { #[pin] future: MaybeRejected<F> },
    }
}

impl<S, B, R> Future for SignFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let future = match state.as_mut().project() {
                StateProj::BoxSignFuture { signing, inner } => match ready!(signing.as_mut().poll(cx)) {
                    Ok(request) => MaybeRejected::Calling { future: inner.call(request) },
                    Err(error) => MaybeRejected::rejected(error),
                },
                StateProj::Calling { future } => return future.poll(cx),
            };
            state.set(State::Calling { future });
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for SignFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignFuture").finish_non_exhaustive()
    }
}
