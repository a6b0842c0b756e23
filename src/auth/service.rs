use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request};
use tower_service::Service;

use super::{
    Authorize, CurrentKey, KeyError, KeySource, Origin, ResponseFuture,
    key_error::What,
    keys::Lease,
    refresh::{Refresh, Watch},
};
use crate::{
    call::CallContext,
    error::{BoxError, Error, Kind},
    headers::{self, TooManyFields},
};

/// The service of [`AuthLayer`](super::AuthLayer).
///
/// Ready when the inner service is ready and the key source has a key or has failed.
///
/// # Errors
///
/// - [`Error::is_auth`] if the credential cannot be put on the request, or the request's URI names no origin.
/// - [`Error::is_invalid_request`] if the request has no room for another header field.
/// - Otherwise the inner service's error.
pub struct Auth<S, A> {
    inner: S,
    credential: Arc<Credential<A>>,
    fetched: Fetched,
}

struct Credential<A> {
    authorize: Arc<A>,
    origins: Arc<[Origin]>,
}

/// What readiness waits for, which is why a limiter further out counts the wait: what is granted there leaves then.
#[derive(Debug, Default)]
enum Fetched {
    #[default]
    Not,
    Waiting(Refresh),
    Done(Result<CurrentKey, KeyError>),
}

impl<S, A> Auth<S, A> {
    pub(super) fn new(inner: S, authorize: Arc<A>, origins: Arc<[Origin]>) -> Self {
        Self { inner, credential: Arc::new(Credential { authorize, origins }), fetched: Fetched::Not }
    }
}

impl<S: Clone, A> Clone for Auth<S, A> {
    fn clone(&self) -> Self {
        let credential = Arc::clone(&self.credential);
        Self { inner: self.inner.clone(), credential, fetched: Fetched::Not }
    }
}

impl<A: Authorize> Credential<A> {
    /// Puts the credential on; gives what to watch the answer for.
    fn put(&self, head: &mut request::Parts, fetched: Fetched) -> Result<Option<Watch>, BoxError> {
        let Some(keys) = self.authorize.keys() else {
            headers::check_room(&head.headers)?;
            self.authorize.authorize(head)?;
            return Ok(None);
        };
        if let Some(key) = keys.fixed() {
            let put = self.authorize.authorize_with(key, head)?;
            return Ok(put.then(|| Watch::new(keys.clone(), sent(key, head), None, None)));
        }
        let (key, ahead) = match (keys.lease(), fetched) {
            (Lease::Ready(key, ahead), _) => (key, ahead),
            // It came to its end after it was there. There is no waiting here, between a permit and its use: the
            // server says what it thinks of the key.
            (Lease::Wait(ahead), Fetched::Done(Ok(key))) => (key, Some(ahead)),
            (Lease::Failed(_), Fetched::Done(Ok(key))) => (key, None),
            (_, Fetched::Done(Err(error))) | (Lease::Failed(error), _) => return Err(error.into()),
            (Lease::Wait(_), _) => return Err(KeyError::new(What::NotReady).into()),
        };
        let put = self.authorize.authorize_with(&key, head)?;
        Ok(put.then(|| Watch::new(keys.clone(), sent(&key, head), Some(key), ahead)))
    }
}

/// The call of the request that carries the key.
fn sent(key: &CurrentKey, head: &request::Parts) -> Option<CallContext> {
    #[cfg(feature = "json")]
    if let Some(sent) = head.extensions.get::<super::SentKeys>() {
        sent.add(key.key());
    }
    let _ = key;
    head.extensions.get().cloned()
}

impl Fetched {
    fn poll(&mut self, keys: &KeySource, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            *self = match self {
                Self::Not => match keys.lease() {
                    Lease::Ready(key, ahead) => {
                        // One that is over by now gives its key to this request; the request drives it otherwise.
                        let new = ahead.map(|mut ahead| ahead.poll(cx));
                        Self::Done(match new {
                            Some(Poll::Ready(Ok(new))) => Ok(new),
                            _ => Ok(key),
                        })
                    }
                    Lease::Wait(refresh) => Self::Waiting(refresh),
                    Lease::Failed(error) => Self::Done(Err(error)),
                },
                Self::Waiting(refresh) => Self::Done(ready!(refresh.poll(cx))),
                Self::Done(_) => return Poll::Ready(()),
            }
        }
    }
}

impl<S, A, B, R> Service<Request<B>> for Auth<S, A>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    A: Authorize,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // One that never changes is there.
        if let Some(keys) = self.credential.authorize.keys().filter(|keys| keys.fixed().is_none()) {
            ready!(self.fetched.poll(keys, cx));
        }
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // By whatever request, or the next one that wants a key would get an old one.
        let fetched = std::mem::take(&mut self.fetched);
        if request.uri().authority().is_none() {
            return ResponseFuture::failed(no_origin());
        }
        if !self.credential.origins.iter().any(|origin| origin.covers(request.uri())) {
            return ResponseFuture::calling(None, || self.inner.call(request));
        }
        let (mut head, body) = request.into_parts();
        match self.credential.put(&mut head, fetched) {
            Ok(watch) => ResponseFuture::calling(watch, || self.inner.call(Request::from_parts(head, body))),
            Err(error) if error.is::<TooManyFields>() => {
                ResponseFuture::failed(Error::new(Kind::Request, error))
            }
            Err(error) => {
                let again_in = error.downcast_ref().and_then(KeyError::retry_in);
                ResponseFuture::failed(Error::new(Kind::Auth { again_in }, error))
            }
        }
    }
}

pub(super) fn no_origin() -> Error {
    let why = "the request's uri names no origin, so nothing tells whether the key may go there";
    Error::new(Kind::Auth { again_in: None }, why)
}

impl<S: fmt::Debug, A> fmt::Debug for Auth<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("inner", &self.inner)
            .field("origins", &self.credential.origins)
            .finish_non_exhaustive()
    }
}
