use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{Origin, Sign, service::no_origin};
use crate::{
    body::{Body, BodyTooLarge, FromBuffered},
    error::{BoxError, Error, Kind},
    headers,
};

/// The service of [`SignLayer`](super::SignLayer).
///
/// # Errors
///
/// - [`Error::is_auth`] if the request cannot be signed, its body is larger than [`Sign::body_limit`], or its URI names
///   no origin.
/// - [`Error::is_invalid_request`] if the request has no room for the signature's header fields.
/// - Otherwise the inner service's error.
pub struct SignService<S, G> {
    inner: S,
    sign: Arc<G>,
    origins: Arc<[Origin]>,
}

impl<S, G> SignService<S, G> {
    pub(super) fn new(inner: S, sign: Arc<G>, origins: Arc<[Origin]>) -> Self {
        Self { inner, sign, origins }
    }
}

impl<S: Clone, G> Clone for SignService<S, G> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.sign), Arc::clone(&self.origins))
    }
}

impl<S, G, B, R> Service<Request<B>> for SignService<S, G>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    G: Sign + 'static,
    B: FromBuffered,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = SignedFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let state = if request.uri().authority().is_none() {
            State::Failed { error: Some(no_origin()) }
        } else if self.origins.iter().any(|origin| origin.covers(request.uri())) {
            // The instance that is ready is the one that will be called.
            let next = self.inner.clone();
            let inner = mem::replace(&mut self.inner, next);
            State::Signing { signing: Box::pin(signed(Arc::clone(&self.sign), request)), inner }
        } else {
            State::Calling { future: self.inner.call(request) }
        };
        SignedFuture { state }
    }
}

async fn signed<G: Sign, B: FromBuffered>(sign: Arc<G>, request: Request<B>) -> Result<Request<B>, Error> {
    let (mut head, body) = request.into_parts();
    headers::check_room(&head.headers)?;
    let (buffered, body) = match sign.body_limit() {
        None => (None, body),
        Some(limit) => {
            let buffered =
                Body::new(body).collect(limit).await.map_err(|error| match error.is::<BodyTooLarge>() {
                    true => Error::new(Kind::Auth { again_in: None }, error),
                    false => Error::from_service(error),
                })?;
            (Some(buffered.clone()), B::from_buffered(buffered))
        }
    };
    sign.sign(&mut head, buffered.as_ref())
        .await
        .map_err(|error| Error::new(Kind::Auth { again_in: None }, error))?;
    Ok(Request::from_parts(head, body))
}

pin_project! {
    /// The future of [`SignService`].
    pub struct SignedFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, S::Future, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, B> {
        Signing { signing: Pin<Box<dyn Future<Output = Result<Request<B>, Error>> + Send>>, inner: S },
        Calling { #[pin] future: F },
        Failed { error: Option<Error> },
    }
}

impl<S, B, R> Future for SignedFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Signing { signing, inner } => match ready!(signing.as_mut().poll(cx)) {
                    Ok(request) => State::Calling { future: inner.call(request) },
                    Err(error) => State::Failed { error: Some(error) },
                },
                StateProj::Calling { future } => return future.poll(cx).map_err(Error::from_service),
                StateProj::Failed { error } => {
                    return error.take().map_or(Poll::Pending, |error| Poll::Ready(Err(error)));
                }
            };
            state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for SignedFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Signing { .. } => "signing",
            State::Calling { .. } => "calling",
            State::Failed { .. } => "failed",
        };
        f.debug_struct("SignedFuture").field("state", &state).finish()
    }
}

impl<S: fmt::Debug, G> fmt::Debug for SignService<S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignService")
            .field("inner", &self.inner)
            .field("origins", &self.origins)
            .finish_non_exhaustive()
    }
}
